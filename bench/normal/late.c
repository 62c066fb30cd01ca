/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a call's time. The time of a dispatch's or combine's kernel is the sum of these spans:
 *
 *   open    until the last warp of any rank knows the peers' places
 *   rows    from there until the median warp of the median rank has its last row on its way, or added
 *   warps   how much later the last warp of the median rank has
 *   ranks   how much later the last rank's last warp has
 *   close   until the last rank's kernel ends
 *
 * In a fresh dispatch notify's spans and the gap come before. They are the median rank's. */
#include "bench/normal/late.h"
#include <assert.h>
#include <math.h>

static_assert(BENCH_SPANS <= BENCH_MOST_SPANS && (int)BENCH_OPEN == BENCH_NOTIFY_SPANS, "room for a call's spans");

static struct bench_breakdown of_call(const struct bench_moments *ranks, int count, double *sorted)
{
    struct bench_breakdown out = {.known = true, .notified = ranks->notified};
    double opened = 0, last_sent = 0, ended = 0;
    for (int r = 0; r < count; r++) {
        if (ranks[r].sent_us > last_sent) out.late_rank = r;
        opened = fmax(opened, ranks[r].open_us);
        last_sent = fmax(last_sent, ranks[r].sent_us);
        ended = fmax(ended, ranks[r].ended_us);
        sorted[r] = ranks[r].sent_middle_us;
    }
    const double middle = fmax(opened, bench_late_median(sorted, count));
    for (int r = 0; r < count; r++)
        sorted[r] = ranks[r].sent_us;
    const double sent = fmax(middle, bench_late_median(sorted, count));
    for (int s = 0; s < BENCH_OPEN && ranks->notified; s++) {
        for (int r = 0; r < count; r++)
            sorted[r] = ranks[r].notify_us[s];
        out.us[s] = bench_late_median(sorted, count);
    }
    const double ends[] = {opened, middle, sent, fmax(sent, last_sent), ended};
    out.kernel_us = ended;
    for (int s = BENCH_OPEN; s < BENCH_SPANS; s++)
        out.us[s] = ends[s - BENCH_OPEN] - (s > BENCH_OPEN ? ends[s - BENCH_OPEN - 1] : 0);
    return out;
}

const struct bench_spans normal_spans = {
    .count = BENCH_SPANS, .first = BENCH_OPEN, .limit_first = BENCH_ROWS, .of_call = of_call};
