/* SPDX-License-Identifier: Apache-2.0 */
/* late: who is late in a call on GPUs, by clocks that its warps read: warps, ranks, or the way between them. */
#ifndef EXPAR_BENCH_LOW_LATENCY_LATE_H
#define EXPAR_BENCH_LOW_LATENCY_LATE_H

#include "bench/frame/late.h"

/* The spans of the time from a rank's first warp to the last rank's end. A span with a moment that no rank has reached
   is 0. The copy roofline waits for nothing on the wire and has nothing to close. */
enum ll_span { LL_SEND, LL_WARPS, LL_RANKS, LL_WIRE, LL_PLACE, LL_CLOSE, LL_SPANS };
extern const struct bench_spans ll_spans;

#endif
