/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks of different GPUs do not agree, but all kernels of a turn begin behind one gate, so that what each rank counts
 * from its own first warp is compared. */
#include "bench/frame/late.h"
#include "bench/frame/stats.h"
#include <stdlib.h>
#include <string.h>

bool bench_late_open(struct bench_late *late, const struct bench_world *world, bool wanted, int iters, size_t bytes)
{
    *late = (struct bench_late){.iters = iters, .bytes = bytes};
    if (!wanted) return true;
    late->calls = calloc((size_t)iters, bytes);
    return late->calls || bench_complain(world, "out of memory");
}

void bench_late_close(struct bench_late *late)
{
    free(late->calls);
}

void *bench_late_next(struct bench_late *late)
{
    if (!late->calls) return NULL;
    return (char *)late->calls + (size_t)(late->count++ % late->iters) * late->bytes;
}

double bench_late_median(double *numbers, int count)
{
    stats_sort(numbers, count);
    return stats_median(numbers, count);
}

/* ---- all calls --------------------------------------------------------------------------------------------------- */

struct late_calls {
    int ranks, iters;
    size_t bytes;
    char *all;       /* [ranks][iters][bytes] */
    char *call;      /* [ranks][bytes] */
    double *sorted;  /* [ranks] */
    double *rows;    /* [numbers][iters] */
    int *times_late; /* [ranks] */
};

static bool calls_make(struct late_calls *calls, int numbers)
{
    const size_t n = (size_t)calls->ranks, count = (size_t)calls->iters;
    calls->all = calloc(n * count, calls->bytes);
    calls->call = calloc(n, calls->bytes);
    calls->sorted = calloc(n, sizeof *calls->sorted);
    calls->rows = calloc((size_t)numbers * count, sizeof *calls->rows);
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

static bool add_call(struct late_calls *calls, bench_late_fold *fold, int numbers, int i)
{
    double one[BENCH_LATE_NUMBERS];
    int late = -1;
    for (int r = 0; r < calls->ranks; r++)
        memcpy(calls->call + (size_t)r * calls->bytes, calls->all + (size_t)(r * calls->iters + i) * calls->bytes,
               calls->bytes);
    if (!fold(calls->call, calls->ranks, calls->sorted, one, &late)) return false;
    if (late >= 0) calls->times_late[late]++;
    for (int n = 0; n < numbers; n++)
        calls->rows[n * calls->iters + i] = one[n];
    return true;
}

static void sum_up(struct late_calls *calls, int numbers, struct bench_lateness *out)
{
    for (int n = 0; n < numbers; n++)
        out->medians[n] = bench_late_median(calls->rows + (size_t)(n * calls->iters), calls->iters);
    for (int r = 0, most = 0; r < calls->ranks; r++) {
        if (calls->times_late[r] <= most) continue;
        most = calls->times_late[r];
        out->rank = r;
    }
}

bool bench_late_find(const struct bench_late *late, const struct bench_world *world, bench_late_fold *fold, int numbers,
                     struct bench_lateness *out)
{
    struct late_calls calls = {.ranks = world->size, .iters = late->iters, .bytes = late->bytes};
    *out = (struct bench_lateness){.rank = -1};
    if (!late->calls) return true;
    bool good = calls_make(&calls, numbers) || bench_complain(world, "out of memory");
    good = bench_all_true(world, good) && bench_good(world, expar_group_allgather(world->group, late->calls, calls.all,
                                                                                  (size_t)late->iters * late->bytes));
    out->known = good;
    for (int i = 0; i < late->iters && out->known; i++)
        out->known = add_call(&calls, fold, numbers, i);
    if (out->known) sum_up(&calls, numbers, out);
    calls_free(&calls);
    return good;
}
