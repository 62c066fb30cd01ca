/* SPDX-License-Identifier: Apache-2.0 */
/* late: collects the moments of all ranks' measured calls on GPUs, call by call, and finds the late rank. */
#ifndef EXPAR_BENCH_FRAME_LATE_H
#define EXPAR_BENCH_FRAME_LATE_H

#include "bench/frame/device.h"
#include <stddef.h>

struct bench_session;

/* The largest number of spans in a breakdown, and the number of spans before a fresh dispatch's kernel. */
#define BENCH_MOST_SPANS   10
#define BENCH_NOTIFY_SPANS 5

/* The moments of the warps of a call's kernels on one rank, in microseconds from its first warp's start. They are those
   of the library's executor_times and ll_times. A moment that a mode's kernels do not have is 0. */
struct bench_moments {
    bool notified;
    double notify_us[BENCH_NOTIFY_SPANS]; /* spans */
    double started_us, open_us, sent_middle_us, sent_us, seen_us, done_us;
    double ended_us; /* 0: not known */
};

/* The parts of the time of a call's kernels: medians over the measured calls, each computed separately. */
struct bench_breakdown {
    bool known;                  /* the times of all measured calls are known on all ranks; otherwise all is 0 */
    bool notified;               /* normal mode: else the first five spans are 0 */
    double kernel_us;            /* from a rank's first warp to the end of the last rank */
    double start_us;             /* low latency: until the last warp has started; among the spans */
    double us[BENCH_MOST_SPANS]; /* by the mode's enum */
    int late_rank;               /* the rank whose last warp was last in most calls; -1: no rank sends */
};

/* A mode's division of a call's time. */
struct bench_spans {
    int count;
    int first, limit_first; /* the first span of a call that was not notified, and of the copy roofline */
    /* Computes the breakdown of one call from the moments of all ranks, in their order. sorted: scratch memory for as
       many numbers. */
    struct bench_breakdown (*of_call)(const struct bench_moments *ranks, int count, double *sorted);
};

/* The moments of one rank in its measured calls of one kind. */
struct bench_late {
    struct bench_moments *calls; /* [iters], the last ones in turn; NULL: none are taken */
    int iters, count;            /* count: so far, the warm-up's too */
};

/* False after saying that there is no memory. */
bool bench_late_open(struct bench_late *late, const struct bench_session *session);
void bench_late_close(struct bench_late *late);
/* Returns the place for the moments of the next call. NULL: none are taken. */
struct bench_moments *bench_late_next(struct bench_late *late);
/* Records the moments of this rank's last kernel. Call this after each turn, except the checked one. */
void bench_late_note(struct bench_late *late, const struct bench_session *session);
/* Computes the breakdown of all ranks' calls. Collective. False: an exchange between the ranks failed, or there was no
   memory. */
bool bench_late_find(const struct bench_late *late, const struct bench_session *session, struct bench_breakdown *out);

/* Sorts the numbers and returns their median. */
double bench_late_median(double *numbers, int count);

#endif
