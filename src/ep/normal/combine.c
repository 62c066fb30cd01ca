/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_combine: from arguments to steps.
 *
 * Begun: checks, and the way of each row. Send: expert-major rows are summed to one row for each token, and rows that
 * peers cannot reach are copied to where they can; then buffer advertisements. Receive: rows, and sums. */
#include "ep/normal/combine.h"
#include "exec/event.h"

/* Sums expert-major rows to one row for each token, and moves their weights to the slots. */
static expar_status reduce(combine_call *call)
{
    const bool reduces = combine_reduces(call), spreads = combine_weighs_rows(call);
    if (!reduces && !spreads) return EXPAR_OK;
    const expar_ep_combine_args *args = &call->args;
    executor *exec = call->base.buffer->exec;
    ep_reduce_step step = {.routing = &args->handle->routing,
                           .rows = combine_rows_held(call),
                           .hidden = args->x.shape[1],
                           .row_bytes = combine_row_bytes(call),
                           .topk = args->handle->routing.topk,
                           .dtype = (int32_t)args->x.dtype,
                           .map = ep_handle_map(args->handle),
                           .x = args->x.data,
                           .x_pitch_bytes = tensor_pitch(&args->x) * (int64_t)expar_dtype_bytes(args->x.dtype),
                           .weights = args->expert_weights.data,
                           .weights_pitch = tensor_pitch(&args->expert_weights),
                           .out = reduces ? call->plan.parts[EXPAR_EP_PART_X].data : NULL,
                           .row_weights = args->topk_weights.data,
                           .row_weights_pitch = tensor_pitch(&args->topk_weights),
                           .out_weights = spreads ? call->plan.parts[EXPAR_EP_PART_TOPK_WEIGHTS].data : NULL};
    return exec->normal->reduce(exec, &call->base.exec, &step);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static int32_t options_across_nodes(const combine_call *call)
{
    if (combine_goes_row_by_row(call)) return EP_OPTION_ONE_ORDER;
    if (!call->base.buffer->exec->by_node) return 0;
    if (call->args.nodes_sum == EXPAR_EP_NODES_SUM_OWN_FIRST) return EP_OPTION_OWN_FIRST;
    return call->args.nodes_sum == EXPAR_EP_NODES_SUM_EXACT ? EP_OPTION_EXACT_NODES : 0;
}

static void combine_fill_form(combine_call *call)
{
    const expar_ep_combine_args *args = &call->args;
    call->brings.row_bytes = combine_row_bytes(call);
    call->brings.form =
        (ep_form){.kind = EP_COMBINE,
                  .options = options_across_nodes(call),
                  .hidden = (int32_t)args->x.shape[1],
                  .dtype = (int32_t)args->x.dtype,
                  .topk = args->handle->routing.topk,
                  .experts = args->handle->routing.experts,
                  .weights = tensor_given(&args->topk_weights),
                  .sum_order = (int32_t)args->sum_order,
                  .weights_of = combine_wants_owners_weights(call) ? EP_WEIGHTS_OF_OWNER : EP_WEIGHTS_OF_ALL,
                  .route = args->handle->route,
                  .route_buffer = args->handle->buffer};
}

static void fill_biases(const combine_call *call, ep_combine_step *step)
{
    for (int i = 0; i < 2; i++) {
        const expar_tensor *bias = &call->args.bias[i];
        step->bias[i] = bias->data;
        step->bias_pitch_bytes[i] = tensor_pitch(bias) * (int64_t)expar_dtype_bytes(call->args.x.dtype);
    }
}

static ep_combine_step combine_step(const combine_call *call)
{
    const expar_ep_combine_args *args = &call->args;
    const ep_plan *plan = &call->plan;
    const ep_plan_place *x = &plan->parts[EXPAR_EP_PART_X], *weights = &plan->parts[EXPAR_EP_PART_TOPK_WEIGHTS];
    const ep_plan_place *map = &plan->parts[EXPAR_EP_PART_ROW_MAP];
    ep_combine_step step = {.epoch = normal_epoch(&call->base),
                            .form = call->brings.form,
                            .rejection = call->base.rejection,
                            .routing = &args->handle->routing,
                            .mode = plan->mode,
                            .x = x->data,
                            .rows = (int32_t)plan->rows,
                            .x_offset = x->offset,
                            .weights_offset = weights->offset,
                            .x_shifts = x->mapping.shifts,
                            .weights_shifts = weights->mapping.shifts,
                            .map_offset = map->offset,
                            .map = map->data,
                            .x_pitch_bytes = x->pitch_bytes,
                            .row_bytes = combine_row_bytes(call),
                            .weights = weights->data,
                            .weights_pitch = weights->pitch_bytes / (int64_t)sizeof(float),
                            .y = args->out_y.data,
                            .y_pitch_bytes = tensor_pitch(&args->out_y) * (int64_t)expar_dtype_bytes(args->out_y.dtype),
                            .out_weights = args->out_topk_weights.data,
                            .out_weights_pitch = tensor_pitch(&args->out_topk_weights),
                            .deferred = args->async_finish || call->base.exec.captured,
                            .vote = {.rank = -1}};
    fill_biases(call, &step);
    return step;
}

/* The dispatch that was to fill the map may have been rejected since this call began. This call's place is after that
   one's end. If calls are put on streams, this is not known. */
static expar_status look_at_map(const combine_call *call)
{
    const bool needs = call->args.expert_major && !call->base.buffer->exec->ops->streams;
    if (!needs || ep_handle_map_is_sure(call->args.handle)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "the expert-major dispatch with this handle was rejected, or has not ended");
}

/* A rank that fails in here says so with its buffer advertisements. */
static expar_status combine_send(ep_call *base)
{
    combine_call *call = (combine_call *)base;
    executor *exec = base->buffer->exec;
    expar_status status = normal_make_space(base);
    if (status != EXPAR_OK) return status;
    status = ep_call_follow(base);
    if (status == EXPAR_OK) status = look_at_map(call);
    if (status == EXPAR_OK) status = reduce(call);
    if (status == EXPAR_OK) status = plan_copy(base, &call->plan, true);
    if (!base->exec.placed) return ep_call_step(base, status);
    if (status != EXPAR_OK) ep_call_reject(base, status);
    call->step = combine_step(call);
    status = ep_call_step(base, exec->normal->combine_send(exec, &base->exec, &call->step));
    return status == EXPAR_OK ? ep_call_vote(base, &call->step.vote) : status;
}

static expar_status combine_receive(ep_call *base)
{
    combine_call *call = (combine_call *)base;
    executor *exec = base->buffer->exec;
    return ep_call_step(base, exec->normal->combine_receive(exec, &base->exec, &call->step));
}

static void combine_hold(ep_call *base)
{
    ep_handle_hold(((combine_call *)base)->args.handle);
}

static void combine_drop(ep_call *base)
{
    combine_call *call = (combine_call *)base;
    plan_release(base, &call->plan);
    expar_ep_handle_release((expar_ep_handle *)call->args.handle);
}

static void combine_list(const ep_call *base, exec_replay *replay)
{
    const combine_call *call = (const combine_call *)base;
    const expar_ep_combine_args *args = &call->args;
    const expar_tensor *const all[] = {&args->x,       &args->topk_weights, &args->expert_weights,  &args->bias[0],
                                       &args->bias[1], &args->out_y,        &args->out_topk_weights};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        exec_replay_list(replay, all[i]->data);
    plan_list(&call->plan, args->handle, replay);
}

static const ep_parts combine_parts = {.bytes = sizeof(combine_call),
                                       .send = combine_send,
                                       .receive = combine_receive,
                                       .reject = normal_reject,
                                       .judge = ep_call_judge,
                                       .hold = combine_hold,
                                       .drop = combine_drop,
                                       .list = combine_list};

static expar_status combine_fit(combine_call *call)
{
    const ep_grow_step step = {.tokens = -1};
    bool fits;
    combine_fill_form(call);
    expar_status status = normal_fits(&call->base, &call->brings, &fits);
    return status != EXPAR_OK || fits ? status : normal_grow(&call->base, &call->brings, step);
}

/* Does everything that comes before the other ranks are asked. If steps are put on streams, the call takes its place
   before its memory, as a dispatch does. */
static expar_status combine_prepare(combine_call *call)
{
    executor *exec = call->base.buffer->exec;
    const bool early = exec->ops->streams && !call->base.exec.captured;
    expar_status status = early ? ep_call_follow(&call->base) : EXPAR_OK;
    if (status == EXPAR_OK) status = exec->normal->prepare(exec, &call->brings.form, combine_row_bytes(call));
    if (status == EXPAR_OK) status = combine_plan(call);
    return status == EXPAR_OK ? ep_call_promise(&call->base) : status;
}

/* A call that finishes by itself frees its blocks then, other calls free them here. The next user of a block comes
   after this call. */
static expar_status combine_carry_out(combine_call *call)
{
    expar_status status = ep_call_finish(&call->base);
    if (status == EXPAR_OK) plan_count(ep_of(&call->base), &call->plan);
    if (!call->base.issued) plan_release(&call->base, &call->plan);
    return status;
}

static void combine_give(const combine_call *call, expar_ep_combine_result *result)
{
    const expar_ep_combine_result full = {.struct_size = result->struct_size, .event = call->base.event};
    memcpy(result, &full, result->struct_size);
}

expar_status ep_combine_make(expar_ep *ep, const expar_ep_combine_args *args, bool forgets,
                             expar_ep_combine_result *result)
{
    combine_call call = {0};
    expar_status status = normal_begin(&call.base, "expar_ep_combine", &combine_parts, ep);
    if (status != EXPAR_OK) return status;
    normal_forget(&call.base, forgets && args && args->async_finish == 1);
    status = combine_check(&call, args, result);
    if (status == EXPAR_OK) status = combine_fit(&call);
    if (status == EXPAR_OK) status = combine_prepare(&call);
    if (status == EXPAR_OK) {
        status = combine_carry_out(&call);
    } else {
        plan_release(&call.base, &call.plan);
        if (!call.base.told) status = ep_call_tell_rejection(&call.base, status);
    }
    if (status != EXPAR_OK) ep_call_break_promise(&call.base);
    if (status == EXPAR_OK && result) combine_give(&call, result);
    return ep_call_end(&call.base, status);
}

expar_status expar_ep_combine(expar_ep *ep, const expar_ep_combine_args *args, expar_ep_combine_result *result)
{
    return ep_ended(ep, ep_combine_make(ep, args, false, result));
}
