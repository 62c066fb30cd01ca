/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatches, combines by both sums, and pairs: a dispatch and the combine of its tokens; in whole calls and by hooks.
 */
#include "bench/low_latency/mode.h"

static bool on_gpu(const struct bench_call *call)
{
    return call->session->world->place.type == EXPAR_CUDA;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

bool ll_dispatch(void *context)
{
    struct ll_case *self = context;
    const struct bench_session *session = self->frame.session;
    self->result = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    self->frame.count++;
    return bench_good(session->world, expar_ll_dispatch(session->ll, &self->dispatch_args, &self->result));
}

bool ll_combine(void *context)
{
    struct ll_case *self = context;
    const struct bench_session *session = self->frame.session;
    self->sum = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    self->frame.count++;
    return bench_good(session->world, expar_ll_combine(session->ll, &self->combine_args, &self->sum));
}

static bool receive_by(const struct ll_case *self, expar_ll_hook *hook)
{
    const struct bench_world *world = self->frame.session->world;
    return bench_good(world, expar_ll_hook_call(hook, world->stream));
}

bool ll_receive(void *context)
{
    const struct ll_case *self = context;
    return receive_by(self, self->frame.kind.combines ? self->sum.hook : self->result.hook);
}

static void release_sum(struct ll_case *self)
{
    expar_ll_hook_release(self->sum.hook);
    expar_ep_output_release(self->sum.output);
    self->sum = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
}

void ll_release(struct bench_call *call)
{
    struct ll_case *self = (struct ll_case *)call;
    release_sum(self);
    expar_ll_hook_release(self->result.hook);
    expar_ep_output_release(self->result.output);
    expar_ll_handle_release(self->result.handle);
    self->result = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
}

static bool dispatch_in_loop(struct ll_case *self)
{
    const struct bench_world *world = self->frame.session->world;
    if (!ll_dispatch(self) || (self->result.hook && !receive_by(self, self->result.hook))) return false;
    return !on_gpu(&self->frame) || bench_good(world, expar_ep_output_read_on(self->result.output, world->stream));
}

/* Makes one call of a loop. Calls have no events: on the CPU they have ended when they return, on a GPU the stream
   orders them. */
bool ll_in_loop(struct bench_call *call, expar_event **event)
{
    struct ll_case *self = (struct ll_case *)call;
    (void)event;
    if (call->kind.dispatches && !dispatch_in_loop(self)) return false;
    if (!call->kind.combines) return true;
    if (call->kind.dispatches && !bench_between(call)) return false;
    self->combine_args.handle = call->kind.dispatches ? self->result.handle : self->handle;
    if (!ll_combine(self)) return false;
    bool good = !self->sum.hook || receive_by(self, self->sum.hook);
    release_sum(self);
    return good;
}

bool ll_ended(struct bench_call *call, int turn)
{
    (void)turn;
    return bench_good(call->session->world, expar_ll_query(call->session->ll));
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

bool ll_fill(const struct bench_call *call, uint64_t salt)
{
    if (call->kind.dispatches && !bench_fill_x(call->session, salt)) return false;
    return !call->kind.combines || ll_fill_rows(call->session, salt);
}

/* Verifies the outputs. With LogFMT the dispatch carries plain rows, which the session's format does not describe. */
bool ll_verify(const struct bench_call *call, uint64_t salt)
{
    const struct ll_case *self = (const struct ll_case *)call;
    const struct bench_session *session = call->session;
    const bool coded = self->combine_args.format == EXPAR_LL_FORMAT_LOGFMT;
    bool good = true;
    if (call->kind.dispatches && session->format->dispatched) good = ll_verify_dispatch(session, salt, &self->result);
    if (call->kind.combines) good = ll_verify_combine(session, salt, call->kind.reduced, coded, session->y) && good;
    return good;
}

bool ll_verify_baseline(const struct bench_call *call, uint64_t salt)
{
    const struct bench_session *session = call->session;
    if (call->kind.combines) return ll_verify_combine(session, salt, call->kind.reduced, false, session->y);
    const struct bench_received received = session->world->baseline->received(session->baseline);
    const struct ll_rows rows = {.rows = received.rows, .counts = received.counts, .src_info = received.src_info};
    return ll_verify_rows(session, salt, &rows);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Sets the arguments of a dispatch. Reduced sums need the weights in the dispatch. */
static void set_dispatch_args(struct ll_case *self)
{
    const struct bench_session *session = self->frame.session;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_ll_dispatch_args *args = &self->dispatch_args;
    *args = (expar_ll_dispatch_args)EXPAR_LL_DISPATCH_ARGS_INIT;
    args->x = bench_tensor(world, session->x, problem->dtype, problem->tokens, problem->hidden);
    args->topk_idx = bench_tensor(world, session->idx, EXPAR_I32, problem->tokens, problem->topk);
    if (self->frame.kind.reduced)
        args->topk_weights = bench_tensor(world, session->weights, EXPAR_F32, problem->tokens, problem->topk);
    args->format = session->format->dispatched ? session->format->wire : EXPAR_LL_FORMAT_PLAIN;
    if (args->format == EXPAR_LL_FORMAT_NVFP4) {
        args->global_scale = expar_tensor_1d(session->global_scale, EXPAR_F32, 1);
        args->global_scale.device = world->place;
    }
    args->hook = self->frame.kind.hooked && self->frame.kind.dispatches;
    args->stream = world->stream;
}

static expar_tensor rows_tensor(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    const struct ll_layout *layout = session->layout;
    expar_tensor x =
        bench_tensor(session->world, session->rows, problem->dtype, layout->rows_per_expert, problem->hidden);
    x.ndim = 3;
    x.shape[0] = layout->local_experts;
    x.shape[1] = layout->rows_per_expert;
    x.shape[2] = problem->hidden;
    x.strides[0] = layout->rows_per_expert * problem->hidden;
    x.strides[1] = problem->hidden;
    x.strides[2] = 1;
    return x;
}

static void set_combine_args(struct ll_case *self)
{
    const struct bench_session *session = self->frame.session;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    expar_ll_combine_args *args = &self->combine_args;
    *args = (expar_ll_combine_args)EXPAR_LL_COMBINE_ARGS_INIT;
    args->x = rows_tensor(session);
    args->topk_idx = bench_tensor(world, session->idx, EXPAR_I32, problem->tokens, problem->topk);
    args->topk_weights = bench_tensor(world, session->weights, EXPAR_F32, problem->tokens, problem->topk);
    args->format = session->format->combined ? session->format->wire : EXPAR_LL_FORMAT_PLAIN;
    args->sum = self->frame.kind.reduced ? EXPAR_LL_SUM_REDUCED : EXPAR_LL_SUM_EXACT;
    args->hook = self->frame.kind.hooked;
    args->handle = self->handle;
    args->stream = world->stream;
    args->out_y = bench_tensor(world, session->y, problem->dtype, problem->tokens, problem->hidden);
}

bool ll_open(struct bench_call *call)
{
    struct ll_case *self = (struct ll_case *)call;
    bool good = true;
    set_dispatch_args(self);
    if (!call->kind.dispatches) {
        good = dispatch_in_loop(self);
        self->handle = self->result.handle;
        self->result.handle = NULL;
        ll_release(call);
        call->count = 0;
    }
    set_combine_args(self);
    return bench_all_true(call->session->world, good);
}

void ll_close(struct bench_call *call)
{
    ll_release(call);
    expar_ll_handle_release(((struct ll_case *)call)->handle);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Returns the number of rows that a combine of this rank sends back. */
static int64_t rows_back(const struct bench_call *call)
{
    return call->kind.reduced ? call->session->problem->num_received : call->session->layout->num_rows;
}

/* Checks the library's counts. A dispatch has one message for each (token, rank), this rank's own included. */
bool ll_counts_right(const struct bench_contest *contests, int count)
{
    const struct bench_session *session = contests->session;
    const bool combine = bench_contest_kind(contests)->combines;
    uint64_t expected = 0;
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    if (!bench_good(session->world, expar_ll_get_stats(session->ll, &stats))) return false;
    for (int i = 0; i < count; i++)
        for (int c = 0; c < contests[i].num_calls; c++) {
            const struct bench_call *call = contests[i].calls[c];
            expected += call->count * (uint64_t)(combine ? rows_back(call) : session->problem->num_sent);
        }
    return combine ? ll_verify_count(session, "rows of all combines", stats.combine_rows, expected)
                   : ll_verify_count(session, "messages of all dispatches", stats.dispatch_messages, expected);
}

/* Computes messages and bytes of a call. A pair has the sum of both. */
void ll_amounts(const struct bench_call *call, double *messages, double *bytes)
{
    const struct bench_session *session = call->session;
    *messages = *bytes = 0;
    if (call->kind.dispatches) {
        *messages += (double)session->problem->num_sent;
        *bytes += (double)session->layout->num_rows * (double)ll_wire_bytes(session);
    }
    if (call->kind.combines) {
        *messages += (double)rows_back(call);
        *bytes += (double)rows_back(call) * (double)session->problem->row_bytes;
    }
}

bool ll_describe(const struct bench_call *call, struct bench_result *result)
{
    result->format = call->session->format->name;
    result->path = "direct";
    return true;
}
