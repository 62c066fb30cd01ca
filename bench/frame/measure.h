/* SPDX-License-Identifier: Apache-2.0 */
/* measure: lets contenders take turns within each iteration, and collects the times of all ranks. */
#ifndef EXPAR_BENCH_FRAME_MEASURE_H
#define EXPAR_BENCH_FRAME_MEASURE_H

#include "bench/frame/device.h"
#include "bench/frame/options.h"

struct bench_late; /* frame/late.h */

/* Summary of the iterations of one contender, in microseconds. */
struct bench_times {
    double median_us, min_us, p99_us;
    double spread; /* the width of the middle 80 % of the iterations, as a share of the median */
    /* Medians of each rank's own time, from its start to its end: the slowest rank's, that rank, and the mean over
       ranks. 0: ranks have no times of their own. */
    double slowest_us, mean_rank_us;
    int slowest_rank;
};

/* A contender takes turns with others. */
struct contender {
    /* Loads its data into the caches, on the CPU, not timed. NULL: nothing to do. */
    bool (*before)(void *context);
    bool (*run)(void *context); /* timed */
    /* Runs after a turn, not timed. check: this is the turn after the timed ones. NULL: nothing to do. */
    bool (*after)(void *context, bool check);
    void *context;
    /* The moments of the copy roofline's kernel that `after` records, for the reader of the times; NULL: none. */
    const struct bench_late *late;
    bool settled; /* on the CPU: ranks meet twice before it, so that none is still waking up from the first time */
    bool untimed; /* this rank's clock does not count; rank 0's always must */
    struct bench_times times; /* out, the same on all ranks */
    double *series_us;        /* out, [iters] in their order, the same on all ranks; NULL: not wanted */
};

/* Start and end of one iteration on one rank, on a clock that all ranks share; INT64_MAX and INT64_MIN where they do
   not count. */
struct bench_span {
    int64_t start_ns, end_ns;
};

/* Runs warmup + iters turns of all contenders. False when one of them failed on this rank or the ranks could not be
 * brought together. Collective. */
bool bench_measure(const struct bench_world *world, const struct bench_options *options, const char *label,
                   struct contender *contenders, int count);
/* The figures of `count` ≥ 1 times, which are sorted; nothing of ranks. */
struct bench_times bench_summary(double *times_us, int count);

/* The figures of one of `count` operations that share the times. */
struct bench_times bench_times_share(const struct bench_times *times, int count);

/* bench_device's turn on the CPU: on CLOCK_MONOTONIC after a barrier. */
bool bench_cpu_turn(const struct bench_world *world, struct contender *contender, struct bench_span *span);

#endif
