/* SPDX-License-Identifier: Apache-2.0 */
/* late: who is late in a call on GPUs, by clocks that its warps read: warps, ranks, or those that close it. */
#ifndef EXPAR_BENCH_NORMAL_LATE_H
#define EXPAR_BENCH_NORMAL_LATE_H

#include "bench/normal/results.h"

/* When the warps of a call's kernels came where on one rank, in microseconds, as the library's executor_times. */
struct bench_moments {
    bool notified;
    double notify_us[BENCH_OPEN];                      /* spans */
    double open_us, sent_middle_us, sent_us, ended_us; /* from the first warp's start; ended 0: not known */
};

/* One call, of the moments of all ranks, in their order; sorted has room for as many numbers. */
struct bench_breakdown bench_late_of_call(const struct bench_moments *ranks, int count, double *sorted);

#endif
