/* SPDX-License-Identifier: Apache-2.0 */
/* late: what ranks note of their measured calls on GPUs, put together call by call, so that it is seen who was late. */
#ifndef EXPAR_BENCH_FRAME_LATE_H
#define EXPAR_BENCH_FRAME_LATE_H

#include "bench/frame/device.h"
#include <stddef.h>

struct bench_session;

/* Spans of a breakdown at most, and how many of them come before a fresh dispatch's kernel. */
#define BENCH_MOST_SPANS   10
#define BENCH_NOTIFY_SPANS 5

/* When the warps of a call's kernels came where on one rank, in microseconds from its first warp's start, as the
   library's executor_times and ll_times. A mode leaves moments at 0 that its kernels do not have. */
struct bench_moments {
    bool notified;
    double notify_us[BENCH_NOTIFY_SPANS]; /* spans */
    double started_us, open_us, sent_middle_us, sent_us, seen_us, done_us;
    double ended_us; /* 0: not known */
};

/* Where the time of a call's kernels goes: medians over the measured calls, each by itself. */
struct bench_breakdown {
    bool known;                  /* on all ranks and of all measured calls; else all is 0 */
    bool notified;               /* normal mode: else the first five spans are 0 */
    double kernel_us;            /* from a rank's first warp to the end of the last rank */
    double start_us;             /* low latency: until the last warp has started; among the spans */
    double us[BENCH_MOST_SPANS]; /* by the mode's enum */
    int late_rank;               /* whose last warp was the last one in most calls; -1: nobody sends */
};

/* How a mode divides a call's time. */
struct bench_spans {
    int count;
    int first, limit_first; /* that a call which was not notified has, and that the copy roofline has */
    /* One call, of the moments of all ranks, in their order; sorted holds as many numbers. */
    struct bench_breakdown (*of_call)(const struct bench_moments *ranks, int count, double *sorted);
};

/* The moments of one rank in its measured calls of one kind. */
struct bench_late {
    struct bench_moments *calls; /* [iters], the last ones in turn; NULL: none are taken */
    int iters, count;            /* count: so far, the warm-up's too */
};

/* False after saying why not: there is no memory. */
bool bench_late_open(struct bench_late *late, const struct bench_session *session);
void bench_late_close(struct bench_late *late);
/* Where the moments of the next call go. NULL: none are taken. */
struct bench_moments *bench_late_next(struct bench_late *late);
/* Called after each turn but the one that is checked: the moments of this rank's last kernel. */
void bench_late_note(struct bench_late *late, const struct bench_session *session);
/* For all ranks' calls; collective. False: the ranks could not be brought together, or there was no memory. */
bool bench_late_find(const struct bench_late *late, const struct bench_session *session, struct bench_breakdown *out);

/* The median of numbers that are sorted for it. */
double bench_late_median(double *numbers, int count);

#endif
