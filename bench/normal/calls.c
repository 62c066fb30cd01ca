/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatches (fresh, and with a handle), combines, and layers: a dispatch with a handle, work on its rows, their
 * combine. In loops calls are asynchronous, and combines read rows in the caller's own memory, as with an engine;
 * isolated ones read what the session has in symmetric memory. */
#include "bench/normal/mode.h"
#include <stdlib.h>

static bool on_gpu(const struct bench_session *session)
{
    return session->world->place.type == EXPAR_CUDA;
}

static bool is_loop(const struct normal_call *self)
{
    return self->frame.kind.pattern != BENCH_ISOLATED;
}

static size_t rows_bytes(const struct bench_session *session)
{
    return (size_t)session->problem->num_received * session->problem->row_bytes;
}

/* ---- outputs as the host reads them ------------------------------------------------------------------------------ */

static size_t tensor_bytes(const expar_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->shape[1]) * expar_dtype_bytes(tensor->dtype);
}

static bool look_at_dispatch(const struct normal_call *self, uint64_t salt, bool cached)
{
    const struct bench_session *session = self->frame.session;
    const struct bench_world *world = session->world;
    expar_ep_dispatch_result seen = self->result;
    expar_tensor *const tensors[] = {&seen.recv_x, &seen.recv_topk_idx, &seen.recv_topk_weights, &seen.recv_scales};
    const void *views[4] = {NULL};
    bool good = true;
    for (int i = 0; i < 4; i++) {
        if (!tensors[i]->data) continue;
        views[i] = world->device->view(world, tensors[i]->data, tensor_bytes(tensors[i]));
        good = good && views[i];
        tensors[i]->data = (void *)(uintptr_t)views[i];
    }
    good = good && verify_dispatch(session->problem, salt, &seen, cached);
    for (int i = 0; i < 4; i++)
        world->device->unview(world, views[i]);
    return good;
}

/* Verifies sums. each: as in verify_combine. */
static bool look_at_sums(const struct bench_session *session, uint64_t salt, enum verify_rows_of rows_of, int each)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const void *y = world->device->view(world, session->y, (size_t)problem->tokens * problem->row_bytes);
    bool good = y && verify_combine(problem, salt, rows_of, each, y);
    world->device->unview(world, y);
    return good;
}

bool normal_verify(const struct bench_call *call, uint64_t salt)
{
    const struct bench_session *session = call->session;
    if (((const struct normal_call *)call)->is_coded) return coded_verify((const struct normal_call *)call, salt);
    const enum verify_rows_of rows_of = call->kind.dispatches ? VERIFY_RETURNED : VERIFY_FILLED;
    bool good = true;
    if (call->kind.dispatches) good = look_at_dispatch((const struct normal_call *)call, salt, call->kind.cached);
    if (call->kind.combines) good = look_at_sums(session, salt, rows_of, session->world->each) && good;
    return good;
}

/* Verifies the baseline's output, whose sums are not by node. */
bool normal_verify_baseline(const struct bench_call *call, uint64_t salt)
{
    const struct bench_session *session = call->session;
    if (call->kind.combines) return look_at_sums(session, salt, VERIFY_FILLED, session->world->size);
    return verify_rows(session->problem, salt, session->world->baseline->received(session->baseline).rows);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

expar_ep_dispatch_args normal_dispatch_args(const struct bench_session *session, expar_ep_path path)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    int64_t tokens = problem->tokens;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = bench_tensor(world, session->x, problem->dtype, tokens, problem->hidden);
    args.topk_idx = bench_tensor(world, session->idx, EXPAR_I32, tokens, problem->topk);
    args.topk_weights = bench_tensor(world, session->weights, EXPAR_F32, tokens, problem->topk);
    if (session->scales) args.x_scales = bench_tensor(world, session->scales, EXPAR_F32, tokens, problem->num_scales);
    args.num_experts = problem->experts;
    args.path = path;
    args.stream = world->stream;
    return args;
}

/* On the CPU a layer waits for its rows, since the host copies them. On GPUs a fresh dispatch waits for its counts in
   any case, and the pool can grow only where the call is not asynchronous. */
static bool dispatches_asynchronously(const struct normal_call *self)
{
    if (!is_loop(self)) return false;
    return on_gpu(self->frame.session) ? self->frame.kind.cached : !self->frame.kind.combines;
}

static void set_args(struct normal_call *self)
{
    const struct bench_session *session = self->frame.session;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_ep_dispatch_args *dispatch = &self->dispatch_args;
    expar_ep_combine_args *combine = &self->combine_args;
    *dispatch = normal_dispatch_args(session, self->path);
    dispatch->async_finish = dispatches_asynchronously(self);
    dispatch->handle = self->frame.kind.cached ? self->handle : NULL;
    if (dispatch->handle) dispatch->topk_idx = dispatch->topk_weights = EXPAR_TENSOR_NONE;
    *combine = (expar_ep_combine_args)EXPAR_EP_COMBINE_ARGS_INIT;
    self->combined = (expar_ep_combine_result)EXPAR_EP_COMBINE_RESULT_INIT;
    combine->x = bench_tensor(world, self->rows, problem->dtype, problem->num_received, problem->hidden);
    combine->out_y = bench_tensor(world, session->y, problem->dtype, problem->tokens, problem->hidden);
    combine->handle = self->handle;
    combine->path = self->path;
    combine->async_finish = is_loop(self) && (on_gpu(session) || self->frame.kind.pattern != BENCH_PERIOD);
    combine->stream = world->stream;
    if (self->is_coded) coded_set_args(self);
}

/* Makes the handle by a dispatch, and verifies that in full. Isolated dispatches repeat it. */
static bool make_handle(struct normal_call *self)
{
    struct bench_session *session = self->frame.session;
    const bool repeated = self->frame.kind.dispatches && !is_loop(self);
    const uint64_t salt = bench_first_salt(session);
    if (repeated && !bench_fill_x(session, salt)) return false;
    self->dispatch_args = normal_dispatch_args(session, repeated ? self->path : EXPAR_EP_PATH_AUTO);
    if (!normal_dispatch(self)) return false;
    if (repeated) self->frame.verified &= look_at_dispatch(self, salt, false);
    self->handle = self->result.handle;
    self->result.handle = NULL;
    expar_ep_output_release(self->result.output);
    self->result = (expar_ep_dispatch_result){0};
    return true;
}

bool normal_open(struct bench_call *call)
{
    struct normal_call *self = (struct normal_call *)call;
    const struct bench_world *world = call->session->world;
    self->rows = call->session->rows;
    self->is_coded = call->kind.pattern == BENCH_PERIOD && call->session->problem->dtype == EXPAR_F8E4M3;
    if (self->is_coded && !bench_all_true(world, coded_open(self))) return false;
    if (is_loop(self) && call->kind.combines) self->rows = world->device->alloc(world, rows_bytes(call->session));
    bool good = bench_all_true(world, !call->kind.combines || self->rows || bench_complain(world, "out of memory"));
    if (good && (call->kind.cached || !call->kind.dispatches)) good = make_handle(self);
    set_args(self);
    return bench_all_true(world, good);
}

void normal_close(struct bench_call *call)
{
    struct normal_call *self = (struct normal_call *)call;
    normal_release(call);
    if (self->is_coded) coded_close(self);
    expar_ep_handle_release(self->handle);
    if (is_loop(self) && call->kind.combines) call->session->world->device->free(call->session->world, self->rows);
}

static void write_rows(const struct bench_session *session, const void *salt, void *draft)
{
    const struct problem *problem = session->problem;
    pattern_rows(problem, *(const uint64_t *)salt, problem->rank, problem->num_received, draft);
}

/* Rows of a combine alone are the experts' outputs; those of a layer are the tokens that came. */
bool normal_fill(const struct bench_call *call, uint64_t salt)
{
    const struct bench_session *session = call->session;
    if (((const struct normal_call *)call)->is_coded) return coded_fill((const struct normal_call *)call, salt);
    if (call->kind.dispatches) return bench_fill_x(session, salt);
    return bench_session_write(session, ((const struct normal_call *)call)->rows, rows_bytes(session), write_rows,
                               &salt);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

bool normal_dispatch(void *context)
{
    struct normal_call *self = context;
    const struct bench_session *session = self->frame.session;
    self->result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return bench_good(session->world, expar_ep_dispatch(session->ep, &self->dispatch_args, &self->result));
}

bool normal_combine(void *context)
{
    struct normal_call *self = context;
    const struct bench_session *session = self->frame.session;
    return bench_good(session->world, expar_ep_combine(session->ep, &self->combine_args, &self->combined));
}

/* Copies the rows to the caller's own memory, on a GPU by the stream. This stands for the experts' work. Pairs of a
   period have none: the combine reads the rows where the dispatch has put them, or, after coded ones, outputs that are
   there already. */
static bool work(struct normal_call *self)
{
    if (self->frame.kind.pattern == BENCH_PERIOD) {
        if (!self->is_coded) self->combine_args.x = self->result.recv_x;
        if (!self->frame.kind.cached) self->combine_args.handle = self->result.handle;
        return true;
    }
    const struct bench_world *world = self->frame.session->world;
    return world->device->copy(world, self->rows, self->result.recv_x.data, rows_bytes(self->frame.session));
}

/* On a GPU the stream reads the rows. The library is told here, as for an engine's tensors, whose deleters cannot tell
   it. */
static bool dispatch_in_loop(struct normal_call *self, expar_event **event)
{
    const struct bench_session *session = self->frame.session;
    if (!normal_dispatch(self)) return false;
    *event = self->result.event;
    self->result.event = NULL;
    return !on_gpu(session) ||
           bench_good(session->world, expar_ep_output_read_on(self->result.output, session->world->stream));
}

bool normal_in_loop(struct bench_call *call, expar_event **event)
{
    struct normal_call *self = (struct normal_call *)call;
    if (self->is_coded && !coded_encode(self)) return false;
    if (call->kind.dispatches && !dispatch_in_loop(self, event)) return false;
    if (call->kind.dispatches && call->kind.combines) {
        expar_event_release(*event);
        *event = NULL;
        if (!bench_between(call) || !work(self)) return false;
    }
    if (!call->kind.combines) return true;
    if (!normal_combine(self)) return false;
    *event = self->combined.event;
    return true;
}

/* Releases the result. That of an isolated dispatch is checked first. */
void normal_release(struct bench_call *call)
{
    struct normal_call *self = (struct normal_call *)call;
    if (self->result.struct_size && !is_loop(self)) {
        call->verified &= self->result.num_recv_tokens == call->session->problem->num_received;
        self->direct &= self->result.path == EXPAR_EP_PATH_DIRECT;
    }
    expar_ep_output_release(self->result.output);
    expar_ep_handle_release(self->result.handle);
    self->result = (expar_ep_dispatch_result){0};
}

static bool get_stats(const struct bench_session *session, expar_ep_stats *stats)
{
    *stats = (expar_ep_stats)EXPAR_EP_STATS_INIT;
    return bench_good(session->world, expar_ep_get_stats(session->ep, stats));
}

bool normal_ended(struct bench_call *call, int turn)
{
    struct normal_call *self = (struct normal_call *)call;
    if (!bench_good(call->session->world, expar_ep_query(call->session->ep))) return false;
    if (turn == 0) return get_stats(call->session, &self->before);
    return turn != BENCH_LOOPS || get_stats(call->session, &self->after);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

void normal_amounts(const struct bench_call *call, double *messages, double *bytes)
{
    *messages = 0; /* they are not counted */
    *bytes = (double)rows_bytes(call->session) * (call->kind.dispatches + call->kind.combines);
    if (((const struct normal_call *)call)->is_coded)
        *bytes += (double)rows_bytes(call->session); /* combined in BF16 */
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bool put_together(const struct bench_world *world, const expar_ep_stats *mine, struct bench_buffer *out)
{
    expar_ep_stats *all = calloc((size_t)world->size, sizeof *all);
    bool good = all && bench_good(world, expar_group_allgather(world->group, mine, all, sizeof *mine));
    for (int rank = 0; rank < world->size && good; rank++) {
        out->growths += all[rank].growths;
        out->direct_calls += all[rank].direct_calls;
        out->queue_calls += all[rank].queue_calls;
        out->other_blocks += all[rank].other_blocks;
        out->used_high_bytes = larger(out->used_high_bytes, all[rank].used_high_bytes);
        out->reserved_high_bytes = larger(out->reserved_high_bytes, all[rank].reserved_high_bytes);
    }
    free(all);
    return good;
}

/* Adds the path to the result. An isolated combine by AUTO goes directly, since its rows lie in symmetric memory. */
bool normal_describe(const struct bench_call *call, struct bench_result *result)
{
    const struct normal_call *self = (const struct normal_call *)call;
    const struct bench_world *world = call->session->world;
    bool direct = call->kind.combines ? self->path != EXPAR_EP_PATH_QUEUE : self->direct;
    if (is_loop(self)) {
        if (!put_together(world, &self->before, &result->before) || !put_together(world, &self->after, &result->after))
            return false;
        direct = result->after.queue_calls <= result->before.queue_calls;
    }
    result->path = bench_all_true(world, direct) ? "direct" : "queue";
    return true;
}
