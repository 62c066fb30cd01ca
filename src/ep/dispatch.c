/* SPDX-License-Identifier: Apache-2.0 */
/* expar_dispatch: from arguments to steps. Fresh: layout, notify, output, rows; on a GPU, where it can be: output,
 * layout, notify with rows. With a handle: output, rows. */
#include "ep/dispatch.h"
#include "exec/event.h"

#include <stdlib.h>
#include <string.h>

static void fill_form(dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    ep_form *form = &call->base.form;
    bool scales = tensor_given(&args->x_scales), topk = tensor_given(&args->topk_idx);
    *form = (ep_form){.kind = dispatch_cached(call) ? EP_DISPATCH_CACHED : EP_DISPATCH,
                      .hidden = (int32_t)args->x.shape[1],
                      .dtype = (int32_t)args->x.dtype,
                      .scales = scales ? (int32_t)args->x_scales.shape[1] : 0,
                      .scale_dtype = scales ? (int32_t)args->x_scales.dtype : 0};
    if (dispatch_cached(call)) {
        form->topk = call->given->routing.topk;
        form->experts = call->given->routing.experts;
        form->route = call->given->route;
    } else {
        form->topk = topk ? (int32_t)args->topk_idx.shape[1] : 0;
        form->experts = args->num_experts;
        form->idx_dtype = topk ? (int32_t)args->topk_idx.dtype : 0;
        form->weights = tensor_given(&args->topk_weights);
    }
}

/* ---- layout and notify ---- */

/* Of a fresh dispatch. A tensor without elements may have no address; its view has one. */
static ep_route_view route_view(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    ep_route_view route = {.expert_counts = args->tokens_per_expert};
    if (tensor_given(&args->topk_idx)) {
        route.idx = args->topk_idx.data ? args->topk_idx.data : "";
        route.idx_bytes = (int32_t)expar_dtype_bytes(args->topk_idx.dtype);
        route.idx_pitch = tensor_pitch(&args->topk_idx);
        route.weights = args->topk_weights.data;
        route.weights_pitch = tensor_pitch(&args->topk_weights);
    }
    if (tensor_given(&args->token_in_rank)) {
        route.token_in_rank = args->token_in_rank.data ? args->token_in_rank.data : (const uint8_t *)"";
        route.token_in_rank_pitch = tensor_pitch(&args->token_in_rank);
    }
    return route;
}

static expar_status make_handle(dispatch_call *call)
{
    expar_ep *ep = call->base.ep;
    const ep_form *form = &call->base.form;
    bool by_hand = tensor_given(&call->args.token_in_rank);
    int32_t most_targets = by_hand || form->topk > ep->shape.ranks ? ep->shape.ranks : form->topk;
    return ep_handle_create(ep, call->args.x.shape[0], form->topk, form->experts, most_targets, &call->made);
}

/* Fills the layout part of the handle's routing. */
static expar_status make_layout(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    ep_route_view route = route_view(call);
    return exec->ops->layout(exec, &route, &call->made->routing);
}

static expar_status notify(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    expar_ep_handle *made = call->made;
    ep_notify_step step = {.epoch = call->base.ep->epoch,
                           .form = call->base.form,
                           .routing = &made->routing,
                           .route = route_view(call),
                           .room = dispatch_gpu_room(call),
                           .no_wait = call->no_wait || call->ahead};
    expar_status status = exec->ops->notify(exec, &step);
    if (status == EXPAR_OK && call->ahead) status = dispatch_gpu_launch_ahead(call, &step);
    ep_call_step(&call->base, status);
    if (status == EXPAR_OK) status = ep_call_verdict(&call->base, &step.verdict);
    if (status != EXPAR_OK || call->no_wait) return status;
    int64_t coming = made->routing.rank_prefix[made->routing.ranks - 1], worst = call->args.num_worst_tokens;
    made->rows = worst ? worst : coming;
    made->recv_tokens = worst && worst < coming ? worst : coming;
    made->dropped = coming - made->recv_tokens;
    if (call->base.ep->gpu) dispatch_gpu_settle_room(call);
    return EXPAR_OK;
}

/* ---- output ---- */

/* The map of an expert-major dispatch, filled later. */
static expar_status make_row_map(dispatch_call *call)
{
    expar_ep_handle *made = call->made;
    uint64_t bytes = ((uint64_t)made->rows * (uint64_t)made->routing.topk + 1) * sizeof *made->row_map;
    if (call->base.ep->gpu) {
        expar_status status = ep_block_take(call->base.ep, bytes, &made->device_map);
        if (status == EXPAR_OK) made->row_map = made->device_map->data;
        return status;
    }
    made->row_map = malloc(bytes);
    if (!made->row_map) return error_set(EXPAR_ERR_MEMORY, "no memory for a row map");
    memset(made->row_map, 0xff, bytes); /* the handle of a dispatch that fails later names no row */
    return EXPAR_OK;
}

/* Per-expert counts of a fresh dispatch, and with expert_major the size of its recv_x and the room for the map. */
static expar_status count_experts(dispatch_call *call, int32_t **counts)
{
    expar_ep_handle *made = call->made;
    const ep_routing *routing = &made->routing;
    int64_t sum, unit = call->args.expert_alignment > 1 ? call->args.expert_alignment : 1;
    if (call->ahead) {
        *counts = call->ahead->tokens_per_expert;
        call->ahead->tokens_per_expert = NULL;
    } else {
        *counts = malloc((size_t)routing->local_experts * sizeof **counts);
    }
    if (!*counts) return error_set(EXPAR_ERR_MEMORY, "no memory for %d counts", routing->local_experts);
    expar_status status = ep_expert_counts(routing, (int32_t)unit, *counts, &sum);
    if (status != EXPAR_OK || !call->args.expert_major) return status;
    if (call->args.num_worst_tokens) sum = made->rows * routing->topk + (unit - 1) * routing->local_experts;
    if (sum > INT32_MAX)
        return error_set(EXPAR_ERR_ARGUMENT, "an expert-major output of %lld rows; expected at most 2^31 - 1",
                         (long long)sum);
    made->expert_rows = sum;
    made->alignment = (int32_t)unit;
    return make_row_map(call);
}

ep_wish dispatch_wish(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    const ep_form *form = &call->base.form;
    const expar_ep_handle *handle = dispatch_handle(call);
    int32_t idx_bytes = (int32_t)expar_dtype_bytes((expar_dtype)form->idx_dtype);
    ep_wish wish = {.shape = ep_block_shape_of(form, dispatch_row_bytes(call), idx_bytes, handle->rows),
                    .expert_major = args->expert_major != 0,
                    .path = args->path,
                    .rows_known = handle->recv_tokens >= 0,
                    .out_x = tensor_given(&args->out_x) ? &args->out_x : NULL,
                    .output = call->ahead};
    if (!wish.expert_major) return wish;
    wish.shape.x_rows = handle->expert_rows;
    wish.shape.map = 1;
    return wish;
}

static expar_status make_destination(dispatch_call *call)
{
    const ep_wish wish = dispatch_wish(call);
    if (wish.out_x && wish.out_x->shape[0] < wish.shape.x_rows)
        return error_set(EXPAR_ERR_BUFFER_SIZE, "out_x has %lld rows; %lld are received",
                         (long long)wish.out_x->shape[0], (long long)wish.shape.x_rows);
    expar_status status = ep_destination_make(call->base.ep, &wish, &call->to);
    call->ahead = NULL;
    return status;
}

expar_status dispatch_make_output(dispatch_call *call)
{
    int32_t *counts = NULL;
    expar_status status = dispatch_cached(call) ? EXPAR_OK : count_experts(call, &counts);
    if (status == EXPAR_OK) status = make_destination(call);
    if (status == EXPAR_OK && !call->no_wait)
        call->to.output->tokens_per_expert = counts;
    else
        free(counts);
    return status;
}

/* ---- rows ---- */

ep_dispatch_step dispatch_step(const dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    const expar_tensor *x = &call->args.x, *scales = &call->args.x_scales;
    ep_dispatch_step step = {.epoch = call->base.ep->epoch,
                             .form = call->base.form,
                             .refusal = call->base.refusal,
                             /* A cached dispatch only reads it. */
                             .routing = (ep_routing *)&dispatch_handle(call)->routing,
                             .x = x->data,
                             .x_pitch_bytes = tensor_pitch(x) * (int64_t)expar_dtype_bytes(x->dtype),
                             .row_bytes = dispatch_row_bytes(call),
                             .scales = scales->data,
                             .scales_row_pitch = scales->strides[0],
                             .scales_column_pitch = scales->strides[1],
                             .arrival = call->to.arrival,
                             .no_wait = call->no_wait || call->args.async_finish || exec->capturing,
                             .verdict = {.rank = -1}};
    if (!dispatch_cached(call)) step.route = route_view(call);
    return step;
}

expar_status dispatch_move_rows(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    ep_dispatch_step step = dispatch_step(call);
    expar_status status = EXPAR_OK;
    if (!call->launched_ahead)
        status = exec->ops->dispatch(exec, &step);
    else if (!step.no_wait)
        status = executor_cuda_await_opening(exec, &step);
    ep_call_step(&call->base, status);
    if (status != EXPAR_OK) return status;
    call->dropped = step.dropped;
    return ep_call_verdict(&call->base, &step.verdict);
}

/* ---- after the rows ---- */

/* Rows that nobody sent have no experts. */
static void blank_tail(const dispatch_call *call)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    if (!call->to.arrival.idx || handle->recv_tokens == handle->rows) return;
    size_t slot_bytes = expar_dtype_bytes((expar_dtype)call->base.form.idx_dtype);
    size_t row = (size_t)handle->routing.topk * slot_bytes;
    memset((uint8_t *)call->to.arrival.idx + (size_t)handle->recv_tokens * row, 0xff,
           (size_t)(handle->rows - handle->recv_tokens) * row);
}

static expar_status fill_row_map(dispatch_call *call)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_routing *routing = &handle->routing;
    expar_status status = EXPAR_OK;
    if (!dispatch_cached(call))
        status = ep_expert_map(call->made, call->to.output->tokens_per_expert, call->to.arrival.idx,
                               (int32_t)expar_dtype_bytes((expar_dtype)call->base.form.idx_dtype));
    if (status == EXPAR_OK)
        memcpy(call->to.row_map, handle->row_map, (size_t)handle->rows * (size_t)routing->topk * sizeof(int32_t));
    return status;
}

static expar_status expand(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    expar_status status = fill_row_map(call);
    if (status != EXPAR_OK) return status;
    ep_expand_step step = {.rows = handle->recv_tokens,
                           .row_bytes = dispatch_row_bytes(call),
                           .scale_bytes = 4 * (int64_t)call->base.form.scales,
                           .topk = handle->routing.topk,
                           .map = call->to.row_map,
                           .x = call->to.arrival.x,
                           .scales = call->to.arrival.scales,
                           .out_x = call->to.x,
                           .out_scales = call->to.scales};
    status = exec->ops->expand(exec, &step);
    if (status == EXPAR_OK && call->args.zero_padding)
        status = ep_expert_zero_padding(handle, call->to.x, step.row_bytes, call->to.scales, step.scale_bytes);
    mem_block_release(call->to.output->arrival);
    call->to.output->arrival = NULL;
    return status;
}

/* All that is left once the outputs are known. */
static expar_status finish(dispatch_call *call)
{
    if (call->base.ep->gpu) return dispatch_gpu_finish(call);
    expar_status status = dispatch_move_rows(call);
    if (status != EXPAR_OK) return status;
    blank_tail(call);
    if (call->args.expert_major) status = expand(call);
    const expar_ep_handle *handle = dispatch_handle(call);
    if (status != EXPAR_OK || handle->dropped == 0) return status;
    return error_set(EXPAR_ERR_DROPPED, "expar_dispatch: %lld of %lld rows were dropped: num_worst_tokens is %lld",
                     (long long)handle->dropped, (long long)(handle->dropped + handle->recv_tokens),
                     (long long)handle->rows);
}

/* ---- results ---- */

static void fill_result(const dispatch_call *call, expar_dispatch_result *result)
{
    const ep_form *form = &call->base.form;
    const ep_destination *to = &call->to;
    const expar_ep_handle *handle = dispatch_handle(call);
    int64_t x_rows = call->args.expert_major ? handle->expert_rows : handle->rows;
    expar_dispatch_result full = {.struct_size = result->struct_size,
                                  .recv_x = expar_tensor_2d(to->x, (expar_dtype)form->dtype, x_rows, form->hidden),
                                  .num_local_experts = handle->routing.local_experts,
                                  .num_recv_tokens = handle->recv_tokens,
                                  .num_dropped_tokens = call->dropped ? call->dropped : handle->dropped,
                                  .recv_tokens_per_expert = to->output->tokens_per_expert,
                                  .handle = call->made,
                                  .output = to->output,
                                  .event = call->event};
    if (call->no_wait) full.recv_tokens_per_expert = NULL;
    full.path = to->arrival.mode == EP_MODE_DIRECT ? EXPAR_PATH_DIRECT : EXPAR_PATH_QUEUE;
    if (form->scales)
        full.recv_x_scales = expar_tensor_2d(to->scales, (expar_dtype)form->scale_dtype, x_rows, form->scales);
    if (form->idx_dtype)
        full.recv_topk_idx = expar_tensor_2d(to->arrival.idx, (expar_dtype)form->idx_dtype, handle->rows, form->topk);
    if (form->weights)
        full.recv_topk_weights = expar_tensor_2d(to->arrival.weights, EXPAR_F32, handle->rows, form->topk);
    if (to->row_map) full.recv_row_map = expar_tensor_2d(to->row_map, EXPAR_I32, handle->rows, form->topk);
    full.recv_x.device = full.recv_x_scales.device = call->base.ep->device;
    full.recv_topk_idx.device = full.recv_topk_weights.device = full.recv_row_map.device = call->base.ep->device;
    memcpy(result, &full, result->struct_size);
}

/* ---- the call ---- */

static expar_status prepare_job(dispatch_call *call)
{
    call->job = malloc(sizeof *call->job);
    if (!call->job) return error_set(EXPAR_ERR_MEMORY, "no memory for an asynchronous call");
    return ep_issue_prepare(call->base.ep, &call->event);
}

/* All that needs the caller's thread before the call is opened. A fresh dispatch reads its routing here. */
static expar_status prepare(dispatch_call *call)
{
    fill_form(call);
    bool fresh = !dispatch_cached(call), on_gpu = call->base.ep->gpu != NULL;
    call->no_wait = on_gpu && fresh && call->args.num_worst_tokens;
    expar_status status = fresh ? ep_call_follow(&call->base, call->args.wait_event) : EXPAR_OK;
    if (status == EXPAR_OK && on_gpu)
        status = executor_cuda_load(call->base.ep->exec, &call->base.form, dispatch_row_bytes(call));
    if (status == EXPAR_OK && fresh) status = make_handle(call);
    if (status == EXPAR_OK && on_gpu && (!fresh || call->no_wait)) status = dispatch_gpu_make_output(call);
    if (status == EXPAR_OK && fresh) status = make_layout(call);
    if (status == EXPAR_OK && on_gpu && fresh && !call->no_wait) dispatch_gpu_make_ahead(call);
    if (status != EXPAR_OK || !call->args.async_finish) return status;
    return on_gpu ? event_create_for_call(&call->event) : prepare_job(call);
}

/* A rank that fails from here on says so with its offers, unless they stand. */
static expar_status run_to_end(dispatch_call *call)
{
    expar_status status = dispatch_cached(call) ? ep_call_follow(&call->base, call->args.wait_event) : EXPAR_OK;
    if (!ep_call_follows(&call->base)) return ep_call_step(&call->base, status);
    if (status != EXPAR_OK) ep_call_refuse(&call->base, status);
    return finish(call);
}

static expar_status dispatch_job(void *context)
{
    dispatch_call *call = context;
    expar_status status = ep_call_poison(&call->base, run_to_end(call));
    expar_event_destroy(call->args.wait_event);
    expar_ep_handle_destroy((expar_ep_handle *)dispatch_handle(call));
    expar_ep_output_release(call->to.output);
    free(call);
    return status;
}

/* The job holds what it uses: the caller may give its own holds back at any time. */
static void issue(dispatch_call *call)
{
    dispatch_call *job = call->job;
    call->job = NULL;
    *job = *call;
    ep_handle_hold(dispatch_handle(job));
    atomic_fetch_add_explicit(&job->to.output->holds, 1, memory_order_relaxed);
    if (job->args.wait_event) event_retain(job->args.wait_event);
    ep_issue(job->base.ep, dispatch_job, job, job->event);
}

static expar_status carry_out(dispatch_call *call, expar_dispatch_result *result)
{
    expar_status status = dispatch_cached(call) ? EXPAR_OK : notify(call);
    if (status != EXPAR_OK) return status;
    if (!call->to.output) status = dispatch_make_output(call);
    if (status != EXPAR_OK) {
        ep_call_refuse(&call->base, status);
        return dispatch_move_rows(call);
    }
    if (!call->job) status = run_to_end(call);
    if (status == EXPAR_OK && call->base.ep->gpu) status = dispatch_gpu_end(call);
    if (status == EXPAR_OK || status == EXPAR_ERR_DROPPED) fill_result(call, result);
    if (call->job) issue(call);
    return status;
}

static void give_up(dispatch_call *call)
{
    free(call->job);
    expar_ep_output_release(call->ahead);
    expar_ep_output_release(call->to.output);
    expar_ep_handle_destroy(call->made);
    if (!call->event) return;
    expar_event_destroy(call->event);
    expar_event_destroy(call->event);
}

expar_status expar_dispatch(expar_ep *ep, const expar_dispatch_args *args, expar_dispatch_result *result)
{
    dispatch_call call = {0};
    expar_status status = ep_call_begin(&call.base, "expar_dispatch", ep);
    if (status != EXPAR_OK) return status;
    status = dispatch_check(&call, args, result);
    if (status == EXPAR_OK) status = prepare(&call);
    if (status == EXPAR_OK) {
        status = carry_out(&call, result);
    } else {
        ep_call_refuse(&call.base, status);
        status = ep_call_tell_refusal(&call.base);
    }
    if (status != EXPAR_OK && status != EXPAR_ERR_DROPPED) give_up(&call);
    return ep_call_end(&call.base, status);
}
