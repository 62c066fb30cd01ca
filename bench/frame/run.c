/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of a run: for each kind of rows, number of workers and token count a session is opened, and its cases are
 * measured. */
#include "bench/frame/patterns.h"
#include "bench/frame/report.h"
#include "bench/frame/session.h"
#include <stdlib.h>

struct bench_result *bench_results_add(struct bench_results *results)
{
    if (results->count == results->spare) {
        int spare = results->spare ? 2 * results->spare : 16;
        struct bench_result *items = realloc(results->items, (size_t)spare * sizeof *items);
        if (!items) return NULL;
        results->items = items;
        results->spare = spare;
    }
    results->items[results->count] = (struct bench_result){0};
    return &results->items[results->count++];
}

void bench_results_free(struct bench_results *results)
{
    for (int i = 0; i < results->count; i++)
        free(results->items[i].links.items);
    free(results->items);
    free(results->load.choices);
}

/* Counts how often each expert was chosen, on rank 0. */
static bool note_load(const struct bench_session *session, struct bench_results *results)
{
    const struct problem *problem = session->problem;
    struct bench_load *load = &results->load;
    if (session->world->rank != 0 || (load->choices && load->tokens >= problem->tokens)) return true;
    int64_t *choices = calloc((size_t)problem->experts, sizeof *choices);
    if (!choices) return bench_complain(session->world, "out of memory");
    const size_t slots = (size_t)problem->num_ranks * (size_t)problem->tokens * (size_t)problem->topk;
    for (size_t i = 0; i < slots; i++)
        if (problem->routing[i] >= 0) choices[problem->routing[i]]++;
    free(load->choices);
    *load = (struct bench_load){problem->tokens, choices};
    return true;
}

/* Runs the patterns. Loops come last, because kernels read no clocks in them, and the counts of isolated calls must not
   include theirs. */
static bool run_patterns(struct bench_session *session, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    const struct bench_site *site = bench_site_of(session);
    if (options->patterns & BENCH_ISOLATED && !session->mode->isolated(session, results)) return false;
    if (!bench_patterns_loop(options)) return true;
    return (!site->clocks || site->clocks(session, false)) && session->mode->loops(session, results);
}

struct run {
    const struct bench_world *world;
    const struct bench_options *options;
    const struct bench_mode *mode;
    int begun, sessions;
    struct bench_results results;
};

static bool run_rows(struct run *run, const struct bench_rows *rows)
{
    const struct bench_options *options = run->options;
    for (int i = 0; i < options->num_workers * options->num_tokens; i++) {
        struct bench_session session = {
            .world = run->world, .options = options, .mode = run->mode, .number = ++run->begun, .count = run->sessions};
        const bool good = bench_session_open(&session, rows, options->tokens[i % options->num_tokens],
                                             options->workers[i / options->num_tokens]) &&
                          note_load(&session, &run->results) && run_patterns(&session, &run->results);
        if (!bench_session_close(&session, good)) return false;
    }
    return true;
}

/* Checks the memory of the largest session, before all others. */
static bool check_memory(const struct run *run, const struct bench_rows *rows, int count)
{
    const struct bench_options *options = run->options;
    int64_t most = 0;
    int widest = 0;
    for (int i = 0; i < options->num_tokens; i++)
        if (options->tokens[i] > most) most = options->tokens[i];
    for (int i = 1; i < count; i++)
        if (expar_dtype_bytes(rows[i].dtype) > expar_dtype_bytes(rows[widest].dtype)) widest = i;
    struct bench_session session = {.world = run->world, .options = options, .mode = run->mode};
    return bench_session_check(&session, &rows[widest], most, options->workers[0]);
}

static bool run_all(struct run *run)
{
    const struct bench_site *site = run->world->device->sites[run->mode->number];
    struct bench_rows rows[BENCH_MAX_DTYPES * BENCH_MAX_FORMATS];
    if (site->check && !bench_all_true(run->world, site->check(run->world, run->options))) return false;
    const int count = run->mode->list_rows(run->options, rows);
    if (count > 0 && !check_memory(run, rows, count)) return false;
    run->sessions = count * run->options->num_workers * run->options->num_tokens;
    for (int i = 0; i < count; i++)
        if (!run_rows(run, &rows[i])) return false;
    return true;
}

int bench_run_mode(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode)
{
    struct run run = {.world = world, .options = options, .mode = mode};
    bool good = run_all(&run);
    if (good && world->rank == 0) good = bench_report(world, options, mode, &run.results);
    for (int i = 0; i < run.results.count; i++)
        good = good && run.results.items[i].verified;
    bench_results_free(&run.results);
    return good ? 0 : 1;
}
