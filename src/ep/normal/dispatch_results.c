/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a dispatch: how rows that have arrived get where the plan has them, and what the caller is told. */
#include "ep/normal/dispatch.h"

#include <string.h>

/* Where rows of a part have come, and where the result is. */
static void *arrived(const dispatch_call *call, int part)
{
    return call->plan.parts[part].travels;
}

static void *result_at(const dispatch_call *call, int part)
{
    return call->plan.parts[part].data;
}

/* ---- from the arrival to the results ----------------------------------------------------------------------------- */

/* Whether this call has to fill the handle's map: the one that was to may have been refused since this one began. */
static bool dispatch_takes_map(dispatch_call *call)
{
    expar_ep_handle *handle = (expar_ep_handle *)dispatch_handle(call);
    if (!call->fills_map && !ep_handle_map_is_sure(handle) && tensor_given(&call->args.topk_idx))
        call->fills_map = !atomic_exchange_explicit(&handle->mapped, true, memory_order_acq_rel);
    return call->fills_map;
}

/* If steps are put on a stream, the host need not know how a dispatch ends. So dispatches that can fill the map fill it
   again, one after the other, until the host knows that one has filled it. */
static bool dispatch_fills_again(const dispatch_call *call)
{
    return call->base.buffer->exec->ops->streams && !ep_handle_map_is_sure(dispatch_handle(call)) &&
           tensor_given(&call->args.topk_idx);
}

/* The map that this call fills, or reads. On the CPU the handle's may be under way on another buffer, or have been left
   by a dispatch that was refused: then the call fills the result's own. */
static expar_status choose_map(dispatch_call *call, int32_t **map, bool *fills)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    *fills = dispatch_takes_map(call) || dispatch_fills_again(call);
    *map = ep_handle_map(handle);
    if (*fills || call->base.buffer->exec->ops->streams || ep_handle_map_is_sure(handle)) return EXPAR_OK;
    *fills = tensor_given(&call->args.topk_idx);
    *map = result_at(call, EXPAR_EP_PART_ROW_MAP);
    if (*fills) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "the dispatch that was to fill the handle's row map was rejected, or has not "
                                       "ended; expected topk_idx");
}

/* Number of this rank's first expert, as recv_topk_idx has it. */
static int32_t dispatch_first_expert(const dispatch_call *call)
{
    bool global = call->brings.form.options & EP_OPTION_GLOBAL_EXPERTS;
    return global ? call->base.buffer->group->rank * dispatch_handle(call)->routing.local_experts : 0;
}

/* The handle's map, which the first dispatch that can fills, and the result's, which is a copy of it. */
static expar_status fill_row_map(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    ep_map_step step = {.routing = &handle->routing,
                        .alignment = handle->alignment,
                        .idx_bytes = (int32_t)expar_dtype_bytes((expar_dtype)call->brings.form.idx_dtype),
                        .rows = handle->rows,
                        .expert_rows = handle->expert_rows,
                        .first_expert = dispatch_first_expert(call),
                        .counted = dispatch_cached(call) ? 0 : normal_epoch(&call->base),
                        .idx = arrived(call, EXPAR_EP_PART_TOPK_IDX)};
    bool fills;
    expar_status status = choose_map(call, &step.map, &fills);
    step.again = !call->fills_map;
    if (status == EXPAR_OK && fills) status = exec->normal->map(exec, &call->base.exec, &step);
    if (status != EXPAR_OK) return status;
    const bool known = !exec->ops->streams || !call->step.deferred;
    if (fills && known && step.map == ep_handle_map(handle)) ep_handle_map_set_sure((expar_ep_handle *)handle);
    if (step.map == result_at(call, EXPAR_EP_PART_ROW_MAP)) return EXPAR_OK;
    return exec->normal->copy(exec, &call->base.exec, result_at(call, EXPAR_EP_PART_ROW_MAP), step.map,
                              (uint64_t)handle->rows * (uint64_t)handle->routing.topk * sizeof(int32_t));
}

/* Filled by fill_row_map. On the CPU the result's, since the handle's may be another call's to fill. */
static const int32_t *row_map_of(const dispatch_call *call)
{
    return call->base.buffer->exec->ops->streams ? ep_handle_map(dispatch_handle(call))
                                                 : result_at(call, EXPAR_EP_PART_ROW_MAP);
}

/* To expert-major rows; or, without a map, scales to column-major ones. */
static expar_status arrange_rows(dispatch_call *call, const int32_t *map)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_arrange_step step = {.routing = &handle->routing,
                                  .rows = handle->rows,
                                  .row_bytes = dispatch_row_bytes(call),
                                  .scale_bytes = 4 * (int64_t)call->brings.form.scales,
                                  .topk = handle->routing.topk,
                                  .map = map,
                                  .x = arrived(call, EXPAR_EP_PART_X),
                                  .scales = arrived(call, EXPAR_EP_PART_SCALES),
                                  .weights = arrived(call, EXPAR_EP_PART_TOPK_WEIGHTS),
                                  .out_x = result_at(call, EXPAR_EP_PART_X),
                                  .out_scales = result_at(call, EXPAR_EP_PART_SCALES),
                                  .out_pitch = dispatch_scales_pitch(call),
                                  .out_weights = result_at(call, EXPAR_EP_PART_ROW_WEIGHTS),
                                  .pads = map && call->args.zero_padding,
                                  .out_rows = handle->expert_rows,
                                  .alignment = handle->alignment};
    return exec->normal->arrange(exec, &call->base.exec, &step);
}

static expar_status make_expert_major(dispatch_call *call)
{
    expar_status status = fill_row_map(call);
    if (status == EXPAR_OK) status = arrange_rows(call, row_map_of(call));
    if (call->base.replayed) return status;
    mem_block_release(call->plan.output->arrival);
    call->plan.output->arrival = NULL;
    return status;
}

static expar_status tell_sources(dispatch_call *call)
{
    executor *exec = call->base.buffer->exec;
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_sources_step step = {.routing = &handle->routing,
                                  .rows = handle->rows,
                                  .topk = call->brings.form.topk,
                                  .stride = call->args.src_stride,
                                  .src = arrived(call, EXPAR_EP_PART_SRC_TOKEN),
                                  .map = call->args.expert_major ? row_map_of(call) : NULL,
                                  .out = result_at(call, EXPAR_EP_PART_SRC_METADATA)};
    return exec->normal->sources(exec, &call->base.exec, &step);
}

expar_status dispatch_arrange(dispatch_call *call)
{
    const bool columns = !call->args.expert_major && call->args.column_scales && call->brings.form.scales;
    expar_status status = call->args.expert_major ? make_expert_major(call) : EXPAR_OK;
    if (status == EXPAR_OK && columns) status = arrange_rows(call, NULL);
    if (status == EXPAR_OK && call->args.src_stride) status = tell_sources(call);
    return status == EXPAR_OK ? plan_copy(&call->base, &call->plan, false) : status;
}

/* ---- what the caller is told ------------------------------------------------------------------------------------- */

/* A part of the results as a tensor. */
typedef struct told_part {
    expar_tensor *tensor; /* the caller's */
    int part;
    expar_dtype dtype; /* 0: the call is without the part */
    int64_t rows, columns;
} told_part;

static void tell_part(const dispatch_call *call, const told_part *told)
{
    void *data = result_at(call, told->part);
    if (told->dtype && told->columns)
        *told->tensor = expar_tensor_2d(data, told->dtype, told->rows, told->columns);
    else if (told->dtype)
        *told->tensor = expar_tensor_1d(data, told->dtype, told->rows);
    told->tensor->device = call->base.buffer->device;
    if (!told->dtype) return;
    if (told->part == EXPAR_EP_PART_SCALES && call->args.column_scales) {
        told->tensor->strides[0] = 1;
        told->tensor->strides[1] = dispatch_scales_pitch(call);
    }
    if (!dispatch_own(call, told->part)) call->plan.output->parts[told->part] = *told->tensor;
}

static void tell_parts(const dispatch_call *call, expar_ep_dispatch_result *full)
{
    const ep_form *form = &call->brings.form;
    const expar_ep_handle *handle = dispatch_handle(call);
    const int64_t rows = handle->rows, x_rows = call->args.expert_major ? handle->expert_rows : rows;
    const expar_dtype scales = form->scales ? (expar_dtype)form->scale_dtype : 0;
    const expar_dtype weights = form->weights ? EXPAR_F32 : 0;
    const expar_dtype row_weights = result_at(call, EXPAR_EP_PART_ROW_WEIGHTS) ? EXPAR_F32 : 0;
    const expar_dtype map = result_at(call, EXPAR_EP_PART_ROW_MAP) ? EXPAR_I32 : 0;
    const expar_dtype src = result_at(call, EXPAR_EP_PART_SRC_TOKEN) ? EXPAR_I32 : 0;
    const expar_dtype metadata = result_at(call, EXPAR_EP_PART_SRC_METADATA) ? EXPAR_I32 : 0;
    const told_part parts[] = {
        {&full->recv_x, EXPAR_EP_PART_X, (expar_dtype)form->dtype, x_rows, form->hidden},
        {&full->recv_scales, EXPAR_EP_PART_SCALES, scales, x_rows, form->scales},
        {&full->recv_topk_idx, EXPAR_EP_PART_TOPK_IDX, (expar_dtype)form->idx_dtype, rows, form->topk},
        {&full->recv_topk_weights, EXPAR_EP_PART_TOPK_WEIGHTS, weights, rows, form->topk},
        {&full->recv_row_map, EXPAR_EP_PART_ROW_MAP, map, rows, form->topk},
        {&full->recv_src_token, EXPAR_EP_PART_SRC_TOKEN, src, rows, 0},
        {&full->recv_row_weights, EXPAR_EP_PART_ROW_WEIGHTS, row_weights, x_rows, 0},
        {&full->recv_src_metadata, EXPAR_EP_PART_SRC_METADATA, metadata, rows, 2 + form->topk}};
    for (size_t i = 0; i < ARRAY_LENGTH(parts); i++)
        tell_part(call, &parts[i]);
}

void dispatch_tell(const dispatch_call *call, expar_ep_dispatch_result *result)
{
    const expar_ep_handle *handle = dispatch_handle(call);
    const ep_plan *plan = &call->plan;
    expar_ep_dispatch_result full = {.struct_size = result->struct_size,
                                     .num_local_experts = handle->routing.local_experts,
                                     .num_recv_tokens = handle->recv_tokens,
                                     .num_dropped_tokens = call->step.dropped ? call->step.dropped : handle->dropped,
                                     .recv_tokens_per_expert = plan->output->tokens_per_expert,
                                     .handle = call->made,
                                     .output = plan->output,
                                     .path = plan->mode == EP_MODE_DIRECT ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_QUEUE,
                                     .event = call->base.event};
    tell_parts(call, &full);
    plan_count(ep_of(&call->base), plan);
    memcpy(result, &full, result->struct_size);
}
