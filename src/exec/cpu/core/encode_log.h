/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of LogFMT in vectors, for encode.c. */
#ifndef EXPAR_EXEC_CPU_CORE_ENCODE_LOG_H
#define EXPAR_EXEC_CPU_CORE_ENCODE_LOG_H

#include "proto/codec/codec.h"

/* Returns the bytes of the payload. */
int64_t cpu_encode_log_row(int32_t dtype, int64_t hidden, const void *row, uint8_t *payload, number_f32 *heads);
void cpu_decode_log_row(int64_t hidden, const uint8_t *payload, const number_f32 *heads, float *out);

#endif
