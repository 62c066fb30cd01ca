/* SPDX-License-Identifier: Apache-2.0 */
/* late: what ranks note of their measured calls on GPUs, put together call by call, so that it is seen who was late. */
#ifndef EXPAR_BENCH_FRAME_LATE_H
#define EXPAR_BENCH_FRAME_LATE_H

#include "bench/frame/device.h"
#include <stddef.h>

/* The moments of one rank in its measured calls of one kind. */
struct bench_late {
    void *calls; /* [iters][bytes], the last ones in turn; NULL: none are taken */
    size_t bytes;
    int iters, count; /* count: so far, the warm-up's too */
};

/* Calls of this rank, `bytes` each; wanted false: none are taken. False after saying why not: there is no memory. */
bool bench_late_open(struct bench_late *late, const struct bench_world *world, bool wanted, int iters, size_t bytes);
void bench_late_close(struct bench_late *late);
/* Where the moments of the next call go. NULL: none are taken. */
void *bench_late_next(struct bench_late *late);

/* Numbers of one call, at most. */
#define BENCH_LATE_NUMBERS 12
/* Makes numbers of one call out of the moments of all ranks, [count][bytes], in their order; sorted has room for
   `count` numbers. *rank: the one that was late, -1: none. False: some rank has taken no moments of this call. */
typedef bool bench_late_fold(const void *ranks, int count, double *sorted, double *numbers, int *rank);

/* What is known of all calls. */
struct bench_lateness {
    bool known;                         /* moments of all calls on all ranks */
    double medians[BENCH_LATE_NUMBERS]; /* of each number by itself */
    int rank;                           /* late in most calls; -1: never any */
};
/* Of all ranks' calls, by a fold of so many numbers; collective. False: the ranks could not be brought together, or
   there was no memory. */
bool bench_late_find(const struct bench_late *late, const struct bench_world *world, bench_late_fold *fold, int numbers,
                     struct bench_lateness *out);

/* Of numbers that are sorted for it. */
double bench_late_median(double *numbers, int count);

#endif
