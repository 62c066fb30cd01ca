/* SPDX-License-Identifier: Apache-2.0 */
/* Payload formats from their definitions, one element after the other, in double: slow, and it shares nothing with the
 * codec. A product or quotient of two FP32 numbers that is rounded to double and then to FP32 is rounded right. */
#ifndef TESTS_ORACLE_ORACLE_CODEC_H
#define TESTS_ORACLE_ORACLE_CODEC_H

#include "oracle.h"

#define ORACLE_GROUP 128

typedef enum oracle_payload { ORACLE_FP8, ORACLE_FP8_ROUND, ORACLE_FP8_UE8M0, ORACLE_INT8 } oracle_payload;

/* The number that a code stands for; NaN for 0x7f and 0xff. */
double oracle_e4m3_value(uint32_t code);
/* The nearest code, of two that are as near the even one; saturating; NaN gives 0x7f. */
uint32_t oracle_e4m3_nearest(double value);

/* 32-bit words of a row's scales. */
int64_t oracle_scale_words(oracle_payload payload, int64_t hidden);
/* codes: [hidden]; scales: [oracle_scale_words], as bits. */
void oracle_encode_row(oracle_payload payload, oracle_type type, int64_t hidden, const void *row, uint8_t *codes,
                       uint32_t *scales);
/* NVFP4, of blocks of 16. codes: [hidden / 2], element 2 · i in the lower half of byte i; scales: [hidden / 16]. */
#define ORACLE_BLOCK 16
double oracle_e2m1_value(uint32_t code);
uint32_t oracle_e2m1_nearest(double value);
void oracle_encode_nvfp4_row(oracle_type type, int64_t hidden, float global, const void *row, uint8_t *codes,
                             uint8_t *scales);
/* As bits of FP32. */
uint32_t oracle_decode(oracle_payload payload, const uint8_t *codes, const uint32_t *scales, int64_t i);

#endif
