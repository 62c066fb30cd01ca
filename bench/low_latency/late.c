/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the part of a call that is late. A call's time is the sum of these spans:
 *
 *   send    until the median warp of the median rank has stored its part of its last row
 *   warps   how much later the last warp of the median rank has
 *   ranks   how much later the last rank's last warp has
 *   wire    from there until the last warp of any rank has seen the last flag that it waits for
 *   place   until the last warp of any rank has placed its rows
 *   close   until the last rank's kernel ends */
#include "bench/low_latency/late.h"
#include <math.h>

static struct bench_breakdown of_call(const struct bench_moments *ranks, int count, double *sorted)
{
    double last_sent = 0, seen = 0, done = 0, ended = 0, started = 0;
    int late = -1;
    for (int r = 0; r < count; r++) {
        if (ranks[r].sent_us > last_sent) late = r;
        last_sent = fmax(last_sent, ranks[r].sent_us);
        seen = fmax(seen, ranks[r].seen_us);
        done = fmax(done, ranks[r].done_us);
        ended = fmax(ended, ranks[r].ended_us);
        started = fmax(started, ranks[r].started_us);
        sorted[r] = ranks[r].sent_middle_us;
    }
    const double middle = bench_late_median(sorted, count);
    for (int r = 0; r < count; r++)
        sorted[r] = ranks[r].sent_us;
    const double sent = bench_late_median(sorted, count);
    seen = fmax(seen, last_sent);
    done = fmax(done, seen);
    struct bench_breakdown out = {.known = true, .kernel_us = ended, .start_us = started, .late_rank = late};
    const double ends[LL_SPANS] = {middle, sent, last_sent, seen, done, ended};
    for (int i = 0; i < LL_SPANS; i++)
        out.us[i] = ends[i] - (i ? ends[i - 1] : 0);
    return out;
}

const struct bench_spans ll_spans = {.count = LL_SPANS, .of_call = of_call};
