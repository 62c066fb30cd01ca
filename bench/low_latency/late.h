/* SPDX-License-Identifier: Apache-2.0 */
/* late: who is late in a call on GPUs, by clocks that its warps read: warps, ranks, or the way between them. */
#ifndef EXPAR_BENCH_LOW_LATENCY_LATE_H
#define EXPAR_BENCH_LOW_LATENCY_LATE_H

#include "bench/frame/late.h"
#include "bench/low_latency/results.h"

struct ll_session;

/* The moments of this rank's calls of one kind (struct ll_moments); false after saying why not: there is no memory. */
bool ll_late_open(struct bench_late *late, const struct ll_session *session);
/* Behind each turn but the one that is checked: the moments of this rank's last kernel. */
void ll_late_note(struct bench_late *late, const struct ll_session *session);
/* Of all ranks' calls; collective. False: the ranks could not be brought together, or there was no memory. */
bool ll_late_find(const struct bench_late *late, const struct ll_session *session, struct ll_breakdown *out);
/* The same of the copies that the limit is, once the times of all of them are in the result. */
bool ll_late_find_limit(const struct contender *copies, const struct ll_session *session, struct ll_result *result);

/* One call, of the moments of all ranks, in their order: spans that make up the time from a rank's first warp to the
   last rank's end; a span around a moment that no rank has come to is 0. `sorted` has room for as many numbers. Returns
   the rank that was the last to send, -1: nobody sends. */
int ll_late_of_call(const struct ll_moments *ranks, int count, double *sorted, struct ll_breakdown *out);

#endif
