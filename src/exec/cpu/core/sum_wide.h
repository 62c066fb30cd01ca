/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows, made once for each width of vectors that processors have; all give the same result. For sum.c. */
#ifndef EXPAR_EXEC_CPU_CORE_SUM_WIDE_H
#define EXPAR_EXEC_CPU_CORE_SUM_WIDE_H

#include <stdint.h>

/* y = Σ rows[i], or Σ weights[i] · rows[i] where weights is not NULL, i ascending; rows of so many bytes. */
typedef void sum_wide_fn(uint8_t *y, const void *const *rows, const float *weights, int32_t num_rows, int64_t bytes);

/* Functions by type of the elements. */
typedef struct sum_wide {
    sum_wide_fn *f32, *bf16, *f16;
} sum_wide;

extern const sum_wide sum_wide_any; /* for every processor */
#ifdef __x86_64__
extern const sum_wide sum_wide_avx2, sum_wide_avx512;
#endif

#endif
