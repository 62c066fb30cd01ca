/* SPDX-License-Identifier: Apache-2.0 */
/* expar_combine: from arguments to steps.
 *
 * Begun: checks, and which rows travel how. Send: expert-major rows are summed to one row a token, rows that peers
 * cannot reach are copied where they can; offers. Receive: rows, and sums. */
#include "ep/normal/combine.h"
#include "exec/event.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rows that travel ---------------------------------------------------------------------------------------- */

static int64_t row_bytes(const combine_call *call)
{
    return call->args.x.shape[1] * (int64_t)expar_dtype_bytes(call->args.x.dtype);
}

/* Rows that this rank has, or may have where the host does not know. */
static int64_t rows_held(const combine_call *call)
{
    const expar_ep_handle *handle = call->args.handle;
    return handle->recv_tokens < 0 ? handle->rows : handle->recv_tokens;
}

/* Expert-major: takes the memory for one row a token, unless all of them travel; the executor fills it later. */
static expar_status choose_rows(combine_call *call)
{
    bool each_slot = combine_adds_each_slot(call);
    call->x = call->args.x.data;
    call->x_rows = each_slot ? call->args.x.shape[0] : rows_held(call);
    call->x_pitch_bytes = tensor_pitch(&call->args.x) * (int64_t)expar_dtype_bytes(call->args.x.dtype);
    if (!call->args.expert_major || each_slot) return EXPAR_OK;
    call->x_pitch_bytes = row_bytes(call);
    uint64_t bytes = (uint64_t)rows_held(call) * (uint64_t)row_bytes(call);
    expar_status status = ep_block_take(ep_of(&call->base), bytes, &call->reduced);
    if (status == EXPAR_OK) call->x = call->reduced->data;
    return status;
}

/* Likewise for weights of expert-major rows, which travel as [R][K]. */
static expar_status choose_weights(combine_call *call)
{
    const int32_t topk = call->args.handle->routing.topk;
    call->weights = call->args.topk_weights.data;
    call->weights_pitch = tensor_pitch(&call->args.topk_weights);
    if (!combine_weighs_rows(call)) return EXPAR_OK;
    uint64_t bytes = (uint64_t)rows_held(call) * (uint64_t)topk * sizeof(float);
    expar_status status = ep_block_take(ep_of(&call->base), bytes, &call->spread);
    if (status != EXPAR_OK) return status;
    call->weights = call->spread->data;
    call->weights_pitch = topk;
    return EXPAR_OK;
}

static void release_stages(combine_call *call)
{
    mem_block_release(call->staged_x);
    mem_block_release(call->staged_weights);
    mem_block_release(call->staged_map);
    call->staged_x = call->staged_weights = call->staged_map = NULL;
}

static uint64_t x_span_bytes(const combine_call *call)
{
    return ep_span_bytes(call->x_rows, call->x_pitch_bytes, row_bytes(call));
}

static uint64_t weights_span_bytes(const combine_call *call)
{
    const int64_t unit = (int64_t)sizeof(float), topk = call->args.handle->routing.topk;
    return ep_span_bytes(rows_held(call), call->weights_pitch * unit, topk * unit);
}

static uint64_t map_bytes(const combine_call *call)
{
    return (uint64_t)rows_held(call) * (uint64_t)call->args.handle->routing.topk * sizeof(int32_t);
}

/* What of the rows that travel peers can reach where it lies. */
typedef struct reached {
    bool x, weights, map;
} reached;

/* Memory beside the heap. With path DIRECT it is refused whether peers map it or not. */
static bool map_caller(combine_call *call, const void *data, uint64_t bytes, exec_mapping *mapping, uint64_t *offset)
{
    executor *exec = call->base.buffer->exec;
    if (call->args.path != EXPAR_PATH_AUTO) return false;
    if (!exec->normal->map_caller(exec, &call->base.exec, data, bytes, mapping)) return false;
    *offset = mapping->offset;
    return true;
}

/* An executor that has mapped nothing may have gone by now. */
static void unmap_caller(const combine_call *call, exec_mapping *mapping)
{
    executor *exec = call->base.buffer->exec;
    if (mapping->held) exec->normal->unmap_caller(exec, mapping);
}

static bool find_x(combine_call *call)
{
    const executor *exec = call->base.buffer->exec;
    const uint64_t bytes = x_span_bytes(call);
    if (call->x_rows == 0 || exec->normal->reaches(exec, call->x, bytes, &call->x_offset)) return true;
    call->x_mapped = map_caller(call, call->x, bytes, &call->x_mapping, &call->x_offset);
    return call->x_mapped;
}

static bool find_weights(combine_call *call)
{
    const executor *exec = call->base.buffer->exec;
    const uint64_t bytes = weights_span_bytes(call);
    if (bytes == 0 || exec->normal->reaches(exec, call->weights, bytes, &call->weights_offset)) return true;
    return map_caller(call, call->weights, bytes, &call->weights_mapping, &call->weights_offset);
}

static reached find_reached(combine_call *call)
{
    const executor *exec = call->base.buffer->exec;
    const bool none = rows_held(call) == 0;
    reached in = {true, true, true};
    in.x = find_x(call);
    if (call->weights) in.weights = find_weights(call);
    if (combine_adds_each_slot(call))
        in.map =
            none || exec->normal->reaches(exec, ep_handle_map(call->args.handle), map_bytes(call), &call->map_offset);
    return in;
}

/* Blocks of the pool for what peers cannot reach; the copies are made when the call runs. Where there is no room, all
   goes by the queue. */
static void stage(combine_call *call, const reached *in)
{
    mem_pool *pool = call->base.buffer->exec->pool;
    bool room = in->x || mem_pool_take(pool, x_span_bytes(call), &call->staged_x) == EXPAR_OK;
    room = room && (in->weights || mem_pool_take(pool, weights_span_bytes(call), &call->staged_weights) == EXPAR_OK);
    room = room && (in->map || mem_pool_take(pool, map_bytes(call), &call->staged_map) == EXPAR_OK);
    if (room) {
        if (call->staged_x) call->x_offset = call->staged_x->offset;
        if (call->staged_weights) call->weights_offset = call->staged_weights->offset;
        if (call->staged_map) call->map_offset = call->staged_map->offset;
        call->mode = EP_MODE_DIRECT;
        return;
    }
    release_stages(call);
}

static expar_status fill_stages(combine_call *call)
{
    executor *exec = call->base.buffer->exec;
    exec_call *of = &call->base.exec;
    expar_status status = EXPAR_OK;
    if (call->staged_x) status = exec->normal->copy(exec, of, call->staged_x->data, call->x, x_span_bytes(call));
    if (status == EXPAR_OK && call->staged_weights)
        status = exec->normal->copy(exec, of, call->staged_weights->data, call->weights, weights_span_bytes(call));
    if (status == EXPAR_OK && call->staged_map)
        status =
            exec->normal->copy(exec, of, call->staged_map->data, ep_handle_map(call->args.handle), map_bytes(call));
    return status;
}

static void release_blocks(combine_call *call)
{
    mem_block_release(call->reduced);
    mem_block_release(call->spread);
    call->reduced = call->spread = NULL;
    release_stages(call);
    unmap_caller(call, &call->x_mapping);
    unmap_caller(call, &call->weights_mapping);
}

static expar_status refuse_direct(const combine_call *call, const reached *in)
{
    const bool of_map = in->x && in->weights, of_weights = in->x && !of_map;
    const bool own = of_map || (of_weights ? call->spread != NULL : call->reduced != NULL);
    const uint64_t bytes = of_map ? map_bytes(call) : of_weights ? weights_span_bytes(call) : x_span_bytes(call);
    if (own) {
        char what[64];
        snprintf(what, sizeof what, "%lld rows", (long long)rows_held(call));
        return ep_pool_lacks(ep_of(&call->base), bytes, what);
    }
    return error_set(EXPAR_ERR_ADDRESS, "path is DIRECT, but %s.data %p is not in the symmetric heap",
                     of_weights ? "topk_weights" : "x", of_weights ? (const void *)call->weights : call->x);
}

static expar_status combine_choose_mode(combine_call *call)
{
    call->mode = EP_MODE_QUEUE;
    if (call->args.path == EXPAR_PATH_QUEUE) return EXPAR_OK;
    const reached in = find_reached(call);
    /* The handle's map is the library's own: the pool takes a copy on any device. */
    const bool own_in = in.x && in.weights;
    if (own_in && in.map)
        call->mode = EP_MODE_DIRECT;
    else if (own_in || (call->args.path == EXPAR_PATH_AUTO && call->base.buffer->exec->normal->stages))
        stage(call, &in);
    if (call->mode == EP_MODE_DIRECT || call->args.path == EXPAR_PATH_AUTO) return EXPAR_OK;
    return refuse_direct(call, &in);
}

/* Rows of expert-major results to one a token, and their weights to the slots. */
static expar_status reduce(combine_call *call)
{
    if (!call->reduced && !call->spread) return EXPAR_OK;
    const expar_combine_args *args = &call->args;
    executor *exec = call->base.buffer->exec;
    ep_reduce_step step = {.routing = &args->handle->routing,
                           .rows = rows_held(call),
                           .hidden = args->x.shape[1],
                           .row_bytes = row_bytes(call),
                           .topk = args->handle->routing.topk,
                           .dtype = (int32_t)args->x.dtype,
                           .map = ep_handle_map(args->handle),
                           .x = args->x.data,
                           .x_pitch_bytes = tensor_pitch(&args->x) * (int64_t)expar_dtype_bytes(args->x.dtype),
                           .weights = args->expert_weights.data,
                           .weights_pitch = tensor_pitch(&args->expert_weights),
                           .out = call->reduced ? call->reduced->data : NULL,
                           .row_weights = args->topk_weights.data,
                           .row_weights_pitch = tensor_pitch(&args->topk_weights),
                           .out_weights = call->spread ? call->spread->data : NULL};
    return exec->normal->reduce(exec, &call->base.exec, &step);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static int32_t options_across_nodes(const combine_call *call)
{
    if (combine_goes_row_by_row(call)) return EP_OPTION_ONE_ORDER;
    const bool exact = call->args.exact_across_nodes == EXPAR_NODES_EXACT && call->base.buffer->exec->by_node;
    return exact ? EP_OPTION_EXACT_NODES : 0;
}

static void combine_fill_form(combine_call *call)
{
    const expar_combine_args *args = &call->args;
    call->brings.row_bytes = row_bytes(call);
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
    const expar_combine_args *args = &call->args;
    ep_combine_step step = {.epoch = normal_epoch(&call->base),
                            .form = call->brings.form,
                            .refusal = call->base.refusal,
                            .routing = &args->handle->routing,
                            .mode = call->mode,
                            .x = call->x,
                            .rows = (int32_t)rows_held(call),
                            .x_offset = call->x_offset,
                            .weights_offset = call->weights_offset,
                            .x_shifts = call->x_mapping.shifts,
                            .weights_shifts = call->weights_mapping.shifts,
                            .map_offset = call->map_offset,
                            .map = combine_adds_each_slot(call) ? ep_handle_map(args->handle) : NULL,
                            .x_pitch_bytes = call->x_pitch_bytes,
                            .row_bytes = row_bytes(call),
                            .weights = call->weights,
                            .weights_pitch = call->weights_pitch,
                            .y = args->y.data,
                            .y_pitch_bytes = tensor_pitch(&args->y) * (int64_t)expar_dtype_bytes(args->y.dtype),
                            .out_weights = args->out_topk_weights.data,
                            .out_weights_pitch = tensor_pitch(&args->out_topk_weights),
                            .deferred = args->async_finish || call->base.exec.captured,
                            .verdict = {.rank = -1}};
    fill_biases(call, &step);
    return step;
}

/* The dispatch that was to fill the map may have been refused since this call began; its place is behind that one's
   end. Where calls lie on streams this is not known. */
static expar_status look_at_map(const combine_call *call)
{
    const bool needs = call->args.expert_major && !call->base.buffer->exec->ops->streams;
    if (!needs || ep_handle_map_is_sure(call->args.handle)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "the expert-major dispatch with this handle was refused, or has not ended");
}

/* A rank that fails in here says so with its offers. */
static expar_status combine_send(ep_call *base)
{
    combine_call *call = (combine_call *)base;
    executor *exec = base->buffer->exec;
    expar_status status = normal_make_room(base);
    if (status != EXPAR_OK) return status;
    status = ep_call_follow(base);
    if (status == EXPAR_OK) status = look_at_map(call);
    if (status == EXPAR_OK) status = reduce(call);
    if (status == EXPAR_OK) status = fill_stages(call);
    if (!base->exec.placed) return ep_call_step(base, status);
    if (status != EXPAR_OK) ep_call_refuse(base, status);
    call->step = combine_step(call);
    status = ep_call_step(base, exec->normal->combine_send(exec, &base->exec, &call->step));
    return status == EXPAR_OK ? ep_call_verdict(base, &call->step.verdict) : status;
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
    release_blocks(call);
    expar_ep_handle_destroy((expar_ep_handle *)call->args.handle);
}

static const ep_halves combine_halves = {.bytes = sizeof(combine_call),
                                         .send = combine_send,
                                         .receive = combine_receive,
                                         .refuse = normal_refuse,
                                         .judge = ep_call_judge,
                                         .hold = combine_hold,
                                         .drop = combine_drop};

/* In a capture: the graph keeps what its kernels touch, whatever becomes of the caller's references. */
static expar_status combine_keep_in_graph(const combine_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = call->args.handle;
    mem_block *const blocks[] = {handle->routing.own, ep_handle_map_block(handle), call->reduced,   call->spread,
                                 call->staged_x,      call->staged_weights,        call->staged_map};
    return exec->ops->keep(exec, &call->base.exec, blocks, ARRAY_LENGTH(blocks));
}

static expar_status combine_fit(combine_call *call)
{
    const ep_grow_step step = {.tokens = -1};
    bool fits;
    combine_fill_form(call);
    expar_status status = normal_fits(&call->base, &call->brings, &fits);
    return status != EXPAR_OK || fits ? status : normal_grow(&call->base, &call->brings, step);
}

/* All that is done before the others are asked. Where steps go on streams, the call takes its place before its
   memory, as a dispatch does. */
static expar_status combine_prepare(combine_call *call)
{
    executor *exec = call->base.buffer->exec;
    const bool early = exec->ops->streams && !call->base.exec.captured;
    expar_status status = early ? ep_call_follow(&call->base) : EXPAR_OK;
    if (status == EXPAR_OK) status = exec->normal->prepare(exec, &call->brings.form, row_bytes(call));
    if (status == EXPAR_OK) status = choose_rows(call);
    if (status == EXPAR_OK) status = choose_weights(call);
    if (status == EXPAR_OK) status = combine_choose_mode(call);
    if (status == EXPAR_OK) status = combine_keep_in_graph(call);
    return status == EXPAR_OK && call->args.async_finish ? ep_call_promise(&call->base) : status;
}

/* Blocks go with the call that finishes by itself, else here: who takes them next comes behind it. */
static expar_status combine_carry_out(combine_call *call)
{
    const bool copied = call->staged_x != NULL;
    expar_status status = ep_call_finish(&call->base);
    if (!call->base.issued) release_blocks(call);
    if (status == EXPAR_OK) ep_count_path(ep_of(&call->base), call->mode);
    if (status == EXPAR_OK && call->mode == EP_MODE_DIRECT) ep_count_rows(ep_of(&call->base), call->x_mapped, copied);
    if (status == EXPAR_OK && call->args.async_finish) *call->args.event = call->base.event;
    return status;
}

expar_status expar_combine(expar_ep *ep, const expar_combine_args *args)
{
    combine_call call = {0};
    expar_status status = normal_begin(&call.base, "expar_combine", &combine_halves, ep);
    if (status != EXPAR_OK) return ep_ended(ep, status);
    status = combine_check(&call, args);
    if (status == EXPAR_OK) status = combine_fit(&call);
    if (status == EXPAR_OK) status = combine_prepare(&call);
    if (status == EXPAR_OK) {
        status = combine_carry_out(&call);
    } else {
        release_blocks(&call);
        if (!call.base.told) status = ep_call_tell_refusal(&call.base, status);
    }
    if (status != EXPAR_OK) ep_call_break_promise(&call.base);
    return ep_ended(ep, ep_call_end(&call.base, status));
}
