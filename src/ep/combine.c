/* SPDX-License-Identifier: Apache-2.0 */
/* expar_combine: from arguments to a step. */
#include "ep/ep.h"

#include <string.h>

typedef struct combine_call {
    ep_call base;
    expar_combine_args args;
    ep_mode mode;
    uint64_t x_offset, weights_offset;
} combine_call;

/* ---- checks ---- */

static expar_status check_x(const combine_call *call)
{
    const expar_tensor *x = &call->args.x;
    expar_status status = ep_check_rows("x", x, call->base.ep->shape.row_bytes);
    if (status != EXPAR_OK) return status;
    if (x->shape[0] != call->args.handle->recv_tokens)
        return error_set(EXPAR_ERR_SHAPE, "x has %lld rows; expected the %lld that the handle's dispatch received",
                         (long long)x->shape[0], (long long)call->args.handle->recv_tokens);
    return EXPAR_OK;
}

static expar_status check_y(const combine_call *call)
{
    const expar_tensor *x = &call->args.x, *y = &call->args.y;
    return ep_check_matrix("y", y, call->args.handle->routing.tokens, x->shape[1], x->dtype, x->dtype);
}

static expar_status check_weights(const combine_call *call)
{
    const expar_combine_args *args = &call->args;
    const ep_routing *routing = &args->handle->routing;
    bool in = tensor_given(&args->topk_weights), out = tensor_given(&args->out_topk_weights);
    if (in != out)
        return error_set(EXPAR_ERR_NULL, "%s is not given, but %s is; expected both or none",
                         in ? "out_topk_weights" : "topk_weights", in ? "topk_weights" : "out_topk_weights");
    if (!in) return EXPAR_OK;
    expar_status status = ep_check_matrix("topk_weights", &args->topk_weights, args->handle->recv_tokens, routing->topk,
                                          EXPAR_F32, EXPAR_F32);
    if (status != EXPAR_OK) return status;
    return ep_check_matrix("out_topk_weights", &args->out_topk_weights, routing->tokens, routing->topk, EXPAR_F32,
                           EXPAR_F32);
}

static expar_status check(combine_call *call, const expar_combine_args *args)
{
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    if (status == EXPAR_OK) status = ep_check_handle(call->base.ep, call->args.handle);
    if (status == EXPAR_OK) status = check_x(call);
    if (status == EXPAR_OK) status = check_y(call);
    if (status == EXPAR_OK) status = check_weights(call);
    if (status == EXPAR_OK && (call->args.path < EXPAR_PATH_AUTO || call->args.path > EXPAR_PATH_QUEUE))
        status = error_set(EXPAR_ERR_ARGUMENT, "path is %d; expected 0 (auto), 1 (direct) or 2 (queue)",
                           (int)call->args.path);
    return status;
}

/* ---- path ---- */

static bool in_heap(const combine_call *call, const expar_tensor *tensor, uint64_t *offset)
{
    int64_t rows = tensor->shape[0];
    if (!tensor_given(tensor) || rows == 0) return true;
    int64_t elements = (rows - 1) * tensor_pitch(tensor) + tensor->shape[1];
    return sym_offset(call->base.ep->group->sym, tensor->data, (size_t)elements * expar_dtype_bytes(tensor->dtype),
                      offset);
}

static expar_status choose_mode(combine_call *call)
{
    call->mode = EP_MODE_QUEUE;
    if (call->args.path == EXPAR_PATH_QUEUE) return EXPAR_OK;
    bool x = in_heap(call, &call->args.x, &call->x_offset);
    bool weights = in_heap(call, &call->args.topk_weights, &call->weights_offset);
    if (x && weights) call->mode = EP_MODE_DIRECT;
    if (call->mode == EP_MODE_DIRECT || call->args.path == EXPAR_PATH_AUTO) return EXPAR_OK;
    return error_set(EXPAR_ERR_ADDRESS, "path is DIRECT, but %s.data %p is not in the symmetric heap",
                     x ? "topk_weights" : "x", x ? call->args.topk_weights.data : call->args.x.data);
}

/* ---- the call ---- */

static void fill_form(combine_call *call)
{
    const expar_combine_args *args = &call->args;
    call->base.form = (ep_form){.kind = EP_COMBINE,
                                .hidden = (int32_t)args->x.shape[1],
                                .dtype = (int32_t)args->x.dtype,
                                .topk = args->handle->routing.topk,
                                .experts = args->handle->routing.experts,
                                .weights = tensor_given(&args->topk_weights),
                                .route = args->handle->route};
}

static expar_status carry_out(combine_call *call)
{
    const expar_combine_args *args = &call->args;
    executor *exec = call->base.ep->exec;
    int64_t element = (int64_t)expar_dtype_bytes(args->x.dtype);
    ep_combine_step step = {.epoch = call->base.ep->epoch,
                            .form = call->base.form,
                            .routing = &args->handle->routing,
                            .mode = call->mode,
                            .x = args->x.data,
                            .x_offset = call->x_offset,
                            .weights_offset = call->weights_offset,
                            .x_pitch_bytes = tensor_pitch(&args->x) * element,
                            .row_bytes = args->x.shape[1] * element,
                            .weights = args->topk_weights.data,
                            .weights_pitch = tensor_pitch(&args->topk_weights),
                            .y = args->y.data,
                            .y_pitch_bytes = tensor_pitch(&args->y) * element,
                            .out_weights = args->out_topk_weights.data,
                            .out_weights_pitch = tensor_pitch(&args->out_topk_weights)};
    expar_status status = exec->ops->combine(exec, &step);
    return status == EXPAR_OK ? ep_call_verdict(&call->base, &step.verdict) : status;
}

expar_status expar_combine(expar_ep *ep, const expar_combine_args *args)
{
    combine_call call = {0};
    expar_status status = ep_call_begin(&call.base, "expar_combine", ep);
    if (status != EXPAR_OK) return status;
    status = check(&call, args);
    if (status == EXPAR_OK) status = choose_mode(&call);
    if (status == EXPAR_OK) {
        fill_form(&call);
        status = carry_out(&call);
    } else {
        ep_call_refuse(&call.base, status);
        status = ep_call_tell_refusal(&call.base);
    }
    return ep_call_end(&call.base, status);
}
