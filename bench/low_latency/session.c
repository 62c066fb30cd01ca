/* SPDX-License-Identifier: Apache-2.0 */
/* The memory and objects of one shape and format: routing, tensors with their contents, the buffer, the contenders. */
#include "bench/low_latency/session.h"
#include "bench/frame/routing.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As the device has it. */
expar_tensor ll_tensor(const struct ll_session *session, void *data, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor tensor = expar_tensor_2d(data, dtype, rows, columns);
    tensor.device = session->world->place;
    return tensor;
}

expar_ll_dispatch_args ll_dispatch_args_of(const struct ll_session *session)
{
    const struct problem *problem = session->problem;
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    args.x = ll_tensor(session, session->x, problem->dtype, problem->tokens, problem->hidden);
    args.topk_idx = ll_tensor(session, session->idx, EXPAR_I32, problem->tokens, problem->topk);
    args.stream = session->world->stream;
    args.format = session->format->dispatched ? session->format->wire : EXPAR_LL_PLAIN;
    return args;
}

static expar_tensor rows_tensor(const struct ll_session *session)
{
    const struct problem *problem = session->problem;
    const struct ll_layout *layout = session->layout;
    expar_tensor x = ll_tensor(session, session->rows, problem->dtype, layout->rows_per_expert, problem->hidden);
    x.ndim = 3;
    x.shape[0] = layout->local_experts;
    x.shape[1] = layout->rows_per_expert;
    x.shape[2] = problem->hidden;
    x.strides[0] = layout->rows_per_expert * problem->hidden;
    x.strides[1] = problem->hidden;
    x.strides[2] = 1;
    return x;
}

expar_ll_combine_args ll_combine_args_of(const struct ll_session *session)
{
    const struct problem *problem = session->problem;
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    args.x = rows_tensor(session);
    args.topk_idx = ll_tensor(session, session->idx, EXPAR_I32, problem->tokens, problem->topk);
    args.topk_weights = ll_tensor(session, session->weights, EXPAR_F32, problem->tokens, problem->topk);
    args.format = session->format->combined ? session->format->wire : EXPAR_LL_PLAIN;
    args.stream = session->world->stream;
    args.out = ll_tensor(session, session->y, problem->dtype, problem->tokens, problem->hidden);
    return args;
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

uint64_t ll_first_salt(const struct ll_session *session)
{
    return 2 * session->options->seed + 1;
}

uint64_t ll_measured_salt(const struct ll_session *session)
{
    return 2 * session->options->seed + 2;
}

static bool no_memory(const struct ll_session *session)
{
    return bench_complain(session->world, "out of memory");
}

bool ll_fill_x(const struct ll_session *session, uint64_t salt)
{
    const struct problem *problem = session->problem;
    const struct bench_device *device = session->world->device;
    const size_t bytes = (size_t)problem->tokens * problem->row_bytes;
    unsigned char *draft = device->draft(session->world, session->x, bytes);
    if (!draft) return no_memory(session);
    for (int64_t t = 0; t < problem->tokens; t++)
        pattern_row(problem->dtype, pattern_key(salt, problem->rank, t), problem->hidden,
                    draft + (size_t)t * problem->row_bytes);
    return device->commit(session->world, session->x, draft, bytes);
}

/* Half of what the pattern says, below 1 in magnitude: LogFMT codes no others. */
static void halve(expar_dtype dtype, int hidden, void *row)
{
    uint16_t *halves = row;
    uint32_t *words = row;
    for (int j = 0; j < hidden; j++)
        if (dtype == EXPAR_F32)
            words[j] -= UINT32_C(1) << 23;
        else
            halves[j] = (uint16_t)(halves[j] - (dtype == EXPAR_BF16 ? 1 << 7 : 1 << 10));
}

static bool fill_rows_of(const struct ll_session *session, uint64_t salt, int local)
{
    const struct problem *problem = session->problem;
    const struct bench_device *device = session->world->device;
    const struct ll_layout *layout = session->layout;
    const int expert = problem->rank * layout->local_experts + local;
    const size_t bytes = (size_t)layout->counts[expert] * problem->row_bytes;
    unsigned char *first =
        (unsigned char *)session->rows + (size_t)(local * layout->rows_per_expert) * problem->row_bytes;
    unsigned char *draft = device->draft(session->world, first, bytes);
    if (!draft) return no_memory(session);
    for (int32_t i = 0; i < layout->counts[expert]; i++) {
        unsigned char *at = draft + (size_t)i * problem->row_bytes;
        pattern_row(problem->dtype, pattern_key(salt, expert, i), problem->hidden, at);
        halve(problem->dtype, problem->hidden, at);
    }
    return device->commit(session->world, first, draft, bytes);
}

bool ll_fill_rows(const struct ll_session *session, uint64_t salt)
{
    bool good = true;
    for (int l = 0; l < session->layout->local_experts && good; l++)
        good = fill_rows_of(session, salt, l);
    return good;
}

bool ll_spoil_y(const struct ll_session *session)
{
    const struct bench_device *device = session->world->device;
    const size_t bytes = (size_t)session->problem->tokens * session->problem->row_bytes;
    void *draft = device->draft(session->world, session->y, bytes);
    if (!draft) return no_memory(session);
    memset(draft, 0xff, bytes);
    return device->commit(session->world, session->y, draft, bytes);
}

static bool fill_idx(const struct ll_session *session)
{
    const struct problem *problem = session->problem;
    const struct bench_device *device = session->world->device;
    const size_t bytes = (size_t)problem->tokens * (size_t)problem->topk * sizeof *session->idx;
    int32_t *draft = device->draft(session->world, session->idx, bytes);
    if (!draft) return no_memory(session);
    memcpy(draft, problem_routing_of(problem, problem->rank), bytes);
    return device->commit(session->world, session->idx, draft, bytes);
}

static bool fill_weights(const struct ll_session *session)
{
    const struct problem *problem = session->problem;
    const struct bench_device *device = session->world->device;
    const size_t slots = (size_t)problem->tokens * (size_t)problem->topk, topk = (size_t)problem->topk;
    float *draft = device->draft(session->world, session->weights, slots * sizeof *draft);
    if (!draft) return no_memory(session);
    for (size_t i = 0; i < slots; i++)
        draft[i] = problem_weight(problem->rank, (int64_t)(i / topk), (int)(i % topk));
    return device->commit(session->world, session->weights, draft, slots * sizeof *draft);
}

bool ll_session_measure(const struct ll_session *session, const char *op, struct contender *contenders, int count)
{
    char label[64];
    for (int i = 0; i < count; i++)
        contenders[i].settled = true;
    snprintf(label, sizeof label, "ll %s, %lld tokens", op, (long long)session->problem->tokens);
    return bench_measure(session->world, session->options, label, contenders, count);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static struct problem *make_problem(const struct ll_session *session, const struct problem_shape *shape)
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

static bool make_tensors(struct ll_session *session)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const size_t tokens = (size_t)problem->tokens, slots = tokens * (size_t)problem->topk;
    session->layout = ll_layout_create(problem);
    if (!session->layout) return no_memory(session);
    session->rows_bytes =
        (size_t)session->layout->local_experts * (size_t)session->layout->rows_per_expert * problem->row_bytes;
    session->x = world->device->alloc(world, tokens * problem->row_bytes);
    session->y = world->device->alloc(world, tokens * problem->row_bytes);
    session->idx = world->device->alloc(world, slots * sizeof *session->idx);
    session->weights = world->device->alloc(world, slots * sizeof *session->weights);
    session->rows = world->device->ll->reserve(world, session->rows_bytes);
    if (!session->x || !session->y || !session->idx || !session->weights || !session->rows) return no_memory(session);
    return fill_idx(session) && fill_weights(session) && ll_fill_rows(session, ll_first_salt(session));
}

static bool make_ll(struct ll_session *session)
{
    const struct bench_options *options = session->options;
    const struct problem *problem = session->problem;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = (int32_t)(problem->tokens ? problem->tokens : 1);
    config.hidden = problem->hidden;
    config.num_topk = problem->topk;
    config.num_experts = problem->experts;
    config.max_element_bytes = (int32_t)expar_dtype_bytes(problem->dtype);
    config.num_threads = session->world->place.type == EXPAR_CUDA ? 0 : session->workers;
    config.num_sms = session->world->place.type == EXPAR_CUDA ? session->workers : 0;
    config.device = session->world->place;
    config.sums = (options->ll.exact ? 1 << EXPAR_LL_EXACT : 0) | (options->ll.reduced ? 1 << EXPAR_LL_REDUCED : 0);
    return bench_good(session->world, expar_ll_create(session->world->group, &config, &session->ll));
}

/* MPI carries rows as they are. */
static bool make_baseline(struct ll_session *session)
{
    const struct ll_baseline *baseline = session->world->ll_baseline;
    if (!baseline || !session->format->plain) return true;
    session->baseline = baseline->open(session->problem, session->layout, session->x, session->rows, session->weights);
    return session->baseline || bench_complain(session->world, "out of memory for the baseline");
}

bool ll_session_open(struct ll_session *session, const struct bench_world *world, const struct bench_options *options,
                     const struct ll_case_shape *shape)
{
    const int workers = shape->workers ? shape->workers : world->device->ll->default_workers(world);
    *session = (struct ll_session){.world = world, .options = options, .format = shape->format, .workers = workers};
    session->problem = make_problem(session, &shape->problem);
    bool good = session->problem && make_tensors(session);
    good = bench_all_true(world, good) && make_ll(session);
    good = bench_all_true(world, good) && make_baseline(session);
    good = good && (!world->device->ll->clocks || world->device->ll->clocks(session, !options->unstamped));
    good = bench_all_true(world, good);
    if (!good || world->size == 1) return good;
    session->trip = world->device->ll->trip_create(world);
    return session->trip != NULL;
}

bool ll_session_close(struct ll_session *session, bool sound)
{
    const struct bench_world *world = session->world;
    void *const tensors[] = {session->x, session->y, session->idx, session->weights};
    bool good = sound;
    if (session->baseline) world->ll_baseline->close(session->baseline);
    world->device->ll->trip_free(session->trip, sound);
    /* Whoever waits for this rank ends now, and the buffer goes without the others. */
    if (!sound) expar_group_abort(world->group);
    good = bench_good(world, expar_ll_destroy(session->ll)) && good;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        world->device->free(world, tensors[i]);
    world->device->ll->unreserve(world, session->rows, session->rows_bytes);
    ll_layout_free(session->layout);
    problem_free(session->problem);
    return good;
}
