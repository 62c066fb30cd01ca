/* SPDX-License-Identifier: Apache-2.0 */
/* The times of all ranks' kernels, compared. Clocks of different GPUs do not agree, but all kernels of a turn begin
 * after one gate. So each rank counts from its own first warp. */
#include "bench/frame/late.h"
#include "bench/frame/session.h"
#include "bench/frame/stats.h"
#include <stdlib.h>

bool bench_late_open(struct bench_late *late, const struct bench_session *session)
{
    *late = (struct bench_late){.iters = session->options->iters};
    if (!bench_site_of(session)->moments || session->options->unstamped) return true;
    late->calls = calloc((size_t)late->iters, sizeof *late->calls);
    return late->calls || bench_complain(session->world, "out of memory");
}

void bench_late_close(struct bench_late *late)
{
    free(late->calls);
}

struct bench_moments *bench_late_next(struct bench_late *late)
{
    return late->calls ? &late->calls[late->count++ % late->iters] : NULL;
}

void bench_late_note(struct bench_late *late, const struct bench_session *session)
{
    struct bench_moments *at = bench_late_next(late);
    if (at && !bench_site_of(session)->moments(session, at)) *at = (struct bench_moments){0};
}

double bench_late_median(double *numbers, int count)
{
    stats_sort(numbers, count);
    return stats_median(numbers, count);
}

/* ---- all calls --------------------------------------------------------------------------------------------------- */

struct late_calls {
    const struct bench_spans *spans;
    int ranks, iters;
    struct bench_moments *all;    /* [ranks][iters] */
    struct bench_moments *call;   /* [ranks] */
    struct bench_breakdown *each; /* [iters] */
    double *sorted;               /* [most of ranks and iters] */
    int *times_late;              /* [ranks] */
};

static bool calls_make(struct late_calls *calls)
{
    const size_t n = (size_t)calls->ranks, count = (size_t)calls->iters;
    calls->all = calloc(n * count, sizeof *calls->all);
    calls->call = calloc(n, sizeof *calls->call);
    calls->each = calloc(count, sizeof *calls->each);
    calls->sorted = calloc(n + count, sizeof *calls->sorted);
    calls->times_late = calloc(n, sizeof *calls->times_late);
    return calls->all && calls->call && calls->each && calls->sorted && calls->times_late;
}

static void calls_free(struct late_calls *calls)
{
    free(calls->all);
    free(calls->call);
    free(calls->each);
    free(calls->sorted);
    free(calls->times_late);
}

/* Adds a call. False: some rank has no moments of this call. */
static bool add_call(struct late_calls *calls, int i)
{
    for (int r = 0; r < calls->ranks; r++) {
        calls->call[r] = calls->all[r * calls->iters + i];
        if (calls->call[r].ended_us <= 0) return false;
    }
    calls->each[i] = calls->spans->of_call(calls->call, calls->ranks, calls->sorted);
    if (calls->each[i].late_rank >= 0) calls->times_late[calls->each[i].late_rank]++;
    return true;
}

/* Returns the address of a number in a breakdown: the kernel's time, the last start, then the spans. */
static double *number_of(struct bench_breakdown *b, int number)
{
    return number == 0 ? &b->kernel_us : number == 1 ? &b->start_us : &b->us[number - 2];
}

static void sum_up(struct late_calls *calls, struct bench_breakdown *out)
{
    *out = (struct bench_breakdown){.known = true, .notified = calls->each[0].notified, .late_rank = -1};
    for (int n = 0; n < calls->spans->count + 2; n++) {
        for (int i = 0; i < calls->iters; i++)
            calls->sorted[i] = *number_of(&calls->each[i], n);
        *number_of(out, n) = bench_late_median(calls->sorted, calls->iters);
    }
    for (int r = 0, most = 0; r < calls->ranks; r++) {
        if (calls->times_late[r] <= most) continue;
        most = calls->times_late[r];
        out->late_rank = r;
    }
}

bool bench_late_find(const struct bench_late *late, const struct bench_session *session, struct bench_breakdown *out)
{
    const struct bench_world *world = session->world;
    struct late_calls calls = {.spans = session->mode->spans, .ranks = world->size, .iters = late->iters};
    *out = (struct bench_breakdown){0};
    if (!late->calls) return true;
    bool good = calls_make(&calls) || bench_complain(world, "out of memory");
    good = bench_all_true(world, good) &&
           bench_good(world, expar_group_allgather(world->group, late->calls, calls.all,
                                                   (size_t)late->iters * sizeof *late->calls));
    bool known = good;
    for (int i = 0; i < late->iters && known; i++)
        known = add_call(&calls, i);
    if (known) sum_up(&calls, out);
    calls_free(&calls);
    return good;
}
