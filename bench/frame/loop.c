/* SPDX-License-Identifier: Apache-2.0 */
/* Runs loops of calls, and takes a call's share of them and the host's time in each call. */
#include "bench/frame/loop.h"
#include "bench/frame/stats.h"
#include <stdlib.h>
#include <time.h>

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Waits for the call that had this place, if there is one. */
static bool await_place(struct bench_loop *loop, int place)
{
    expar_event *event = loop->under_way[place];
    if (!event) return true;
    bool good = bench_good(loop->world, expar_event_wait(event));
    expar_event_release(event);
    loop->under_way[place] = NULL;
    return good;
}

/* Waits for all calls that are under way; where one has failed, it only gives their events back: the group's abort ends
   them. */
static bool end_calls(struct bench_loop *loop, bool good)
{
    for (int place = 0; place < LOOP_CALLS_AHEAD; place++) {
        good = good && await_place(loop, place);
        expar_event_release(loop->under_way[place]);
        loop->under_way[place] = NULL;
    }
    return good;
}

/* Makes one call. On a GPU nobody waits for its event: calls have ended when the turn has synchronised the stream. */
static bool make_call(struct bench_loop *loop, int index, double *host_us)
{
    const bool on_gpu = loop->world->place.type == EXPAR_CUDA;
    expar_event *event = NULL;
    if (!await_place(loop, index % LOOP_CALLS_AHEAD)) return false;
    double start_us = now_us();
    bool good = loop->call(loop->context, index == loop->calls - 1, &event);
    if (on_gpu) expar_event_release(event);
    *host_us = now_us() - start_us;
    if (!on_gpu) loop->under_way[index % LOOP_CALLS_AHEAD] = event;
    return good;
}

static bool loop_run(void *context)
{
    struct bench_loop *loop = context;
    double *host_us = loop->host_us + (size_t)loop->turn * (size_t)loop->calls;
    bool good = true;
    for (int i = 0; i < loop->calls && good; i++)
        good = make_call(loop, i, &host_us[i]);
    return end_calls(loop, good);
}

static bool loop_after(void *context, bool check)
{
    struct bench_loop *loop = context;
    (void)check; /* the turn's number tells */
    return loop->after(loop->context, loop->turn++);
}

/* Finds the largest of a number over all ranks. */
static bool find_most(const struct bench_world *world, double mine, double *most)
{
    double *all = calloc((size_t)world->size, sizeof *all);
    bool good = all && bench_good(world, expar_group_allgather(world->group, &mine, all, sizeof mine));
    *most = mine;
    for (int rank = 0; rank < world->size && good; rank++)
        if (all[rank] > *most) *most = all[rank];
    free(all);
    return good;
}

static bool find_host_times(struct bench_loop *loop, struct bench_loop_times *times)
{
    double *measured = loop->host_us + loop->calls; /* the warm-up's come first */
    const struct bench_times mine = bench_summary(measured, BENCH_LOOPS * loop->calls);
    return find_most(loop->world, mine.median_us, &times->host_us) &&
           find_most(loop->world, mine.p99_us, &times->host_p99_us);
}

bool bench_loop_measure(const struct bench_world *world, const struct bench_options *options, const char *label,
                        struct bench_loop *loop, struct bench_loop_times *times)
{
    struct bench_options of_loops = *options;
    struct contender contender = {.run = loop_run, .after = loop_after, .context = loop};
    of_loops.warmup = 1;
    of_loops.iters = BENCH_LOOPS;
    loop->world = world;
    loop->turn = 0;
    loop->calls = options->iters;
    loop->host_us = calloc((size_t)(BENCH_LOOPS + 2) * (size_t)loop->calls, sizeof *loop->host_us);
    bool good = bench_all_true(world, loop->host_us || bench_complain(world, "out of memory")) &&
                bench_measure(world, &of_loops, label, &contender, 1) && find_host_times(loop, times);
    if (good) times->share = bench_times_share(&contender.times, loop->calls);
    free(loop->host_us);
    loop->host_us = NULL;
    return good;
}
