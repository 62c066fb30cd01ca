/* SPDX-License-Identifier: Apache-2.0 */
/* Sums in vectors of AVX-512. */
#include "bench/low_latency/sum_wide.h"

#ifdef __x86_64__
#define LANES      16
#define VECTORS    2
#define LANES_FUNC __attribute__((target("avx512f")))
#include "bench/low_latency/sum_lanes.h"

LANES_TABLE(sum_avx512)
#endif
