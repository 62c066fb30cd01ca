/* SPDX-License-Identifier: Apache-2.0 */
/* The table of normal mode: the tensors and the buffer of a session, and its cases. */
#include "bench/normal/mode.h"
#include "bench/frame/measure.h"
#include "bench/frame/patterns.h"
#include "bench/normal/late.h"
#include <stdlib.h>

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static size_t scales_bytes(const struct bench_session *session)
{
    return (size_t)session->problem->tokens * (size_t)session->problem->num_scales * sizeof(float);
}

static void write_scales(const struct bench_session *session, const void *how, void *draft)
{
    const struct problem *problem = session->problem;
    float *scales = draft;
    (void)how;
    for (int64_t token = 0; token < problem->tokens; token++)
        for (int s = 0; s < problem->num_scales; s++)
            *scales++ = problem_scale(problem->rank, token, s);
}

static bool make(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    if (!session->problem->num_scales) return true;
    session->scales = world->device->alloc(world, scales_bytes(session));
    if (!session->scales) return bench_complain(world, "out of memory");
    return bench_session_write(session, session->scales, scales_bytes(session), write_scales, NULL);
}

/* Returns the bytes for outputs that a session keeps in addition to the two that the library plans for. 0: the library
   chooses. */
static int64_t pool_bytes(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    int64_t row = (int64_t)problem->row_bytes * (coded_is_wanted(session) ? 2 : 1) + 8 * problem->topk +
                  4 * problem->num_scales + 64;
    int held = session->world->device->held_outputs;
    return held ? (2 + held) * (problem->most_received * row + (1 << 20)) : 0;
}

static expar_ep_config config_of(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = problem->tokens;
    config.max_row_bytes = (int64_t)problem->row_bytes * (coded_is_wanted(session) ? 2 : 1);
    config.max_topk = problem->topk;
    config.max_experts = problem->experts;
    config.pool_bytes = pool_bytes(session);
    config.device = world->place;
    if (world->place.type == EXPAR_CUDA)
        config.num_sms = session->workers;
    else
        config.num_threads = session->given_workers;
    return config;
}

static bool create(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const expar_ep_config config = config_of(session);
    return bench_good(world, expar_ep_create(world->group, &config, &session->ep));
}

/* Counts the buffer, the rows that combines read, and an output: on the CPU it is not in the buffer, and on GPUs the
   copies need as much again. */
static uint64_t bytes(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    expar_ep_config config = config_of(session);
    size_t buffer = 0;
    config.ranks_per_node = session->world->nodes > 1 ? session->world->each : 0;
    if (expar_ep_get_buffer_size(&config, problem->num_ranks, &buffer) != EXPAR_OK) buffer = 0;
    if (coded_is_wanted(session)) buffer += coded_bytes(session);
    return buffer + 2 * (uint64_t)problem->most_received * problem->row_bytes;
}

static bool end(struct bench_session *session)
{
    bool good = bench_good(session->world, expar_ep_destroy(session->ep));
    session->world->device->free(session->world, session->scales);
    return good;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static int limit_add(struct bench_contest *contest, struct contender *contenders)
{
    const bool combine = bench_contest_kind(contest)->combines;
    return bench_site_of(contest->session)->add_copies(contest->session, combine, contenders);
}

/* Verifies the output of the copies. Copies of less data, or to other places, would be no limit. */
static bool limit_verify(const struct bench_contest *contest, uint64_t salt)
{
    const struct bench_session *session = contest->session;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const bool combine = bench_contest_kind(contest)->combines;
    if (world->nodes > 1) return nodes_limit_verify(session, combine);
    if (combine) return true;
    const void *rows = world->device->view(world, session->pushed, (size_t)problem->num_received * problem->row_bytes);
    bool good = rows && verify_rows(problem, salt, rows);
    world->device->unview(world, rows);
    return good;
}

/* ---- isolated calls ---------------------------------------------------------------------------------------------- */

static struct normal_call call_of(struct bench_session *session, const char *op, struct bench_kind kind,
                                  expar_ep_path path)
{
    return (struct normal_call){
        .frame = {.session = session, .kind = kind, .op = op, .verified = true}, .path = path, .direct = true};
}

static bool wants_dispatch(const struct bench_session *session, bool cached)
{
    const struct bench_options *options = session->options;
    return options->dispatch && options->cached != (cached ? BENCH_UNCACHED : BENCH_CACHED);
}

/* Adds the difference of the two dispatches, iteration by iteration. It may be below 0 if noise is larger. */
static bool add_layout(const struct normal_call *fresh, const struct normal_call *cached, struct bench_results *results)
{
    const struct bench_session *session = fresh->frame.session;
    const int iters = session->options->iters;
    double *more_us = fresh->frame.series_us;
    struct bench_result *result = bench_results_add(results);
    if (!result) return bench_complain(session->world, "out of memory");
    for (int i = 0; i < iters; i++)
        more_us[i] -= cached->frame.series_us[i];
    *result = (struct bench_result){.op = "layout",
                                    .path = bench_all_true(session->world, fresh->direct) ? "direct" : "queue",
                                    .dtype = session->problem->dtype,
                                    .workers = session->workers,
                                    .tokens = session->problem->tokens,
                                    .expar = bench_summary(more_us, iters)};
    result->verified = bench_all_true(session->world, fresh->frame.verified && cached->frame.verified);
    return true;
}

static bool measure_dispatches(struct bench_session *session, expar_ep_path path, struct bench_results *results)
{
    const bool layout = session->options->layout;
    struct normal_call calls[2];
    struct bench_contest contest = {.session = session};
    bool good = true;
    for (int cached = 0; cached < 2; cached++) {
        struct normal_call *call = &calls[cached];
        const struct bench_kind kind = {.pattern = BENCH_ISOLATED, .dispatches = true, .cached = cached};
        *call = call_of(session, "dispatch", kind, path);
        call->frame.unreported = !wants_dispatch(session, cached);
        if (!layout && call->frame.unreported) continue;
        contest.calls[contest.num_calls++] = &call->frame;
        if (layout) call->frame.series_us = calloc((size_t)session->options->iters, sizeof(double));
        good = good && (!layout || call->frame.series_us);
    }
    good = bench_all_true(session->world, good || bench_complain(session->world, "out of memory"));
    good = good && bench_isolated(&contest, 1, results) && (!layout || add_layout(&calls[0], &calls[1], results));
    free(calls[0].frame.series_us);
    free(calls[1].frame.series_us);
    return good;
}

static bool measure_combines(struct bench_session *session, expar_ep_path path, struct bench_results *results)
{
    const struct bench_kind kind = {.pattern = BENCH_ISOLATED, .combines = true};
    struct normal_call call = call_of(session, "combine", kind, path);
    struct bench_contest contest = {.session = session, .calls = {&call.frame}, .num_calls = 1};
    return bench_isolated(&contest, 1, results);
}

/* Returns whether rows are added; 8-bit rows are only carried. */
static bool adds(const struct bench_session *session)
{
    return expar_dtype_bytes(session->problem->dtype) > 1;
}

static bool isolated_by(struct bench_session *session, expar_ep_path path, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    if ((options->dispatch || options->layout) && !measure_dispatches(session, path, results)) return false;
    return !options->combine || !adds(session) || measure_combines(session, path, results);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static bool measure_loop(struct bench_session *session, const char *op, struct bench_kind kind, expar_ep_path path,
                         struct bench_results *results)
{
    struct normal_call call = call_of(session, op, kind, path);
    return bench_loops(&call.frame, results);
}

/* Measures the loops of a path. The library chooses the path, unless it is the queue. */
static bool loops_by(struct bench_session *session, expar_ep_path path, struct bench_results *results)
{
    const struct bench_options *options = session->options;
    const bool steady = options->patterns & BENCH_STEADY, layer = options->patterns & BENCH_LAYER;
    const expar_ep_path way = path == EXPAR_EP_PATH_QUEUE ? path : EXPAR_EP_PATH_AUTO;
    for (int cached = 0; cached < 2; cached++) {
        const struct bench_kind kind = {.pattern = BENCH_STEADY, .dispatches = true, .cached = cached};
        if (steady && wants_dispatch(session, cached) && !measure_loop(session, "dispatch", kind, way, results))
            return false;
    }
    const struct bench_kind combines = {.pattern = BENCH_STEADY, .combines = true},
                            layers = {.pattern = BENCH_LAYER, .dispatches = true, .combines = true, .cached = true};
    if (!adds(session)) return true;
    if (steady && options->combine && !measure_loop(session, "combine", combines, way, results)) return false;
    return !layer || measure_loop(session, "layer", layers, way, results);
}

/* Measures pairs with a handle, and without one as --cached says. */
static bool pairs_by(struct bench_session *session, expar_ep_path path, struct bench_results *results)
{
    const expar_ep_path way = path == EXPAR_EP_PATH_QUEUE ? path : EXPAR_EP_PATH_AUTO;
    for (int cached = 0; cached < 2; cached++) {
        const struct bench_kind kind = {
            .pattern = BENCH_PERIOD, .dispatches = true, .combines = true, .cached = cached};
        struct normal_call call = call_of(session, "pair", kind, way);
        if (wants_dispatch(session, cached) && !bench_period_measure(&call.frame, results)) return false;
    }
    return true;
}

/* ---- the mode ---------------------------------------------------------------------------------------------------- */

static bool by_paths(struct bench_session *session,
                     bool (*run)(struct bench_session *, expar_ep_path, struct bench_results *),
                     struct bench_results *results)
{
    const struct bench_options *options = session->options;
    if (!options->all_paths) return run(session, options->path, results);
    return run(session, EXPAR_EP_PATH_DIRECT, results) && run(session, EXPAR_EP_PATH_QUEUE, results);
}

static bool isolated(struct bench_session *session, struct bench_results *results)
{
    return by_paths(session, isolated_by, results);
}

static bool loops(struct bench_session *session, struct bench_results *results)
{
    if (!by_paths(session, loops_by, results)) return false;
    return !bench_patterns_period(session->options) || by_paths(session, pairs_by, results);
}

static int list_rows(const struct bench_options *options, struct bench_rows *rows)
{
    for (int i = 0; i < options->num_dtypes; i++)
        rows[i] = (struct bench_rows){.dtype = options->dtypes[i]};
    return options->num_dtypes;
}

const struct bench_mode normal_mode = {
    .number = BENCH_NORMAL,
    .name = "normal",
    .title = "",
    .label = "",
    .spans = &normal_spans,
    .report = &normal_report,
    .list_rows = list_rows,
    .isolated = isolated,
    .loops = loops,
    .make = make,
    .create = create,
    .end = end,
    .bytes = bytes,
    .open = normal_open,
    .close = normal_close,
    .fill = normal_fill,
    .dispatch = normal_dispatch,
    .combine = normal_combine,
    .in_loop = normal_in_loop,
    .ended = normal_ended,
    .verify = normal_verify,
    .verify_baseline = normal_verify_baseline,
    .release = normal_release,
    .sent_right = nodes_sent_right,
    .flows = normal_flows,
    .amounts = normal_amounts,
    .describe = normal_describe,
    .limit_add = limit_add,
    .limit_verify = limit_verify,
};
