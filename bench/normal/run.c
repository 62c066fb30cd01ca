/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of a run: for each dtype, number of workers and token count a session is opened, and each operation
 * measured by each path. */
#include "bench/bench.h"
#include "bench/frame/patterns.h"
#include "bench/normal/session.h"
#include <stdlib.h>

struct bench_result *bench_results_add(struct bench_results *results)
{
    if (results->count == results->room) {
        int room = results->room ? 2 * results->room : 16;
        struct bench_result *items = realloc(results->items, (size_t)room * sizeof *items);
        if (!items) return NULL;
        results->items = items;
        results->room = room;
    }
    results->items[results->count] = (struct bench_result){0};
    return &results->items[results->count++];
}

/* 8-bit rows are carried, not added. */
static bool combines(const struct bench_session *session)
{
    return session->options->combine && expar_dtype_bytes(session->problem->dtype) > 1;
}

static bool run_isolated(struct bench_session *session, expar_path path, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    if ((options->dispatch || options->layout) && !bench_case_dispatch(session, path, results)) return false;
    return !combines(session) || bench_case_combine(session, path, results);
}

static bool run_paths(struct bench_session *session,
                      bool (*run)(struct bench_session *, expar_path, struct bench_results *),
                      struct bench_results *results)
{
    const struct bench_options *options = session->options;
    if (!options->all_paths) return run(session, options->path, results);
    return run(session, EXPAR_PATH_DIRECT, results) && run(session, EXPAR_PATH_QUEUE, results);
}

/* Loops come last: kernels read no clocks in them. */
static bool run_patterns(struct bench_session *session, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    if (options->patterns & BENCH_ISOLATED && !run_paths(session, run_isolated, results)) return false;
    return !bench_patterns_loop(options) || run_paths(session, bench_case_loops, results);
}

static bool run_shape(const struct bench_world *world, const struct bench_options *options,
                      const struct problem_shape *shape, int given_workers, struct bench_results *results)
{
    struct bench_session session;
    bool good = bench_session_open(&session, world, options, shape, given_workers) && run_patterns(&session, results);
    return bench_session_close(&session, good);
}

static bool run_all(const struct bench_world *world, const struct bench_options *options, struct bench_results *results)
{
    struct problem_shape shape = {.rank = world->rank,
                                  .num_ranks = world->size,
                                  .hidden = options->hidden,
                                  .topk = options->topk,
                                  .experts = options->experts};
    for (int d = 0; d < options->num_dtypes; d++)
        for (int w = 0; w < options->num_workers; w++)
            for (int t = 0; t < options->num_tokens; t++) {
                shape.dtype = options->dtypes[d];
                shape.tokens = options->tokens[t];
                if (!run_shape(world, options, &shape, options->workers[w], results)) return false;
            }
    return true;
}

static bool all_verified(const struct bench_results *results)
{
    for (int i = 0; i < results->count; i++)
        if (!results->items[i].verified) return false;
    return true;
}

int bench_run(const struct bench_world *world, const struct bench_options *options)
{
    struct bench_results results = {0};
    bool good = !world->device->check || bench_all_true(world, world->device->check(world, options));
    good = good && run_all(world, options, &results);
    if (good && world->rank == 0) good = bench_report(world, options, &results);
    good = good && all_verified(&results);
    free(results.items);
    return good ? 0 : 1;
}
