/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of a run: for each format, number of threads or SMs, and token count a session is opened, and both
 * operations measured in it. */
#include "bench/bench.h"
#include "bench/frame/patterns.h"
#include "bench/low_latency/session.h"
#include <stdlib.h>

struct ll_result *ll_results_add(struct ll_results *results)
{
    if (results->count == results->room) {
        int room = results->room ? 2 * results->room : 16;
        struct ll_result *items = realloc(results->items, (size_t)room * sizeof *items);
        if (!items) return NULL;
        results->items = items;
        results->room = room;
    }
    results->items[results->count] = (struct ll_result){0};
    return &results->items[results->count++];
}

static bool run_isolated(struct ll_session *session, struct ll_results *results)
{
    const struct bench_options *options = session->options;
    const struct ll_format *format = session->format;
    if (options->dispatch && format->dispatched && !ll_case_dispatch(session, results)) return false;
    return !options->combine || !format->combined || ll_case_combine(session, results);
}

/* Loops come last: kernels read no clocks in them, and the counts of isolated calls are compared with their own. */
static bool run_cases(struct ll_session *session, struct ll_results *results)
{
    const struct bench_options *options = session->options;
    if (options->patterns & BENCH_ISOLATED && !run_isolated(session, results)) return false;
    return !bench_patterns_loop(options) || ll_case_loops(session, results);
}

/* One format of rows of one type and so many threads or SMs (0: not given), for all token counts. */
static bool run_tokens(const struct bench_world *world, const struct bench_options *options,
                       const struct ll_format *format, expar_dtype dtype, int workers, struct ll_results *results)
{
    struct ll_case_shape shape = {.problem = {.rank = world->rank,
                                              .num_ranks = world->size,
                                              .hidden = options->hidden,
                                              .topk = options->topk,
                                              .experts = options->experts,
                                              .dtype = dtype},
                                  .format = format,
                                  .workers = workers};
    for (int t = 0; t < options->num_tokens; t++) {
        struct ll_session session;
        shape.problem.tokens = options->tokens[t];
        bool good = ll_session_open(&session, world, options, &shape) && run_cases(&session, results);
        if (!ll_session_close(&session, good)) return false;
    }
    return true;
}

static bool run_format(const struct bench_world *world, const struct bench_options *options,
                       const struct ll_format *format, expar_dtype dtype, struct ll_results *results)
{
    for (int w = 0; w < options->num_workers; w++)
        if (!run_tokens(world, options, format, dtype, options->workers[w], results)) return false;
    return true;
}

static bool run_all(const struct bench_world *world, const struct bench_options *options, struct ll_results *results)
{
    const struct ll_options *ll = &options->ll;
    for (int d = 0; d < options->num_dtypes && ll->num_formats == 0; d++)
        if (!run_format(world, options, ll_format_plain(options->dtypes[d]), options->dtypes[d], results)) return false;
    for (int f = 0; f < ll->num_formats; f++) {
        const struct ll_format *format = &ll_formats[ll->formats[f]];
        const int count = format->plain ? 1 : options->num_dtypes;
        for (int d = 0; d < count; d++)
            if (!run_format(world, options, format, format->plain ? format->dtype : options->dtypes[d], results))
                return false;
    }
    return true;
}

static bool all_verified(const struct ll_results *results)
{
    for (int i = 0; i < results->count; i++)
        if (!results->items[i].verified) return false;
    return true;
}

int ll_run(const struct bench_world *world, const struct bench_options *options)
{
    struct ll_results results = {0};
    bool good = run_all(world, options, &results);
    if (good && world->rank == 0) good = ll_report(world, options, &results);
    good = good && all_verified(&results);
    free(results.items);
    return good ? 0 : 1;
}
