/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of elements in hand-written vectors, for instruction sets whose conversions from FP16, and whose narrow
 * results, the compiler vectorises badly. For encode.c and encode_log.c. */
#ifndef EXPAR_EXEC_CPU_CORE_ENCODE_WIDE_H
#define EXPAR_EXEC_CPU_CORE_ENCODE_WIDE_H

#include "proto/codec/codec.h"

/* Functions by type of the elements, which are finite. Codes of BF16 are left to the compiler. */
typedef struct encode_wide {
    void (*e4m3[4])(const void *group, float factor, uint8_t *payload);
    void (*i8[4])(const void *group, float factor, uint8_t *payload);
    /* Codes the group in LogFMT. */
    void (*log[4])(const void *group, const logfmt_range *range, uint8_t *bytes);
} encode_wide;

extern const encode_wide encode_wide_avx2, encode_wide_avx512;

/* Returns the functions for this processor, or NULL if it has neither instruction set. */
const encode_wide *encode_wide_here(void);

#endif
