/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the arguments of a combine. */
#include "ep/normal/combine.h"

static expar_status combine_check_x(const combine_call *call)
{
    const expar_tensor *x = &call->args.x;
    const expar_ep_handle *handle = call->args.handle;
    expar_status status = ep_check_rows(call->base.buffer->device, "x", x, ep_of(&call->base)->limits.row_bytes, false);
    if (status != EXPAR_OK) return status;
    if (call->args.expert_major && !ep_handle_is_mapped(handle))
        return error_set(EXPAR_ERR_HANDLE, "expert_major is 1; expected a handle of an expert-major dispatch");
    int64_t rows = call->args.expert_major ? handle->expert_rows : handle->rows;
    if (x->shape[0] != rows)
        return error_set(EXPAR_ERR_SHAPE, "x has %lld rows; expected the %lld that the handle's dispatch received",
                         (long long)x->shape[0], (long long)rows);
    return EXPAR_OK;
}

/* out_y or a bias. */
static expar_status check_tokens(const combine_call *call, const char *name, const expar_tensor *tensor)
{
    const expar_ep *ep = ep_of(&call->base);
    const expar_tensor *x = &call->args.x;
    expar_status status = ep_check_matrix(ep->base.device, name, tensor, call->args.handle->routing.tokens, x->shape[1],
                                          x->dtype, x->dtype);
    return status == EXPAR_OK && ep->base.exec->normal->unit_bytes > 1 ? ep_check_units(name, tensor) : status;
}

static expar_status check_biases(const combine_call *call)
{
    static const char *const names[] = {"bias[0]", "bias[1]"};
    for (int i = 0; i < 2; i++) {
        if (!tensor_given(&call->args.bias[i])) continue;
        expar_status status = check_tokens(call, names[i], &call->args.bias[i]);
        if (status != EXPAR_OK) return status;
    }
    return EXPAR_OK;
}

static expar_status check_weights(const combine_call *call)
{
    const expar_ep_combine_args *args = &call->args;
    const ep_routing *routing = &args->handle->routing;
    bool in = tensor_given(&args->topk_weights), out = tensor_given(&args->out_topk_weights);
    if (in != out)
        return error_set(EXPAR_ERR_NULL, "%s is not given, but %s is; expected both or none",
                         in ? "out_topk_weights" : "topk_weights", in ? "topk_weights" : "out_topk_weights");
    if (!in) return EXPAR_OK;
    bool by_row = combine_weighs_rows(call);
    expar_status status = ep_check_matrix(call->base.buffer->device, "topk_weights", &args->topk_weights,
                                          by_row ? args->x.shape[0] : args->handle->rows, by_row ? 1 : routing->topk,
                                          EXPAR_F32, EXPAR_F32);
    if (status != EXPAR_OK) return status;
    return ep_check_matrix(call->base.buffer->device, "out_topk_weights", &args->out_topk_weights, routing->tokens,
                           routing->topk, EXPAR_F32, EXPAR_F32);
}

static expar_status check_expert_weights(const combine_call *call)
{
    const expar_ep_combine_args *args = &call->args;
    if (!tensor_given(&args->expert_weights)) return EXPAR_OK;
    if (!args->expert_major)
        return error_set(EXPAR_ERR_ARGUMENT, "expert_weights is given; expected expert_major with it");
    return ep_check_matrix(call->base.buffer->device, "expert_weights", &args->expert_weights, args->handle->rows,
                           args->handle->routing.topk, EXPAR_F32, EXPAR_F32);
}

/* Ring slots that a sum of each slot fills are numbered by 31 bits: a row takes fewer than 2 · K. */
static expar_status check_each_slot(const combine_call *call)
{
    const expar_ep_combine_args *args = &call->args;
    const expar_ep_handle *handle = args->handle;
    int64_t rows = handle->rows > handle->routing.tokens ? handle->rows : handle->routing.tokens, most;
    if (!args->expert_major)
        return error_set(EXPAR_ERR_ARGUMENT, "sum_order is EACH_SLOT, but expert_major is 0; expected 1 with it");
    if (tensor_given(&args->expert_weights))
        return error_set(
            EXPAR_ERR_ARGUMENT,
            "expert_weights is given with sum_order EACH_SLOT, which adds rows as they are; expected none");
    most = INT32_MAX / (2 * (int64_t)handle->routing.topk);
    if (rows > most)
        return error_set(EXPAR_ERR_LIMIT, "sum_order is EACH_SLOT with %lld rows of %d slots; expected at most %lld",
                         (long long)rows, handle->routing.topk, (long long)most);
    return EXPAR_OK;
}

/* Slots of the rings over the network are numbered likewise: in one order a token takes one for each row and part. */
static expar_status check_nodes(const combine_call *call)
{
    const expar_ep_combine_args *args = &call->args;
    const ep_routing *routing = &args->handle->routing;
    expar_status status = ep_check_named("nodes_sum", &ep_names_nodes_sum, args->nodes_sum, EXPAR_EP_NODES_SUM_ROUNDED,
                                         EXPAR_EP_NODES_SUM_OWN_FIRST);
    if (status != EXPAR_OK) return status;
    if (!combine_goes_row_by_row(call)) return EXPAR_OK;
    const int64_t topk = routing->topk, each = combine_adds_each_slot(call) ? 2 * topk * topk : routing->ranks;
    if (routing->tokens <= INT32_MAX / each) return EXPAR_OK;
    return error_set(EXPAR_ERR_LIMIT,
                     "nodes_sum is ONE_ORDER with %lld tokens of up to %lld ring slots; expected at most %lld",
                     (long long)routing->tokens, (long long)each, (long long)(INT32_MAX / each));
}

static expar_status check_sums(const combine_call *call)
{
    const expar_ep_combine_args *args = &call->args;
    const ep_routing *routing = &args->handle->routing;
    expar_status status = ep_check_named("sum_order", &ep_names_sum_order, args->sum_order, EXPAR_EP_SUM_ORDER_BY_RANK,
                                         EXPAR_EP_SUM_ORDER_EACH_SLOT);
    if (status == EXPAR_OK)
        status = ep_check_named("weights_of", &ep_names_weights_of, args->weights_of, EXPAR_EP_WEIGHTS_OF_ALL,
                                EXPAR_EP_WEIGHTS_OF_OWNER);
    if (status != EXPAR_OK) return status;
    bool by_slot = args->sum_order != EXPAR_EP_SUM_ORDER_BY_RANK;
    if ((by_slot || combine_wants_owners_weights(call)) && !routing->keeps_slots)
        return error_set(EXPAR_ERR_HANDLE,
                         "%s is %s, but the handle does not know the tokens' slots; expected one of a dispatch with %s",
                         by_slot ? "sum_order" : "weights_of",
                         by_slot ? ep_tell(&ep_names_sum_order, args->sum_order).text : "OWNER",
                         routing->topk ? "keep_slots" : "topk_idx and keep_slots");
    return combine_adds_each_slot(call) ? check_each_slot(call) : EXPAR_OK;
}

static expar_status combine_check_flags(const expar_ep_combine_args *args)
{
    const ep_flag flags[] = {{"expert_major", args->expert_major}, {"async_finish", args->async_finish}};
    return ep_check_flags(flags, ARRAY_LENGTH(flags));
}

static expar_status combine_check_options(const expar_ep_combine_args *args, const expar_ep_combine_result *result)
{
    expar_status status = ep_check_named("path", &ep_names_path, args->path, EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_QUEUE);
    if (status != EXPAR_OK) return status;
    if (args->async_finish && !result)
        return error_set(EXPAR_ERR_NULL, "result is NULL; expected an expar_ep_combine_result with async_finish");
    return EXPAR_OK;
}

expar_status combine_check(combine_call *call, const expar_ep_combine_args *args, const expar_ep_combine_result *result)
{
    expar_ep_combine_result checked;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    if (status == EXPAR_OK && result) status = ep_copy_struct("result", &checked, sizeof checked, result);
    if (status == EXPAR_OK) status = ep_call_learn(&call->base, call->args.stream, call->args.num_sms, true);
    call->base.wait_event = call->args.wait_event;
    ep_call_set_async(&call->base, call->args.async_finish != 0, true);
    if (status == EXPAR_OK) status = combine_check_flags(&call->args);
    if (status == EXPAR_OK) status = ep_check_handle(ep_of(&call->base), call->args.handle);
    if (status == EXPAR_OK) status = check_sums(call);
    if (status == EXPAR_OK) status = check_nodes(call);
    if (status == EXPAR_OK) status = combine_check_x(call);
    if (status == EXPAR_OK) status = check_tokens(call, "out_y", &call->args.out_y);
    if (status == EXPAR_OK) status = check_biases(call);
    if (status == EXPAR_OK) status = check_weights(call);
    if (status == EXPAR_OK) status = check_expert_weights(call);
    if (status == EXPAR_OK) status = combine_check_options(&call->args, result);
    if (status != EXPAR_OK) return status;
    return ep_call_check_events(&call->base, call->args.wait_event, call->args.async_finish);
}
