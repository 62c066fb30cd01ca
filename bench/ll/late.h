/* SPDX-License-Identifier: Apache-2.0 */
/* late: who is late in a call on GPUs, by clocks that its warps read: warps, ranks, or the way between them. */
#ifndef EXPAR_BENCH_LL_LATE_H
#define EXPAR_BENCH_LL_LATE_H

#include "bench/common/device.h"
#include "bench/ll/results.h"

struct ll_session;

/* Moments of one rank in the measured calls of one kind. */
struct ll_late {
    struct ll_moments *calls; /* [iters], the last ones in turn; NULL: none are taken */
    int iters, count;         /* count: so far, the warm-up's too */
};

/* False after saying why not: there is no memory. */
bool ll_late_open(struct ll_late *late, const struct ll_session *session);
void ll_late_close(struct ll_late *late);
/* Behind each turn but the one that is checked: the moments of this rank's last kernel. */
void ll_late_note(struct ll_late *late, const struct ll_session *session);
/* Of all ranks' calls; collective. False: the ranks could not be brought together, or there was no memory. */
bool ll_late_find(const struct ll_late *late, const struct ll_session *session, struct ll_result *result);

/* One call, of the moments of all ranks, in their order: spans that make up the time from a rank's first warp to the
   last rank's end; a span around a moment that no rank has come to is 0. `sorted` has room for as many numbers. Returns
   the rank that was the last to send, -1: nobody sends. */
int ll_late_of_call(const struct ll_moments *ranks, int count, double *sorted, struct ll_breakdown *out);

#endif
