/* SPDX-License-Identifier: Apache-2.0 */
/* sum_wide of AVX2: vectors of 8 words. */
#include "exec/cpu/core/sum_wide.h"

#ifdef __x86_64__
#define LANES      8
#define VECTORS    4
#define LANES_FUNC __attribute__((target("avx2")))
#include "exec/cpu/core/sum_lanes.h"

LANES_TABLE(sum_wide_avx2)
#endif
