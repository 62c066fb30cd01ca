/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ll_dispatch: from arguments to send and receive. */
#include "ep/low_latency/dispatch.h"

#include <string.h>

static uint64_t tensor_bytes(const expar_tensor *tensor)
{
    uint64_t bytes = expar_dtype_bytes(tensor->dtype);
    for (int32_t i = 0; i < tensor->ndim; i++)
        bytes *= (uint64_t)tensor->shape[i];
    return ep_round(bytes, EP_ALIGN_BYTES);
}

/* The library's own memory, in one block, for results that have no tensor of the caller. */
static expar_status ll_dispatch_make_output(ll_dispatch_call *call)
{
    static const expar_ep_part numbers[] = {EXPAR_EP_PART_X, EXPAR_EP_PART_SCALES, EXPAR_EP_PART_COUNT};
    expar_tensor *const results[] = {&call->recv_x, &call->recv_scales, &call->recv_count};
    expar_ll *ll = ll_of(&call->op.base);
    uint64_t offsets[ARRAY_LENGTH(results)], bytes = 0;
    for (size_t i = 0; i < ARRAY_LENGTH(results); i++) {
        offsets[i] = bytes;
        if (tensor_given(results[i]) && !results[i]->data) bytes += tensor_bytes(results[i]);
    }
    if (bytes == 0) return EXPAR_OK;
    expar_status status = ll_output_make(ll, bytes, &call->op.output);
    for (size_t i = 0; i < ARRAY_LENGTH(results) && status == EXPAR_OK; i++) {
        if (!tensor_given(results[i]) || results[i]->data) continue;
        results[i]->data = (uint8_t *)call->op.output->block->data + offsets[i];
        call->op.output->parts[numbers[i]] = *results[i];
    }
    return status;
}

static void ll_dispatch_fill(ll_dispatch_call *call)
{
    const expar_ll_dispatch_args *args = &call->args;
    ll_dispatch_step *step = &call->op.step.dispatch;
    step->tokens = ll_dispatch_tokens(call);
    step->x = args->x.data;
    step->x_pitch_bytes = tensor_pitch(&args->x) * (int64_t)expar_dtype_bytes(args->x.dtype);
    step->x_stays = !args->hook;
    step->global_scale = tensor_given(&args->global_scale) ? args->global_scale.data : NULL;
    step->route = ll_route_view(&args->topk_idx, &args->topk_weights);
    step->routing = &call->op.handle->routing;
    step->out_x = call->recv_x.data;
    step->out_scales = call->recv_scales.data;
    step->out_count = call->recv_count.data;
    step->stats = tensor_given(&args->expert_recv_stats) ? args->expert_recv_stats.data : NULL;
    step->call.wait_ns = tensor_given(&args->wait_ns) ? args->wait_ns.data : NULL;
    step->call.whole = !args->hook;
    step->call.form = (ll_form){.format = (int32_t)args->format,
                                .dtype = (int32_t)args->x.dtype,
                                .weights = tensor_given(&args->topk_weights),
                                .topk = (int32_t)args->topk_idx.shape[1]};
}

/* Does everything that comes before the other ranks are told. */
static expar_status ll_dispatch_prepare(ll_dispatch_call *call)
{
    const expar_ll_dispatch_args *args = &call->args;
    expar_status status =
        ll_handle_make(ll_of(&call->op.base), ll_dispatch_tokens(call), (int32_t)args->topk_idx.shape[1],
                       tensor_given(&args->topk_weights), &call->op.handle);
    if (status == EXPAR_OK) status = ll_dispatch_make_output(call);
    if (status == EXPAR_OK) status = ll_op_promise(&call->op);
    if (status == EXPAR_OK) ll_dispatch_fill(call);
    return status;
}

static void ll_dispatch_give(const ll_dispatch_call *call, expar_ll_dispatch_result *result)
{
    const expar_ll_dispatch_result full = {.struct_size = result->struct_size,
                                           .recv_x = call->recv_x,
                                           .recv_scales = call->recv_scales,
                                           .recv_count = call->recv_count,
                                           .handle = call->op.handle,
                                           .output = call->op.output,
                                           .hook = call->op.hook,
                                           .event = call->op.base.event};
    memcpy(result, &full, result->struct_size);
}

expar_status expar_ll_dispatch(expar_ll *ll, const expar_ll_dispatch_args *args, expar_ll_dispatch_result *result)
{
    ll_dispatch_call call = {0};
    expar_status status = ll_op_begin(&call.op, "expar_ll_dispatch", LL_DISPATCH, ll);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = ll_dispatch_check(&call, args, result);
    status = ll_op_learn(&call.op, LL_MANNER_OF(&call.args), status);
    if (status == EXPAR_OK) status = ll_dispatch_prepare(&call);
    status = ll_op_finish(&call.op, status);
    if (status == EXPAR_OK) ll_dispatch_give(&call, result);
    return ll_ended(ll, ll_op_end(&call.op, status));
}
