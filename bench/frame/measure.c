/* SPDX-License-Identifier: Apache-2.0 */
/* Turns, clocks, and the collection of all ranks' times. */
#include "bench/frame/measure.h"
#include "bench/frame/stats.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

struct progress {
    bool shown;
    const char *label;
    int total;
    int64_t start_ns, next_ns;
};

static struct progress progress_start(const struct bench_world *world, const char *label, int total)
{
    int64_t now = now_ns();
    bool shown = world->rank == 0 && isatty(STDERR_FILENO);
    return (struct progress){
        .shown = shown, .label = label, .total = total, .start_ns = now, .next_ns = now + 500000000};
}

static void progress_update(struct progress *progress, int done)
{
    int64_t now = now_ns();
    if (!progress->shown || now < progress->next_ns || done == 0) return;
    double left_s = (double)(now - progress->start_ns) / done * (progress->total - done) * 1e-9;
    fprintf(stderr, "\r%s: %d of %d iterations, %.0f s left \033[K", progress->label, done, progress->total, left_s);
    progress->next_ns = now + 200000000;
}

static void progress_end(const struct progress *progress)
{
    if (progress->shown) fprintf(stderr, "\r\033[K");
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* Runs a turn. check: this is the turn after the timed ones. */
static bool take_turn(const struct bench_world *world, struct contender *contender, bool check, struct bench_span *span)
{
    bool good = world->device->turn(world, contender, span);
    if (contender->untimed) *span = (struct bench_span){.start_ns = INT64_MAX, .end_ns = INT64_MIN};
    return good && (!contender->after || contender->after(contender->context, check));
}

/* spans: [count][iters]. Results are checked in a turn of its own after the timed ones. On GPUs the next call after a
   check of many rows took 200 µs longer than others. */
static bool take_turns(const struct bench_world *world, const struct bench_options *options, const char *label,
                       struct contender *contenders, int count, struct bench_span *spans)
{
    struct progress progress = progress_start(world, label, options->warmup + options->iters);
    bool good = true;
    for (int i = -options->warmup; i <= options->iters && good; i++) {
        progress_update(&progress, i + options->warmup);
        for (int c = 0; c < count && good; c++) {
            struct bench_span untimed, *span = &spans[(size_t)c * (size_t)options->iters];
            /* Warm-up is overwritten by the first measured iteration. */
            span = i == options->iters ? &untimed : span + (i < 0 ? 0 : i);
            good = take_turn(world, &contenders[c], i == options->iters, span);
        }
    }
    progress_end(&progress);
    return good;
}

/* ---- summaries --------------------------------------------------------------------------------------------------- */

/* Computes the time of each iteration: last end − first start. all: [size][iters]. */
static void iteration_times(const struct bench_span *all, int size, int iters, double *times_us)
{
    for (int i = 0; i < iters; i++) {
        struct bench_span whole = all[i];
        for (int rank = 1; rank < size; rank++) {
            const struct bench_span *span = &all[(size_t)rank * (size_t)iters + (size_t)i];
            if (span->start_ns < whole.start_ns) whole.start_ns = span->start_ns;
            if (span->end_ns > whole.end_ns) whole.end_ns = span->end_ns;
        }
        times_us[i] = (double)(whole.end_ns - whole.start_ns) * 1e-3;
    }
}

struct bench_times bench_summary(double *times_us, int count)
{
    stats_sort(times_us, count);
    return (struct bench_times){.median_us = stats_median(times_us, count),
                                .min_us = times_us[0],
                                .p99_us = stats_p99(times_us, count),
                                .spread = stats_spread(times_us, count)};
}

struct bench_times bench_times_share(const struct bench_times *times, int count)
{
    struct bench_times share = *times;
    share.median_us /= count;
    share.min_us /= count;
    share.p99_us /= count;
    share.slowest_us /= count;
    share.mean_rank_us /= count;
    return share;
}

/* Finds the figures of ranks. Ranks whose clocks do not count have none. all: [size][iters]; times_us: scratch. */
static void rank_times(const struct bench_span *all, int size, int iters, double *times_us, struct bench_times *out)
{
    int counted = 0;
    double sum_us = 0;
    for (int rank = 0; rank < size; rank++) {
        const struct bench_span *spans = &all[(size_t)rank * (size_t)iters];
        if (spans->start_ns > spans->end_ns) continue;
        for (int i = 0; i < iters; i++)
            times_us[i] = (double)(spans[i].end_ns - spans[i].start_ns) * 1e-3;
        stats_sort(times_us, iters);
        const double median_us = stats_median(times_us, iters);
        if (counted == 0 || median_us > out->slowest_us) {
            out->slowest_us = median_us;
            out->slowest_rank = rank;
        }
        sum_us += median_us;
        counted++;
    }
    out->mean_rank_us = counted ? sum_us / counted : 0;
}

static bool summarise(const struct bench_world *world, const struct bench_span *mine, int iters,
                      struct contender *contender)
{
    size_t bytes = (size_t)iters * sizeof *mine;
    struct bench_span *all = malloc(bytes * (size_t)world->size);
    double *times_us = malloc((size_t)iters * sizeof *times_us);
    bool good = all && times_us && bench_good(world, expar_group_allgather(world->group, mine, all, bytes));
    if (good) {
        iteration_times(all, world->size, iters, times_us);
        if (contender->series_us) memcpy(contender->series_us, times_us, (size_t)iters * sizeof *times_us);
        contender->times = bench_summary(times_us, iters);
        rank_times(all, world->size, iters, times_us, &contender->times);
    }
    free(times_us);
    free(all);
    return good;
}

bool bench_measure(const struct bench_world *world, const struct bench_options *options, const char *label,
                   struct contender *contenders, int count)
{
    size_t iters = (size_t)options->iters;
    struct bench_span *spans = calloc((size_t)count * iters, sizeof *spans);
    bool good = spans && take_turns(world, options, label, contenders, count, spans);
    for (int c = 0; c < count && good; c++)
        good = summarise(world, &spans[(size_t)c * iters], options->iters, &contenders[c]);
    free(spans);
    return good;
}

bool bench_cpu_turn(const struct bench_world *world, struct contender *contender, struct bench_span *span)
{
    if (!bench_good(world, expar_barrier_all(world->group))) return false;
    if (contender->settled && !bench_good(world, expar_barrier_all(world->group))) return false;
    if (contender->before && !contender->before(contender->context)) return false;
    span->start_ns = now_ns();
    bool good = contender->run(contender->context);
    span->end_ns = now_ns();
    return good;
}
