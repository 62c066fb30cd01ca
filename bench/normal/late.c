/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a call goes. The kernel of a dispatch or combine is one sum:
 *
 *   open    until the last warp of any rank knows the peers' places
 *   rows    from there until the median warp of the median rank has its last row on its way, or added
 *   warps   how much later the last warp of the median rank has
 *   ranks   how much later the last rank's last warp has
 *   close   until the last rank's kernel ends
 *
 * What comes before it in a fresh dispatch, notify's spans and the gap, is the median rank's. */
#include "bench/normal/late.h"
#include "bench/normal/session.h"
#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- one call ---------------------------------------------------------------------------------------------------- */

struct bench_breakdown bench_late_of_call(const struct bench_moments *ranks, int count, double *sorted)
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

/* ---- all calls --------------------------------------------------------------------------------------------------- */

/* Numbers of a call: the kernel's time, spans. */
enum { AT_KERNEL, AT_SPANS, NUMBERS = AT_SPANS + BENCH_SPANS };
static_assert(NUMBERS <= BENCH_LATE_NUMBERS, "room for the numbers of a call");

static bool fold(const void *moments, int count, double *sorted, double *numbers, int *rank)
{
    const struct bench_moments *ranks = moments;
    for (int r = 0; r < count; r++)
        if (ranks[r].ended_us <= 0) return false;
    const struct bench_breakdown one = bench_late_of_call(ranks, count, sorted);
    *rank = one.late_rank;
    numbers[AT_KERNEL] = one.kernel_us;
    memcpy(numbers + AT_SPANS, one.us, sizeof one.us);
    return true;
}

bool bench_session_moments(const struct bench_session *session, struct bench_late *late)
{
    const bool wanted = session->world->device->moments && !session->options->unstamped;
    return bench_late_open(late, session->world, wanted, session->options->iters, sizeof(struct bench_moments));
}

void bench_session_note(const struct bench_session *session, struct bench_late *late)
{
    struct bench_moments *at = bench_late_next(late);
    if (at && !session->world->device->moments(session, at)) *at = (struct bench_moments){0};
}

bool bench_session_late(const struct bench_session *session, const struct bench_late *late, struct bench_breakdown *out)
{
    struct bench_lateness all;
    *out = (struct bench_breakdown){0};
    if (!bench_late_find(late, session->world, fold, NUMBERS, &all)) return false;
    if (!all.known) return true;
    out->known = true;
    out->notified = ((const struct bench_moments *)late->calls)->notified;
    out->kernel_us = all.medians[AT_KERNEL];
    out->late_rank = all.rank;
    memcpy(out->us, all.medians + AT_SPANS, sizeof out->us);
    return true;
}

bool bench_session_limit_late(const struct bench_session *session, const struct contender *copies,
                              struct bench_result *result)
{
    const struct bench_late *late = result->num_copies ? copies[bench_least_copy(result)].late : NULL;
    return !late || bench_session_late(session, late, &result->limit);
}
