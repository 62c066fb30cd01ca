/* SPDX-License-Identifier: Apache-2.0 */
/* Who is late. A call's time is one sum:
 *
 *   send    until the median warp of the median rank has stored its part of its last row
 *   warps   how much later the last warp of the median rank has
 *   ranks   how much later the last rank's last warp has
 *   wire    from there until the last warp of any rank has seen the last flag that it waits for
 *   place   until the last warp of any rank is through with its rows
 *   close   until the last rank's kernel ends */
#include "bench/low_latency/late.h"
#include "bench/low_latency/session.h"
#include <assert.h>
#include <math.h>
#include <string.h>

const char *const ll_span_names[LL_SPANS] = {"send", "warps", "ranks", "wire", "place", "close"};

bool ll_late_open(struct bench_late *late, const struct ll_session *session)
{
    const bool wanted = session->world->device->ll->moments && !session->options->unstamped;
    return bench_late_open(late, session->world, wanted, session->options->iters, sizeof(struct ll_moments));
}

void ll_late_note(struct bench_late *late, const struct ll_session *session)
{
    struct ll_moments *at = bench_late_next(late);
    if (at && !session->world->device->ll->moments(session, at)) *at = (struct ll_moments){0};
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

int ll_late_of_call(const struct ll_moments *ranks, int count, double *sorted, struct ll_breakdown *out)
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
    *out = (struct ll_breakdown){.known = true, .kernel_us = ended, .start_us = started};
    const double ends[LL_SPANS] = {middle, sent, last_sent, seen, done, ended};
    for (int i = 0; i < LL_SPANS; i++)
        out->us[i] = ends[i] - (i ? ends[i - 1] : 0);
    return late;
}

/* ---- all calls --------------------------------------------------------------------------------------------------- */

/* Numbers of a call: the kernel's time, the last start, spans. */
enum { AT_KERNEL, AT_START, AT_SPANS, NUMBERS = AT_SPANS + LL_SPANS };
static_assert(NUMBERS <= BENCH_LATE_NUMBERS, "room for the numbers of a call");

static bool fold(const void *moments, int count, double *sorted, double *numbers, int *rank)
{
    const struct ll_moments *ranks = moments;
    struct ll_breakdown one;
    for (int r = 0; r < count; r++)
        if (ranks[r].ended_us <= 0) return false;
    *rank = ll_late_of_call(ranks, count, sorted, &one);
    numbers[AT_KERNEL] = one.kernel_us;
    numbers[AT_START] = one.start_us;
    memcpy(numbers + AT_SPANS, one.us, sizeof one.us);
    return true;
}

bool ll_late_find(const struct bench_late *late, const struct ll_session *session, struct ll_breakdown *out)
{
    struct bench_lateness all;
    *out = (struct ll_breakdown){0};
    if (!bench_late_find(late, session->world, fold, NUMBERS, &all)) return false;
    if (!all.known) return true;
    *out = (struct ll_breakdown){
        .known = true, .kernel_us = all.medians[AT_KERNEL], .start_us = all.medians[AT_START], .late_rank = all.rank};
    memcpy(out->us, all.medians + AT_SPANS, sizeof out->us);
    return true;
}

bool ll_late_find_limit(const struct contender *copies, const struct ll_session *session, struct ll_result *result)
{
    const struct bench_late *late = result->num_copies ? copies[ll_least_copy(result)].late : NULL;
    return !late || ll_late_find(late, session, &result->limit);
}
