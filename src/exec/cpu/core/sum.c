/* SPDX-License-Identifier: Apache-2.0 */
/* Adds rows, in the widest vectors that this processor has. Without AVX2 and AVX-512, or on another kind of processor,
 * vectors have 4 words. */
#define LANES   4
#define VECTORS 4
#define LANES_FUNC
#include "exec/cpu/core/sum_lanes.h"

#include "exec/cpu/core/rows.h"

LANES_TABLE(sum_wide_any)

static const sum_wide *sum_wide_here(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) return &sum_wide_avx512;
    if (__builtin_cpu_supports("avx2")) return &sum_wide_avx2;
#endif
    return &sum_wide_any;
}

void cpu_sum_weighted(expar_dtype dtype, void *y, const void *const *rows, const float *weights, int32_t num_rows,
                      int64_t elements)
{
    const sum_wide *wide = sum_wide_here();
    sum_wide_fn *const sum = dtype == EXPAR_BF16 ? wide->bf16 : dtype == EXPAR_F16 ? wide->f16 : wide->f32;
    sum(y, rows, weights, num_rows, elements * (int64_t)expar_dtype_bytes(dtype));
}

void cpu_sum_rows(expar_dtype dtype, void *y, const void *const *rows, int32_t num_rows, int64_t elements)
{
    cpu_sum_weighted(dtype, y, rows, NULL, num_rows, elements);
}
