/* SPDX-License-Identifier: Apache-2.0 */
/* The memory and objects of one shape: routing, tensors with their contents, the buffer, the contenders. */
#include "bench/normal/session.h"
#include "bench/frame/routing.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

expar_tensor bench_tensor(const struct bench_world *world, const void *data, expar_dtype dtype, int64_t rows,
                          int64_t columns)
{
    expar_tensor tensor = expar_tensor_2d((void *)(uintptr_t)data, dtype, rows, columns);
    tensor.device = world->place;
    return tensor;
}

expar_dispatch_args bench_dispatch_args(const struct bench_session *session, expar_path path)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    int64_t tokens = problem->tokens;
    expar_dispatch_args args = EXPAR_DISPATCH_ARGS_INIT;
    args.x = bench_tensor(world, session->x, problem->dtype, tokens, problem->hidden);
    args.topk_idx = bench_tensor(world, session->idx, EXPAR_I32, tokens, problem->topk);
    args.topk_weights = bench_tensor(world, session->weights, EXPAR_F32, tokens, problem->topk);
    if (session->scales) args.x_scales = bench_tensor(world, session->scales, EXPAR_F32, tokens, problem->num_scales);
    args.num_experts = problem->experts;
    args.path = path;
    args.stream = world->stream;
    return args;
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

uint64_t bench_first_salt(const struct bench_session *session)
{
    return 2 * session->options->seed + 1;
}

uint64_t bench_measured_salt(const struct bench_session *session)
{
    return 2 * session->options->seed + 2;
}

/* Rows named 0 … count - 1 of this rank. */
static bool fill(const struct bench_session *session, uint64_t salt, int64_t count, void *rows)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    size_t bytes = (size_t)count * problem->row_bytes;
    unsigned char *draft = world->device->draft(world, rows, bytes);
    if (!draft) return bench_complain(world, "out of memory");
    for (int64_t i = 0; i < count; i++)
        pattern_row(problem->dtype, pattern_key(salt, problem->rank, i), problem->hidden,
                    draft + (size_t)i * problem->row_bytes);
    return world->device->commit(world, rows, draft, bytes);
}

bool bench_fill_x(const struct bench_session *session, uint64_t salt)
{
    return fill(session, salt, session->problem->tokens, session->x);
}

bool bench_fill_rows(const struct bench_session *session, uint64_t salt)
{
    return bench_fill_rows_at(session, salt, session->rows);
}

bool bench_fill_rows_at(const struct bench_session *session, uint64_t salt, void *rows)
{
    return fill(session, salt, session->problem->num_received, rows);
}

/* Shows what a call leaves unwritten. */
bool bench_spoil_y(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    size_t bytes = (size_t)session->problem->tokens * session->problem->row_bytes;
    void *draft = world->device->draft(world, session->y, bytes);
    if (!draft) return bench_complain(world, "out of memory");
    memset(draft, 0xff, bytes);
    return world->device->commit(world, session->y, draft, bytes);
}

/* What does not change from call to call: experts, weights, scales. */
static bool fill_routing(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    size_t slots = (size_t)problem->tokens * (size_t)problem->topk;
    int32_t *idx = world->device->draft(world, session->idx, slots * sizeof *idx);
    if (!idx) return bench_complain(world, "out of memory");
    memcpy(idx, problem_routing_of(problem, problem->rank), slots * sizeof *idx);
    if (!world->device->commit(world, session->idx, idx, slots * sizeof *idx)) return false;
    float *weights = world->device->draft(world, session->weights, slots * sizeof *weights);
    if (!weights) return bench_complain(world, "out of memory");
    for (size_t i = 0; i < slots; i++)
        weights[i] =
            problem_weight(problem->rank, (int64_t)(i / (size_t)problem->topk), (int)(i % (size_t)problem->topk));
    return world->device->commit(world, session->weights, weights, slots * sizeof *weights);
}

static bool fill_scales(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    size_t count = (size_t)problem->tokens * (size_t)problem->num_scales;
    if (!session->scales) return true;
    float *scales = world->device->draft(world, session->scales, count * sizeof *scales);
    if (!scales) return bench_complain(world, "out of memory");
    for (size_t i = 0; i < count; i++)
        scales[i] = problem_scale(problem->rank, (int64_t)(i / (size_t)problem->num_scales),
                                  (int)(i % (size_t)problem->num_scales));
    return world->device->commit(world, session->scales, scales, count * sizeof *scales);
}

bool bench_session_measure(const struct bench_session *session, const char *op, struct contender *contenders, int count)
{
    char label[64];
    snprintf(label, sizeof label, "%s, %lld tokens", op, (long long)session->problem->tokens);
    return bench_measure(session->world, session->options, label, contenders, count);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static struct problem *make_problem(const struct bench_session *session, const struct problem_shape *shape)
{
    const struct bench_options *options = session->options;
    struct routing_shape routing = {
        .num_ranks = shape->num_ranks, .tokens = shape->tokens, .topk = shape->topk, .experts = shape->experts};
    char error[512];
    int32_t *made = routing_make(options->routing, &routing, options->seed, error, sizeof error);
    if (made) return problem_create(shape, made);
    bench_complain(session->world, error);
    return NULL;
}

/* Nothing once something could not be had. */
static void *take(const struct bench_world *world, size_t bytes, bool *made)
{
    void *data = *made ? world->device->alloc(world, bytes) : NULL;
    if (*made && !data) *made = bench_complain(world, "out of memory");
    return data;
}

static bool make_tensors(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    size_t tokens = (size_t)problem->tokens, slots = tokens * (size_t)problem->topk;
    bool made = true;
    session->x = take(world, tokens * problem->row_bytes, &made);
    session->y = take(world, tokens * problem->row_bytes, &made);
    session->idx = take(world, slots * sizeof(int32_t), &made);
    session->weights = take(world, slots * sizeof(float), &made);
    if (problem->num_scales) session->scales = take(world, tokens * (size_t)problem->num_scales * sizeof(float), &made);
    return made && fill_routing(session) && fill_scales(session);
}

/* Room for the outputs that a session keeps, beside the two that the library plans for; 0: as it chooses. */
static int64_t pool_bytes(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    int64_t row = (int64_t)problem->row_bytes + 8 * problem->topk + 4 * problem->num_scales + 64;
    int held = session->world->device->held_outputs;
    return held ? (2 + held) * (problem->most_received * row + (1 << 20)) : 0;
}

static bool make_ep(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = problem->tokens;
    config.max_row_bytes = (int64_t)problem->row_bytes;
    config.max_topk = problem->topk;
    config.max_experts = problem->experts;
    config.pool_bytes = pool_bytes(session);
    config.device = world->place;
    if (world->place.type == EXPAR_CUDA)
        config.num_sms = session->workers;
    else
        config.num_threads = session->given_workers;
    return bench_good(world, expar_ep_create(world->group, &config, &session->ep));
}

static bool make_baseline(struct bench_session *session)
{
    const struct bench_baseline *baseline = session->world->baseline;
    if (!baseline) return true;
    session->baseline = baseline->open(session->problem, session->x, session->weights);
    return session->baseline || bench_complain(session->world, "out of memory for the baseline");
}

bool bench_session_open(struct bench_session *session, const struct bench_world *world,
                        const struct bench_options *options, const struct problem_shape *shape, int given_workers)
{
    const int workers = given_workers ? given_workers : world->device->default_workers(world);
    *session =
        (struct bench_session){.world = world, .options = options, .workers = workers, .given_workers = given_workers};
    session->problem = make_problem(session, shape);
    bool good = session->problem && make_tensors(session);
    good = bench_all_true(world, good) && make_ep(session);
    good = bench_all_true(world, good) && world->device->open(session) && make_baseline(session);
    return bench_all_true(world, good);
}

bool bench_session_close(struct bench_session *session, bool sound)
{
    const struct bench_world *world = session->world;
    void *const tensors[] = {session->x, session->y, session->idx, session->weights, session->scales};
    bool good = sound;
    if (session->baseline) world->baseline->close(session->baseline);
    world->device->close(session, sound);
    /* Whoever waits for this rank ends now, and the buffer goes without the others. */
    if (!sound) expar_group_abort(world->group);
    good = bench_good(world, expar_ep_destroy(session->ep)) && good;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        world->device->free(world, tensors[i]);
    problem_free(session->problem);
    return good;
}
