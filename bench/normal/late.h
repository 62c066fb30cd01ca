/* SPDX-License-Identifier: Apache-2.0 */
/* late: finds what is late in a call on GPUs, by clocks that its warps read: warps, ranks, or the steps that close
 * it. */
#ifndef EXPAR_BENCH_NORMAL_LATE_H
#define EXPAR_BENCH_NORMAL_LATE_H

#include "bench/frame/late.h"

/* Spans of notify and the gap after it, which only a fresh dispatch has, and those of the dispatch or combine. The copy
   roofline has the latter, but nothing to open. */
enum normal_span {
    BENCH_LAYOUT,
    BENCH_HEADERS,
    BENCH_WAIT,
    BENCH_COUNTS,
    BENCH_GAP,
    BENCH_OPEN,
    BENCH_ROWS,
    BENCH_WARPS,
    BENCH_RANKS,
    BENCH_CLOSE,
    BENCH_SPANS
};
extern const struct bench_spans normal_spans;

#endif
