/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ll_dispatch: from arguments to the two phases. */
#include "ep/low_latency/dispatch.h"

#include <string.h>

/* The library's own memory for what the caller lends none: one block. */
static expar_status ll_dispatch_make_output(ll_dispatch_call *call)
{
    expar_ll *ll = call->ll;
    const uint64_t unit = EP_ALIGN_BYTES, count_bytes = (uint64_t)ll->shape.local_experts * sizeof(int32_t);
    const uint64_t x_bytes =
        ep_round(ll_rows_bytes(&ll->shape, ll->shape.hidden * (int64_t)expar_dtype_bytes(call->recv_x.dtype)), unit);
    const bool own_x = !call->recv_x.data, own_count = !call->recv_count.data;
    if (!own_x && !own_count) return EXPAR_OK;
    const ep_origin origin = {
        .kind = executor_kind_of(ll->device.type), .device = ll->device, .group = ll->group->number};
    expar_ep_output *output = call->rest.output = ep_output_make_of(&origin);
    if (!output) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    expar_status status =
        ll->exec->ops->take(ll->exec, (own_x ? x_bytes : 0) + (own_count ? count_bytes : 0), &output->block);
    if (status != EXPAR_OK) return status;
    uint8_t *data = output->block->data;
    if (own_count) call->recv_count.data = data + (own_x ? x_bytes : 0);
    if (own_x) call->recv_x.data = data;
    if (own_x) output->parts[EXPAR_EP_PART_X] = call->recv_x;
    if (own_count) output->parts[EXPAR_EP_PART_COUNT] = call->recv_count;
    return EXPAR_OK;
}

static void ll_dispatch_fill(ll_dispatch_call *call)
{
    const expar_ll_dispatch_args *args = &call->args;
    ll_dispatch_step *step = &call->rest.step.dispatch;
    step->tokens = ll_dispatch_tokens(call);
    step->x = args->x.data;
    step->x_pitch_bytes = tensor_pitch(&args->x) * (int64_t)expar_dtype_bytes(args->x.dtype);
    step->x_stays = !args->hook;
    step->route = ll_route_view(&args->topk_idx, &args->topk_weights);
    step->routing = &call->rest.handle->routing;
    step->out_x = call->recv_x.data;
    step->out_count = call->recv_count.data;
    step->stats = tensor_given(&args->expert_recv_stats) ? args->expert_recv_stats.data : NULL;
    step->call.wait_ns = tensor_given(&args->wait_ns) ? args->wait_ns.data : NULL;
    step->call.form = (ll_form){.format = (int32_t)args->format,
                                .dtype = (int32_t)args->x.dtype,
                                .weights = tensor_given(&args->topk_weights),
                                .topk = (int32_t)args->topk_idx.shape[1]};
}

/* All that is done before the others are told. */
static expar_status ll_dispatch_prepare(ll_dispatch_call *call)
{
    const expar_ll_dispatch_args *args = &call->args;
    expar_status status = ll_handle_make(call->ll, ll_dispatch_tokens(call), (int32_t)args->topk_idx.shape[1],
                                         tensor_given(&args->topk_weights), &call->rest.handle);
    if (status == EXPAR_OK) status = ll_dispatch_make_output(call);
    if (status == EXPAR_OK && args->hook) status = ll_hook_make(call->ll, &call->hook);
    if (status == EXPAR_OK) ll_dispatch_fill(call);
    return status;
}

static expar_status ll_dispatch_carry_out(ll_dispatch_call *call, const char *name, expar_status own)
{
    expar_ll *ll = call->ll;
    ll_dispatch_step *step = &call->rest.step.dispatch;
    error_kept kept = {.status = EXPAR_OK};
    if (own != EXPAR_OK) error_keep(&kept, own);
    ll_refuse(&step->call, own);
    expar_status status = ll_sent(ll, name, &step->call, ll->exec->ops->dispatch_send(ll->exec, step), &kept);
    if (status != EXPAR_OK) return status;
    if (!call->hook) return ll_rest_receive(ll, name, &call->rest);
    ll_hook_fill(call->hook, &call->rest);
    return EXPAR_OK;
}

static void ll_dispatch_give(const ll_dispatch_call *call, expar_ll_dispatch_result *result)
{
    const expar_ll_dispatch_result full = {.struct_size = result->struct_size,
                                           .recv_x = call->recv_x,
                                           .recv_count = call->recv_count,
                                           .handle = call->rest.handle,
                                           .output = call->rest.output,
                                           .hook = call->hook};
    memcpy(result, &full, result->struct_size);
}

static void ll_dispatch_drop(ll_dispatch_call *call)
{
    expar_ll_hook_destroy(call->hook);
    expar_ep_output_release(call->rest.output);
    expar_ll_handle_destroy(call->rest.handle);
}

expar_status expar_ll_dispatch(expar_ll *ll, const expar_ll_dispatch_args *args, expar_ll_dispatch_result *result)
{
    static const char name[] = "expar_ll_dispatch";
    ll_dispatch_call call = {.ll = ll, .rest.kind = LL_DISPATCH};
    expar_status status = ll_begin(ll, name);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    call.rest.step.dispatch.call.number = ll_number_call(ll, name);
    status = ll_dispatch_check(&call, args, result);
    if (status == EXPAR_OK) status = ll_dispatch_prepare(&call);
    status = ll_dispatch_carry_out(&call, name, status);
    if (status == EXPAR_OK)
        ll_dispatch_give(&call, result);
    else
        ll_dispatch_drop(&call);
    return ll_ended(ll, ll_end(ll, status));
}
