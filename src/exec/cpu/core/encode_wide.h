/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of elements in vectors that are written by hand, for instruction sets whose conversions from FP16, and whose
 * narrow results, the compiler makes no good vectors of. For encode.c and encode_log.c. */
#ifndef EXPAR_EXEC_CPU_CORE_ENCODE_WIDE_H
#define EXPAR_EXEC_CPU_CORE_ENCODE_WIDE_H

#include "proto/codec/codec.h"

/* By type of the elements, which are finite. Codes of BF16 are left to the compiler. */
typedef struct encode_wide {
    void (*e4m3[4])(const void *group, float factor, uint8_t *payload);
    void (*i8[4])(const void *group, float factor, uint8_t *payload);
    /* The group is coded in LogFMT. */
    void (*log[4])(const void *group, const logfmt_range *range, uint8_t *bytes);
} encode_wide;

extern const encode_wide encode_wide_avx2, encode_wide_avx512;

/* Of this processor; NULL: it has neither. */
const encode_wide *encode_wide_here(void);

#endif
