/* SPDX-License-Identifier: Apache-2.0 */
/* Sums in vectors of AVX2. */
#include "bench/low_latency/sum_wide.h"

#ifdef __x86_64__
#define LANES      8
#define VECTORS    4
#define LANES_FUNC __attribute__((target("avx2")))
#include "bench/low_latency/sum_lanes.h"

LANES_TABLE(sum_avx2)
#endif
