/* SPDX-License-Identifier: Apache-2.0 */
/* sum_wide of AVX-512 (F): vectors of 16 words. */
#include "exec/cpu/core/sum_wide.h"

#ifdef __x86_64__
#define LANES      16
#define VECTORS    2
#define LANES_FUNC __attribute__((target("avx512f")))
#include "exec/cpu/core/sum_lanes.h"

LANES_TABLE(sum_wide_avx512)
#endif
