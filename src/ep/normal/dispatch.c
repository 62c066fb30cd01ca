/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_dispatch: from arguments to steps.
 *
 * Begun: checks, and memory if its size is known. A fresh dispatch then does the header exchange (layout, headers with
 * counts), and takes memory by the counts. Send: buffer advertisements, and rows. Receive: the rest of the rows; then
 * they are arranged as the caller wants them. */
#include "ep/normal/dispatch.h"
#include "exec/event.h"

#include <stdlib.h>

static void dispatch_fill_form(dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    ep_form *form = &call->brings.form;
    call->brings.row_bytes = dispatch_row_bytes(call);
    bool scales = tensor_given(&args->x_scales), topk = tensor_given(&args->topk_idx);
    *form = (ep_form){.kind = dispatch_cached(call) ? EP_DISPATCH_CACHED : EP_DISPATCH,
                      .hidden = (int32_t)args->x.shape[1],
                      .dtype = (int32_t)args->x.dtype,
                      .topk = topk ? (int32_t)args->topk_idx.shape[1] : 0,
                      .experts = args->num_experts,
                      .idx_dtype = topk ? (int32_t)args->topk_idx.dtype : 0,
                      .weights = tensor_given(&args->topk_weights),
                      .scales = scales ? (int32_t)args->x_scales.shape[1] : 0,
                      .scale_dtype = scales ? (int32_t)args->x_scales.dtype : 0};
    if (args->src_tokens || args->src_stride || tensor_given(&args->out_src_token))
        form->options |= EP_OPTION_SRC_TOKENS;
    if (args->global_experts) form->options |= EP_OPTION_GLOBAL_EXPERTS;
    form->options |= prologue_slots_option(&call->base, dispatch_cached(call) ? call->given->routing.keeps_slots
                                                                              : args->keep_slots != 0);
    if (!dispatch_cached(call)) return;
    form->topk = call->given->routing.topk;
    form->experts = call->given->routing.experts;
    form->route = call->given->route;
    form->route_buffer = call->given->buffer;
}

/* ---- memory for the results -------------------------------------------------------------------------------------- */

static expar_status count_experts(const dispatch_call *call, int64_t *sum)
{
    expar_ep_output *output = call->plan.output;
    size_t locals = (size_t)call->made->routing.local_experts;
    if (!output->tokens_per_expert) output->tokens_per_expert = malloc(locals * sizeof *output->tokens_per_expert);
    if (!output->tokens_per_expert) return error_set(EXPAR_ERR_MEMORY, "no memory for %zu counts", locals);
    *sum = prologue_round_counts(&call->prologue, &call->made->routing, output->tokens_per_expert);
    return EXPAR_OK;
}

static expar_status size_fresh(const dispatch_call *call)
{
    expar_ep_handle *made = call->made;
    if (dispatch_cached(call)) return EXPAR_OK;
    int64_t coming = 0;
    expar_status status = dispatch_sized(call) ? EXPAR_OK : count_experts(call, &coming);
    const bool limited = dispatch_sized(call) || call->args.num_expert_rows;
    made->expert_rows = limited ? prologue_worst_expert_rows(&call->prologue, made) : coming;
    return status;
}

/* Checks the length of an expert-major output, and takes memory for its map. */
static expar_status size_expert_major(dispatch_call *call)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    if (!call->args.expert_major) return EXPAR_OK;
    if (handle->expert_rows > INT32_MAX)
        return error_set(EXPAR_ERR_ARGUMENT, "an expert-major output of %lld rows; expected at most 2^31 - 1",
                         (long long)handle->expert_rows);
    return ep_handle_make_map(ep_of(&call->base), handle, &call->fills_map);
}

/* Takes part in the growth of the pools, if there is one and it has not: for the blocks of the call where these are
   sized. */
static expar_status grow_pools(dispatch_call *call, bool sized)
{
    executor *exec = call->base.buffer->exec;
    uint64_t sizes[3];
    if (call->grows) call->growth = exec->normal->grow_pool(exec, sizes, sized ? dispatch_sizes(call, sizes) : 0);
    call->grows = false;
    return call->growth;
}

/* The rows are known, or at most as many. */
static expar_status take_results(dispatch_call *call)
{
    ep_plan *plan = &call->plan;
    if (!plan->output) plan->output = ep_output_make(call->base.buffer);
    if (!plan->output) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    expar_status status = size_fresh(call);
    if (status == EXPAR_OK) status = grow_pools(call, true);
    if (status == EXPAR_OK) status = size_expert_major(call);
    return status == EXPAR_OK ? dispatch_plan(call) : status;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static ep_arrival dispatch_arrival(const dispatch_call *call)
{
    const ep_plan *plan = &call->plan;
    const ep_plan_place *x = &plan->parts[EXPAR_EP_PART_X], *scales = &plan->parts[EXPAR_EP_PART_SCALES];
    const ep_plan_place *idx = &plan->parts[EXPAR_EP_PART_TOPK_IDX], *src = &plan->parts[EXPAR_EP_PART_SRC_TOKEN];
    const ep_plan_place *weights = &plan->parts[EXPAR_EP_PART_TOPK_WEIGHTS];
    return (ep_arrival){.mode = plan->mode,
                        .rows = (int32_t)plan->rows,
                        .x = x->travels,
                        .scales = scales->travels,
                        .idx = idx->travels,
                        .weights = weights->travels,
                        .src = src->travels,
                        .x_offset = x->offset,
                        .scales_offset = scales->offset,
                        .idx_offset = idx->offset,
                        .weights_offset = weights->offset,
                        .src_offset = src->offset};
}

static ep_dispatch_step dispatch_step(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const expar_tensor *x = &args->x, *scales = &args->x_scales;
    ep_dispatch_step step = {.epoch = normal_epoch(&call->base),
                             .form = call->brings.form,
                             .rejection = call->base.rejection,
                             /* A cached dispatch only reads it. */
                             .routing = (ep_routing *)&dispatch_handle(call)->routing,
                             .x = x->data,
                             .x_pitch_bytes = tensor_pitch(x) * (int64_t)expar_dtype_bytes(x->dtype),
                             .row_bytes = dispatch_row_bytes(call),
                             .scales = scales->data,
                             .scales_row_pitch = scales->strides[0],
                             .scales_column_pitch = scales->strides[1],
                             .route = prologue_view(&call->prologue),
                             .arrival = dispatch_arrival(call),
                             .sent_ahead = call->sent_ahead,
                             .deferred = args->num_worst_tokens || args->async_finish || call->base.exec.captured,
                             .vote = {.rank = -1}};
    return step;
}

/* ---- the counts of a fresh dispatch ------------------------------------------------------------------------------ */

/* The host knows how many rows come. */
static expar_status dispatch_take_counts(dispatch_call *call)
{
    int64_t sum;
    error_kept kept;
    const bool worst = call->prologue.num_worst_tokens;
    prologue_take_counts(&call->prologue, call->made);
    if (!worst) dispatch_settle_spare(call);
    error_keep(&kept, worst ? count_experts(call, &sum) : take_results(call));
    const expar_status status = grow_pools(call, worst && dispatch_lies_beside(call));
    return status == EXPAR_OK ? error_restore(&kept) : status;
}

/* The output has its place, beside the pool perhaps: what has grown is for the next one. */
static expar_status grow_for_later(dispatch_call *call)
{
    return ep_call_step(&call->base, grow_pools(call, dispatch_lies_beside(call)));
}

/* Opens a fresh dispatch. A rank that fails after it says so with its buffer advertisements, unless these are already
   binding. */
static expar_status notify(dispatch_call *call)
{
    ep_call *base = &call->base;
    ep_dispatch_step rows;
    ep_counts_step counts;
    ep_notify_step step = {.epoch = normal_epoch(base),
                           .form = call->brings.form,
                           .routing = &call->made->routing,
                           .route = prologue_view(&call->prologue),
                           .growth = prologue_growth(base, &call->prologue, call->args.async_finish || base->leaves),
                           .lacking = call->lacking_bytes,
                           .deferred = call->args.num_worst_tokens != 0,
                           .vote = {.rank = -1}};
    if (prologue_counts_step(call->made, &call->counts, &counts)) step.counts = &counts;
    if (call->offered_bytes) {
        rows = dispatch_step(call);
        rows.spare = dispatch_advert_spare(call);
        rows.deferred = true;
        step.rows = &rows;
    }
    expar_status status = prologue_notify(base, &step);
    if (step.told) call->counts = (expar_ep_recv_counts){0};
    /* Asynchronous calls: the result struct was filled when the call returned; do not write to it here. */
    if (status != EXPAR_OK || base->leaves) return status;
    call->grows = step.grows;
    if (!step.counted) return grow_for_later(call);
    status = dispatch_take_counts(call);
    if (call->growth != EXPAR_OK) return ep_call_step(base, status);
    if (status != EXPAR_OK) ep_call_reject(base, status);
    return EXPAR_OK;
}

/* ---- send and receive -------------------------------------------------------------------------------------------- */

/* Gives up the handle's map in a dispatch that was to fill it, and will not. */
static void leave_map(dispatch_call *call)
{
    if (call->fills_map) ep_handle_unmap(dispatch_handle(call));
    call->fills_map = false;
}

/* A call that leaves, from its beginning on. */
static expar_status dispatch_open(dispatch_call *call)
{
    ep_call *base = &call->base;
    if (!base->leaves) return EXPAR_OK;
    expar_status status = normal_make_space(base);
    if (status != EXPAR_OK || dispatch_cached(call)) return status;
    status = ep_call_follow(base);
    return status == EXPAR_OK ? notify(call) : ep_call_tell_rejection(base, status);
}

static expar_status send_rows(dispatch_call *call)
{
    ep_call *base = &call->base;
    executor *exec = base->buffer->exec;
    expar_status status = dispatch_cached(call) ? ep_call_follow(base) : EXPAR_OK;
    if (!base->exec.placed) return ep_call_step(base, status);
    if (status != EXPAR_OK) ep_call_reject(base, status);
    call->step = dispatch_step(call);
    status = ep_call_step(base, exec->normal->dispatch_send(exec, &base->exec, &call->step));
    return status == EXPAR_OK ? ep_call_vote(base, &call->step.vote) : status;
}

static expar_status dispatch_send(ep_call *base)
{
    dispatch_call *call = (dispatch_call *)base;
    expar_status status = dispatch_open(call);
    if (status == EXPAR_OK) status = send_rows(call);
    if (status != EXPAR_OK) leave_map(call);
    return status;
}

static expar_status tell_dropped(const dispatch_call *call)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    long long dropped = call->step.dropped;
    if (dropped == 0) return EXPAR_OK;
    if (dispatch_cached(call) && handle->recv_tokens < 0)
        error_set(EXPAR_ERR_DROPPED, "%lld rows were dropped: the handle's num_worst_tokens is too small", dropped);
    else
        error_set(EXPAR_ERR_DROPPED, "%lld of %lld rows were dropped: num_worst_tokens is %lld", dropped,
                  dropped + (long long)handle->rows, (long long)handle->rows);
    return ep_call_prefix(&call->base, EXPAR_ERR_DROPPED);
}

static expar_status receive_rows(dispatch_call *call)
{
    ep_call *base = &call->base;
    executor *exec = base->buffer->exec;
    expar_status status = ep_call_step(base, exec->normal->dispatch_receive(exec, &base->exec, &call->step));
    if (status != EXPAR_OK) return status;
    status = dispatch_arrange(call);
    if (status == EXPAR_OK) status = prologue_tell_counts(base, dispatch_handle(call), &call->counts);
    return status == EXPAR_OK ? tell_dropped(call) : ep_call_prefix(base, status);
}

static expar_status dispatch_receive(ep_call *base)
{
    dispatch_call *call = (dispatch_call *)base;
    expar_status status = receive_rows(call);
    if (status != EXPAR_OK && status != EXPAR_ERR_DROPPED) leave_map(call);
    return status;
}

static void dispatch_hold(ep_call *base)
{
    dispatch_call *call = (dispatch_call *)base;
    ep_handle_hold(dispatch_handle(call));
    ep_output_hold(call->plan.output);
}

static void dispatch_drop(ep_call *base)
{
    dispatch_call *call = (dispatch_call *)base;
    expar_ep_handle_release((expar_ep_handle *)dispatch_handle(call));
    plan_release(base, &call->plan);
}

/* Strides of scales may have any sign, so the first element need not come first in memory. */
static const void *first_scale(const expar_tensor *scales)
{
    const uint32_t *first = scales->data;
    if (!first) return NULL;
    for (int i = 0; i < 2; i++)
        if (scales->strides[i] < 0 && scales->shape[i] > 0) first += (scales->shape[i] - 1) * scales->strides[i];
    return first;
}

static void dispatch_list(const ep_call *base, exec_replay *replay)
{
    const dispatch_call *call = (const dispatch_call *)base;
    exec_replay_list(replay, call->args.x.data);
    exec_replay_list(replay, first_scale(&call->args.x_scales));
    prologue_list(&call->prologue, &call->counts, replay);
    plan_list(&call->plan, dispatch_handle(call), replay);
}

static const ep_parts dispatch_parts = {.bytes = sizeof(dispatch_call),
                                        .send = dispatch_send,
                                        .receive = dispatch_receive,
                                        .reject = normal_reject,
                                        .judge = ep_call_judge,
                                        .hold = dispatch_hold,
                                        .drop = dispatch_drop,
                                        .list = dispatch_list};

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static expar_status dispatch_fit(dispatch_call *call)
{
    uint64_t sizes[3];
    bool fits;
    dispatch_fill_form(call);
    expar_status status = normal_fits(&call->base, &call->brings, &fits);
    if (status != EXPAR_OK || fits) return status;
    const ep_grow_step step = {.bytes = sizes,
                               .count = dispatch_sizes_ahead(call, sizes),
                               .tokens = dispatch_cached(call) ? -1 : call->prologue.tokens};
    return normal_grow(&call->base, &call->brings, step);
}

/* Does everything that comes before the other ranks are asked. A fresh dispatch reads its routing after the event; one
   that runs on the buffer's thread does so there. If steps are put on streams, a call takes its place before its
   memory, so it can use memory that the stream used until now. */
static expar_status dispatch_prepare(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    /* In a capture there is no event, and nothing is put on the stream before there is memory for the call. */
    bool fresh = !dispatch_cached(call), captured = call->base.exec.captured;
    bool early = (fresh || exec->ops->streams) && !captured && !call->base.leaves;
    expar_status status = early ? ep_call_follow(&call->base) : EXPAR_OK;
    if (status == EXPAR_OK) status = exec->normal->prepare(exec, &call->brings.form, dispatch_row_bytes(call));
    if (status == EXPAR_OK && fresh)
        status = prologue_make_handle(&call->base, &call->brings.form, &call->prologue, &call->made);
    if (status == EXPAR_OK && dispatch_sized(call)) status = take_results(call);
    if (status == EXPAR_OK && !dispatch_sized(call)) dispatch_take_spare(call);
    if (status == EXPAR_OK && fresh && captured && !call->base.leaves) status = ep_call_follow(&call->base);
    return status == EXPAR_OK ? ep_call_promise(&call->base) : status;
}

static expar_status dispatch_carry_out(dispatch_call *call)
{
    expar_status status = dispatch_cached(call) || call->base.leaves ? EXPAR_OK : notify(call);
    return status == EXPAR_OK ? ep_call_finish(&call->base) : status;
}

static void give_up(dispatch_call *call)
{
    ep_call_break_promise(&call->base);
    leave_map(call);
    plan_release(&call->base, &call->plan);
    expar_ep_handle_release(call->made);
}

expar_status ep_dispatch_make(expar_ep *ep, const expar_ep_dispatch_args *args, bool forgets,
                              expar_ep_dispatch_result *result)
{
    dispatch_call call = {0};
    expar_status status = normal_begin(&call.base, "expar_ep_dispatch", &dispatch_parts, ep);
    if (status != EXPAR_OK) return status;
    normal_forget(&call.base, forgets && args && args->async_finish == 1);
    status = dispatch_check(&call, args, result);
    if (status == EXPAR_OK) status = dispatch_fit(&call);
    if (status == EXPAR_OK) status = dispatch_prepare(&call);
    if (status == EXPAR_OK)
        status = dispatch_carry_out(&call);
    else if (!call.base.told)
        status = ep_call_tell_rejection(&call.base, status);
    if (status == EXPAR_OK || status == EXPAR_ERR_DROPPED)
        dispatch_tell(&call, result);
    else
        give_up(&call);
    return ep_call_end(&call.base, status);
}

expar_status expar_ep_dispatch(expar_ep *ep, const expar_ep_dispatch_args *args, expar_ep_dispatch_result *result)
{
    return ep_ended(ep, ep_dispatch_make(ep, args, false, result));
}
