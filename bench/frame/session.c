/* SPDX-License-Identifier: Apache-2.0 */
/* The memory and objects of one shape: routing, tensors with their contents, the buffer, the contenders. */
#include "bench/frame/session.h"
#include "bench/frame/routing.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

expar_tensor bench_tensor(const struct bench_world *world, const void *data, expar_dtype dtype, int64_t rows,
                          int64_t columns)
{
    expar_tensor tensor = expar_tensor_2d((void *)(uintptr_t)data, dtype, rows, columns);
    tensor.device = world->place;
    return tensor;
}

bool bench_wrong(const struct problem *problem, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "expar bench: rank %d: wrong result: ", problem->rank);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    return false;
}

void bench_session_label(const struct bench_session *session, const char *call, char label[BENCH_LABEL_BYTES])
{
    char which[32] = "";
    if (session->count > 1) snprintf(which, sizeof which, " (case %d of %d)", session->number, session->count);
    snprintf(label, BENCH_LABEL_BYTES, "%s%s, %lld tokens%s", session->mode->label, call,
             (long long)session->problem->tokens, which);
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

bool bench_session_write(const struct bench_session *session, void *data, size_t bytes, bench_write *write,
                         const void *how)
{
    const struct bench_world *world = session->world;
    void *draft = world->device->draft(world, data, bytes);
    if (!draft) return bench_complain(world, "out of memory");
    write(session, how, draft);
    return world->device->commit(world, data, draft, bytes);
}

static size_t tokens_bytes(const struct bench_session *session)
{
    return (size_t)session->problem->tokens * session->problem->row_bytes;
}

static void write_x(const struct bench_session *session, const void *salt, void *draft)
{
    const struct problem *problem = session->problem;
    pattern_rows(problem, *(const uint64_t *)salt, problem->rank, problem->tokens, draft);
}

bool bench_fill_x(const struct bench_session *session, uint64_t salt)
{
    return bench_session_write(session, session->x, tokens_bytes(session), write_x, &salt);
}

static void write_ones(const struct bench_session *session, const void *how, void *draft)
{
    (void)how;
    memset(draft, 0xff, tokens_bytes(session));
}

bool bench_spoil_y(const struct bench_session *session)
{
    return bench_session_write(session, session->y, tokens_bytes(session), write_ones, NULL);
}

static size_t slots_of(const struct bench_session *session)
{
    return (size_t)session->problem->tokens * (size_t)session->problem->topk;
}

static void write_idx(const struct bench_session *session, const void *how, void *draft)
{
    (void)how;
    memcpy(draft, problem_routing_of(session->problem, session->problem->rank), slots_of(session) * sizeof(int32_t));
}

static void write_weights(const struct bench_session *session, const void *how, void *draft)
{
    const struct problem *problem = session->problem;
    const size_t topk = (size_t)problem->topk;
    float *weights = draft;
    (void)how;
    for (size_t i = 0; i < slots_of(session); i++)
        weights[i] = problem_weight(problem->rank, (int64_t)(i / topk), (int)(i % topk));
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static bool make_problem(struct bench_session *session, const struct bench_rows *rows, int64_t tokens)
{
    const struct bench_options *options = session->options;
    const struct bench_world *world = session->world;
    const struct problem_shape shape = {.rank = world->rank,
                                        .num_ranks = world->size,
                                        .tokens = tokens,
                                        .hidden = options->hidden,
                                        .topk = options->topk,
                                        .experts = options->experts,
                                        .dtype = rows->dtype};
    const struct routing_shape routing = {
        .num_ranks = world->size, .tokens = tokens, .topk = options->topk, .experts = options->experts};
    char error[512];
    int32_t *made = routing_make(options->routing, &routing, options->seed, error, sizeof error);
    if (!made) return bench_complain(world, error);
    session->problem = problem_create(&shape, made);
    return session->problem || bench_complain(world, "out of memory");
}

/* Allocates memory. It does nothing after a failure. */
static void *take(const struct bench_world *world, size_t bytes, bool *made)
{
    void *data = *made ? world->device->alloc(world, bytes) : NULL;
    if (*made && !data) *made = bench_complain(world, "out of memory");
    return data;
}

static bool make_tensors(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const size_t slots = slots_of(session);
    bool made = true;
    session->x = take(world, tokens_bytes(session), &made);
    session->y = take(world, tokens_bytes(session), &made);
    session->idx = take(world, slots * sizeof *session->idx, &made);
    session->weights = take(world, slots * sizeof *session->weights, &made);
    return made && bench_session_write(session, session->idx, slots * sizeof *session->idx, write_idx, NULL) &&
           bench_session_write(session, session->weights, slots * sizeof *session->weights, write_weights, NULL) &&
           session->mode->make(session);
}

static bool make_baseline(struct bench_session *session)
{
    const struct bench_baseline *baseline = session->world->baseline;
    const struct bench_mode *mode = session->mode;
    if (!baseline || (mode->has_baseline && !mode->has_baseline(session))) return true;
    session->baseline = baseline->open(session);
    return session->baseline || bench_complain(session->world, "out of memory for the baseline");
}

/* Turns clocks on or off. No rank makes a call before all have the memory for clocks. */
static bool take_clocks(const struct bench_session *session)
{
    const struct bench_site *site = bench_site_of(session);
    return !site->clocks || site->clocks(session, !session->options->unstamped);
}

static void set_shape(struct bench_session *session, const struct bench_rows *rows, int workers)
{
    session->given_workers = workers;
    session->workers = workers ? workers : bench_site_of(session)->default_workers(session->world);
    session->format = rows->format;
}

bool bench_session_check(struct bench_session *session, const struct bench_rows *rows, int64_t tokens, int workers)
{
    const struct bench_options *options = session->options;
    struct problem sizes = {.rank = session->world->rank,
                            .num_ranks = session->world->size,
                            .tokens = tokens,
                            .hidden = options->hidden,
                            .topk = options->topk,
                            .experts = options->experts,
                            .dtype = rows->dtype,
                            .row_bytes = (size_t)options->hidden * expar_dtype_bytes(rows->dtype)};
    set_shape(session, rows, workers);
    /* The routing takes memory itself, so that all that does not depend on it is asked for first. */
    session->problem = &sizes;
    bool enough = bench_memory_check(session);
    session->problem = NULL;
    enough =
        enough && bench_all_true(session->world, make_problem(session, rows, tokens)) && bench_memory_check(session);
    problem_free(session->problem);
    session->problem = NULL;
    return enough;
}

bool bench_session_open(struct bench_session *session, const struct bench_rows *rows, int64_t tokens, int workers)
{
    const struct bench_world *world = session->world;
    const struct bench_site *site = bench_site_of(session);
    set_shape(session, rows, workers);
    bool good = make_problem(session, rows, tokens) && make_tensors(session);
    good = bench_all_true(world, good) && session->mode->create(session) && take_clocks(session);
    good = bench_all_true(world, good) && site->open(session) && make_baseline(session);
    return bench_all_true(world, good);
}

bool bench_session_close(struct bench_session *session, bool sound)
{
    const struct bench_world *world = session->world;
    void *const tensors[] = {session->x, session->y, session->idx, session->weights};
    if (session->baseline) world->baseline->close(session->baseline);
    bench_site_of(session)->close(session, sound);
    /* A rank that waits for this one ends now, and the buffer goes without the others. */
    if (!sound) expar_group_abort(world->group);
    bool good = session->mode->end(session) && sound;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        world->device->free(world, tensors[i]);
    problem_free(session->problem);
    return good;
}
