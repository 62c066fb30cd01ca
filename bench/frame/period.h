/* SPDX-License-Identifier: Apache-2.0 */
/* period: the time from one pair of calls to the next, a dispatch and its combine back to back, as CollectiveX measures
 * it. The host waits for nothing between two calls. A first chain of pairs gives the period. A second one, which takes
 * a moment between the two calls, too, gives each call's floor. */
#ifndef EXPAR_BENCH_FRAME_PERIOD_H
#define EXPAR_BENCH_FRAME_PERIOD_H

#include <stdbool.h>

struct bench_call;
struct bench_results;

/* Trials of a chain. The first pairs of each are dropped: an eighth, at most 16. */
#define BENCH_TRIALS       4
#define BENCH_PAIRS        128
#define BENCH_MOST_DROPPED 16

struct bench_period {
    bool known;
    /* Medians of the pairs of all trials: the period and the gap between two pairs by the median rank, the floors by
       the fastest rank. */
    double pair_us, gap_us, dispatch_us, combine_us;
    double spread; /* the width of the middle 80 % of periods, as a share of their median: the widest rank's */
    double
        drift; /* how much longer the last quarter of a trial's pairs takes than the first, the median rank's share */
};

/* Measures both chains of a call that dispatches and combines, and appends its result. Collective; false after saying
   why not. */
bool bench_period_measure(struct bench_call *call, struct bench_results *results);

#endif
