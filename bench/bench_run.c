/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of a run: for each token count the objects are made, then each operation, path and kind of dispatch is
 * measured. */
#include "bench.h"
#include "routing.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RESULTS (BENCH_MAX_SWEEP * 6) /* dispatch: two paths, cached or not; combine: two paths */

struct run {
    const struct bench_world *world;
    const struct bench_options *options;
    struct bench_result results[MAX_RESULTS];
    int count;
};

static bool complain(const struct bench_world *world, const char *what)
{
    fprintf(stderr, "expar bench: rank %d: %s\n", world->rank, what);
    return false;
}

static bool call_good(const struct bench_world *world, expar_status status)
{
    if (status == EXPAR_OK) return true;
    fprintf(stderr, "expar bench: rank %d: %s: %s\n", world->rank, expar_status_string(status), expar_last_error());
    return false;
}

/* Worker threads as the library chooses them (ep.h): EXPAR_THREADS, else 1 when ranks outnumber cores, else a fair
 * share. */
static int default_threads(int num_ranks)
{
    const char *given = getenv("EXPAR_THREADS");
    if (given && atoi(given) > 0) return atoi(given);
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return num_ranks > count ? 1 : count / num_ranks;
}

/* ---- session ---------------------------------------------------------------------------------------------------- */

static struct problem *make_problem(const struct run *run, int64_t tokens)
{
    const struct bench_options *options = run->options;
    struct routing_shape shape = {
        .num_ranks = run->world->size, .tokens = tokens, .topk = options->topk, .experts = options->experts};
    char error[512];
    int32_t *routing = routing_make(options->routing, &shape, options->seed, error, sizeof error);
    if (!routing) {
        complain(run->world, error);
        return NULL;
    }
    struct problem_shape problem = {.rank = run->world->rank,
                                    .num_ranks = run->world->size,
                                    .tokens = tokens,
                                    .hidden = options->hidden,
                                    .topk = options->topk,
                                    .experts = options->experts,
                                    .dtype = options->dtype};
    return problem_create(&problem, routing);
}

/* Private memory, touched, so that no page fault is measured. */
static void *make_rows(size_t count, size_t row_bytes)
{
    size_t bytes = (count * row_bytes + 4095) / 4096 * 4096 + 4096;
    void *rows = aligned_alloc(4096, bytes);
    if (rows) memset(rows, 0, bytes);
    return rows;
}

static bool make_memory(struct bench_session *session)
{
    const struct problem *problem = session->problem;
    size_t tokens = (size_t)problem->tokens, topk = (size_t)problem->topk;
    session->x = make_rows(tokens, problem->row_bytes);
    session->y = make_rows(tokens, problem->row_bytes);
    session->weights = calloc(tokens * topk + 1, sizeof *session->weights);
    if (!session->x || !session->y || !session->weights) return complain(session->world, "out of memory");
    for (size_t i = 0; i < tokens * topk; i++)
        session->weights[i] = problem_weight(problem->rank, (int64_t)(i / topk), (int)(i % topk));
    size_t bytes = (size_t)(problem->most_received + 1) * problem->row_bytes;
    void *rows;
    if (!call_good(session->world, expar_malloc(session->world->group, bytes, &rows))) return false;
    session->rows = rows;
    memset(rows, 0, bytes);
    return true;
}

static bool make_ep(struct bench_session *session)
{
    const struct problem *problem = session->problem;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = problem->tokens;
    config.max_row_bytes = (int64_t)problem->row_bytes;
    config.max_topk = problem->topk;
    config.max_experts = problem->experts;
    config.num_threads = session->threads;
    return call_good(session->world, expar_ep_create(session->world->group, &config, &session->ep));
}

static bool make_contenders(struct bench_session *session)
{
    const struct bench_baseline *baseline = session->world->baseline;
    session->push = copy_limit_push(session);
    session->pull = copy_limit_pull(session);
    if (!session->push || !session->pull) return complain(session->world, "cannot prepare the copies");
    if (!baseline) return true;
    session->baseline = baseline->open(session->problem, session->x, session->weights);
    return session->baseline || complain(session->world, "out of memory for the baseline");
}

static bool session_open(struct bench_session *session, const struct run *run, int64_t tokens)
{
    *session = (struct bench_session){.world = run->world, .options = run->options};
    session->threads = run->options->threads ? run->options->threads : default_threads(run->world->size);
    session->problem = make_problem(run, tokens);
    bool good = session->problem && make_memory(session) && make_ep(session) && make_contenders(session);
    return bench_all_true(run->world, good);
}

/* After a failure nothing collective is tried any more. */
static bool session_close(struct bench_session *session, bool sound)
{
    bool good = sound;
    if (session->baseline) session->world->baseline->close(session->baseline);
    copy_limit_free(session->pull);
    copy_limit_free(session->push);
    if (sound) {
        good = call_good(session->world, expar_ep_destroy(session->ep));
        good = call_good(session->world, expar_free(session->world->group, session->rows)) && good;
    }
    free(session->weights);
    free(session->y);
    free(session->x);
    problem_free(session->problem);
    return good;
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static bool run_path(struct run *run, struct bench_session *session, expar_path path)
{
    const struct bench_options *options = run->options;
    for (int cached = 0; cached < 2 && options->dispatch; cached++) {
        enum bench_cached other = cached ? BENCH_UNCACHED : BENCH_CACHED;
        if (options->cached == other) continue;
        if (!bench_case_dispatch(session, path, cached, &run->results[run->count])) return false;
        run->count++;
    }
    if (!options->combine) return true;
    if (!bench_case_combine(session, path, &run->results[run->count])) return false;
    run->count++;
    return true;
}

static bool run_tokens(struct run *run, int64_t tokens)
{
    struct bench_session session;
    const struct bench_options *options = run->options;
    bool good = session_open(&session, run, tokens);
    if (good && options->all_paths)
        good = run_path(run, &session, EXPAR_PATH_DIRECT) && run_path(run, &session, EXPAR_PATH_QUEUE);
    else if (good)
        good = run_path(run, &session, options->path);
    return session_close(&session, good);
}

static bool all_verified(const struct run *run)
{
    for (int i = 0; i < run->count; i++)
        if (!run->results[i].verified) return false;
    return true;
}

int bench_run(const struct bench_world *world, const struct bench_options *options)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run) return complain(world, "out of memory") ? 0 : 1;
    run->world = world;
    run->options = options;
    bool good = true;
    for (int i = 0; i < options->num_tokens && good; i++)
        good = run_tokens(run, options->tokens[i]);
    if (good && world->rank == 0) {
        int threads = options->threads ? options->threads : default_threads(world->size);
        bench_report(options, world->size, threads, run->results, run->count);
    }
    good = good && all_verified(run);
    free(run);
    return good ? 0 : 1;
}
