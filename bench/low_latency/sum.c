/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted FP32 sums of rows, in the widest vectors that this processor has. */
#define LANES   4
#define VECTORS 4
#define LANES_FUNC
#include "bench/low_latency/sum_lanes.h"

#include "bench/low_latency/mode.h"

LANES_TABLE(sum_any)

static const struct sum_table *sum_here(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) return &sum_avx512;
    if (__builtin_cpu_supports("avx2")) return &sum_avx2;
#endif
    return &sum_any;
}

void ll_sum_rows(expar_dtype dtype, const void *const *rows, const float *weights, int count, int hidden, void *out)
{
    const struct sum_table *table = sum_here();
    sum_function *const sum = dtype == EXPAR_BF16 ? table->bf16 : dtype == EXPAR_F16 ? table->f16 : table->f32;
    sum(rows, weights, count, (size_t)hidden * expar_dtype_bytes(dtype), out);
}
