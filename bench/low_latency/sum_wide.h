/* SPDX-License-Identifier: Apache-2.0 */
/* sum_wide: sums of rows in vectors of each width that processors have. For sum.c. */
#ifndef EXPAR_BENCH_LOW_LATENCY_SUM_WIDE_H
#define EXPAR_BENCH_LOW_LATENCY_SUM_WIDE_H

#include <stddef.h>
#include <stdint.h>

/* weights NULL: all are 1. */
typedef void sum_function(const void *const *rows, const float *weights, int count, size_t bytes, uint8_t *out);

/* Functions for each type of elements. */
struct sum_table {
    sum_function *f32, *bf16, *f16;
};

extern const struct sum_table sum_any;
#ifdef __x86_64__
extern const struct sum_table sum_avx2, sum_avx512;
#endif

#endif
