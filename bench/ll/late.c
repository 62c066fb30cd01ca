/* SPDX-License-Identifier: Apache-2.0 */
/* Who is late. Clocks of different GPUs do not agree, but all kernels of a turn begin behind one gate, so that what
 * each rank counts from its own first warp is compared. A call's time is then one sum:
 *
 *   send    until the median warp of the median rank has stored its part of its last row
 *   warps   how much later the last warp of the median rank has
 *   ranks   how much later the last rank's last warp has
 *   wire    from there until the last warp of any rank has seen the last flag that it waits for
 *   place   until the last warp of any rank is through with its rows
 *   close   until the last rank's kernel ends */
#include "bench/ll/late.h"
#include "bench/common/stats.h"
#include "bench/ll/session.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const ll_span_names[LL_SPANS] = {"send", "warps", "ranks", "wire", "place", "close"};

bool ll_late_open(struct ll_late *late, const struct ll_session *session)
{
    *late = (struct ll_late){.iters = session->options->iters};
    if (!session->world->device->ll->moments || session->options->unstamped) return true;
    late->calls = calloc((size_t)late->iters, sizeof *late->calls);
    return late->calls || bench_complain(session->world, "out of memory");
}

void ll_late_close(struct ll_late *late)
{
    free(late->calls);
}

void ll_late_note(struct ll_late *late, const struct ll_session *session)
{
    if (!late->calls) return;
    struct ll_moments *at = &late->calls[late->count++ % late->iters];
    if (!session->world->device->ll->moments(session, at)) *at = (struct ll_moments){0};
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

static double median_of(double *numbers, int count)
{
    stats_sort(numbers, count);
    return stats_median(numbers, count);
}

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
    const double middle = median_of(sorted, count);
    for (int r = 0; r < count; r++)
        sorted[r] = ranks[r].sent_us;
    const double sent = median_of(sorted, count);
    seen = fmax(seen, last_sent);
    done = fmax(done, seen);
    *out = (struct ll_breakdown){.kernel_us = ended, .start_us = started};
    const double ends[LL_SPANS] = {middle, sent, last_sent, seen, done, ended};
    for (int i = 0; i < LL_SPANS; i++)
        out->us[i] = ends[i] - (i ? ends[i - 1] : 0);
    return late;
}

/* ---- all calls --------------------------------------------------------------------------------------------------- */

/* Rows of numbers, [iters] each: the kernel's time, the last start, spans. */
enum { ROW_KERNEL, ROW_START, ROW_SPANS, ROWS = ROW_SPANS + LL_SPANS };

struct late_calls {
    struct ll_moments *all;  /* [ranks][iters] */
    struct ll_moments *call; /* [ranks] */
    double *sorted;          /* [ranks] */
    double *rows;            /* [ROWS][iters] */
    int *times_late;         /* [ranks] */
};

static bool calls_make(struct late_calls *calls, int ranks, int iters)
{
    const size_t n = (size_t)ranks, count = (size_t)iters;
    calls->all = calloc(n * count, sizeof *calls->all);
    calls->call = calloc(n, sizeof *calls->call);
    calls->sorted = calloc(n, sizeof *calls->sorted);
    calls->rows = calloc(ROWS * count, sizeof *calls->rows);
    calls->times_late = calloc(n, sizeof *calls->times_late);
    return calls->all && calls->call && calls->sorted && calls->rows && calls->times_late;
}

static void calls_free(struct late_calls *calls)
{
    free(calls->all);
    free(calls->call);
    free(calls->sorted);
    free(calls->rows);
    free(calls->times_late);
}

/* False: some rank took no moments of this call. */
static bool add_call(struct late_calls *calls, int ranks, int iters, int i)
{
    struct ll_breakdown one;
    for (int r = 0; r < ranks; r++) {
        calls->call[r] = calls->all[(size_t)r * (size_t)iters + (size_t)i];
        if (calls->call[r].ended_us <= 0) return false;
    }
    const int late = ll_late_of_call(calls->call, ranks, calls->sorted, &one);
    if (late >= 0) calls->times_late[late]++;
    calls->rows[(size_t)ROW_KERNEL * (size_t)iters + (size_t)i] = one.kernel_us;
    calls->rows[(size_t)ROW_START * (size_t)iters + (size_t)i] = one.start_us;
    for (int s = 0; s < LL_SPANS; s++)
        calls->rows[(size_t)(ROW_SPANS + s) * (size_t)iters + (size_t)i] = one.us[s];
    return true;
}

/* Medians, each by itself. */
static void sum_up(struct late_calls *calls, int ranks, int iters, struct ll_breakdown *out)
{
    double medians[ROWS];
    for (int row = 0; row < ROWS; row++)
        medians[row] = median_of(calls->rows + (size_t)row * (size_t)iters, iters);
    *out = (struct ll_breakdown){.kernel_us = medians[ROW_KERNEL], .start_us = medians[ROW_START]};
    memcpy(out->us, medians + ROW_SPANS, sizeof out->us);
    out->late_rank = -1;
    for (int r = 0, most = 0; r < ranks; r++) {
        if (calls->times_late[r] <= most) continue;
        most = calls->times_late[r];
        out->late_rank = r;
    }
}

bool ll_late_find(const struct ll_late *late, const struct ll_session *session, struct ll_result *result)
{
    const struct bench_world *world = session->world;
    const int iters = late->iters;
    struct late_calls calls = {0};
    if (!late->calls) return true;
    bool good = calls_make(&calls, world->size, iters) || bench_complain(world, "out of memory");
    good = bench_all_true(world, good) && bench_good(world, expar_group_allgather(world->group, late->calls, calls.all,
                                                                                  (size_t)iters * sizeof *late->calls));
    bool whole = good;
    for (int i = 0; i < iters && whole; i++)
        whole = add_call(&calls, world->size, iters, i);
    if (whole) sum_up(&calls, world->size, iters, &result->breakdown);
    result->has_breakdown = whole;
    calls_free(&calls);
    return good;
}
