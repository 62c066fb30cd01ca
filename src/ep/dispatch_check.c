/* SPDX-License-Identifier: Apache-2.0 */
/* What may be wrong with the arguments of a dispatch. */
#include "ep/dispatch.h"

static expar_status dispatch_check_x(const dispatch_call *call)
{
    const expar_ep *ep = call->base.ep;
    const expar_tensor *x = &call->args.x;
    expar_status status = ep_check_rows(call->base.ep->device, "x", x, ep->shape.row_bytes, true);
    if (status != EXPAR_OK) return status;
    if (x->shape[0] > ep->shape.tokens)
        return error_set(EXPAR_ERR_LIMIT,
                         "x has %lld tokens; this buffer was created for at most %lld (config.max_tokens)",
                         (long long)x->shape[0], (long long)ep->shape.tokens);
    if (!tensor_given(&call->args.x_scales)) return EXPAR_OK;
    if (x->dtype != EXPAR_F8E4M3 && x->dtype != EXPAR_I8)
        return error_set(EXPAR_ERR_ARGUMENT, "x_scales is given with x of %s; expected f8e4m3 or i8",
                         expar_dtype_string(x->dtype));
    return ep_check_scales(call->base.ep->device, &call->args.x_scales, x->shape[0], ep->shape.scales);
}

static expar_status check_topk(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    int64_t tokens = args->x.shape[0], topk = args->topk_idx.shape[1];
    expar_status status =
        ep_check_matrix(call->base.ep->device, "topk_idx", &args->topk_idx, tokens, topk, EXPAR_I64, EXPAR_I32);
    if (status != EXPAR_OK) return status;
    if (topk < 1 || topk > call->base.ep->shape.topk)
        return error_set(EXPAR_ERR_LIMIT,
                         "topk_idx has %lld slots a token; this buffer was created for 1 to %d (config.max_topk)",
                         (long long)topk, call->base.ep->shape.topk);
    if (!tensor_given(&args->topk_weights)) return EXPAR_OK;
    return ep_check_matrix(call->base.ep->device, "topk_weights", &args->topk_weights, tokens, topk, EXPAR_F32,
                           EXPAR_F32);
}

/* Routing by hand alone: there is nothing that needs topk_idx. */
static expar_status check_without_topk(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    const char *needs = tensor_given(&args->topk_weights) ? "topk_weights"
                        : args->num_worst_tokens          ? "num_worst_tokens"
                        : args->expert_major              ? "expert_major"
                        : args->keep_slots                ? "keep_slots"
                                                          : NULL;
    if (needs) return error_set(EXPAR_ERR_NULL, "topk_idx is not given, but %s is, which needs it", needs);
    int32_t most = INT32_MAX / call->base.ep->shape.ranks; /* so that the sum over all ranks fits */
    const expar_device cpu = {.type = EXPAR_CPU};
    expar_status status = exec_check_place(cpu, "tokens_per_expert", args->tokens_per_expert);
    if (status != EXPAR_OK) return status;
    for (int32_t e = 0; args->tokens_per_expert && e < args->num_experts; e++)
        if (args->tokens_per_expert[e] < 0 || args->tokens_per_expert[e] > most)
            return error_set(EXPAR_ERR_ARGUMENT, "tokens_per_expert[%d] is %d; expected 0 to %d", e,
                             args->tokens_per_expert[e], most);
    return EXPAR_OK;
}

static expar_status check_fresh(const dispatch_call *call)
{
    const expar_ep *ep = call->base.ep;
    const expar_dispatch_args *args = &call->args;
    expar_status status = ep_check_experts(args->num_experts, ep->shape.ranks);
    if (status != EXPAR_OK) return status;
    if (args->num_experts > ep->max_experts)
        return error_set(EXPAR_ERR_LIMIT,
                         "num_experts is %d; this buffer was created for at most %d (config.max_experts)",
                         args->num_experts, ep->max_experts);
    bool by_hand = tensor_given(&args->token_in_rank);
    if (by_hand)
        status = ep_check_matrix(call->base.ep->device, "token_in_rank", &args->token_in_rank, args->x.shape[0],
                                 ep->shape.ranks, EXPAR_U8, EXPAR_U8);
    if (status != EXPAR_OK) return status;
    return by_hand && !tensor_given(&args->topk_idx) ? check_without_topk(call) : check_topk(call);
}

static expar_status check_cached(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    expar_status status = ep_check_handle(call->base.ep, call->given);
    if (status != EXPAR_OK) return status;
    const char *extra = tensor_given(&args->topk_idx)        ? "topk_idx"
                        : tensor_given(&args->topk_weights)  ? "topk_weights"
                        : tensor_given(&args->token_in_rank) ? "token_in_rank"
                        : args->num_worst_tokens             ? "num_worst_tokens"
                                                             : NULL;
    if (extra)
        return error_set(EXPAR_ERR_ARGUMENT, "%s is given together with a handle; expected one of the two", extra);
    if (args->x.shape[0] != call->given->routing.tokens)
        return error_set(EXPAR_ERR_SHAPE, "x has %lld tokens; expected the %lld of the handle's dispatch",
                         (long long)args->x.shape[0], (long long)call->given->routing.tokens);
    if (args->expert_major && !call->given->map)
        return error_set(EXPAR_ERR_HANDLE, "expert_major is 1; expected a handle of an expert-major dispatch");
    return EXPAR_OK;
}

static expar_status dispatch_check_options(const expar_dispatch_args *args)
{
    if (args->path < EXPAR_PATH_AUTO || args->path > EXPAR_PATH_QUEUE)
        return error_set(EXPAR_ERR_ARGUMENT, "path is %d; expected 0 (auto), 1 (direct) or 2 (queue)", (int)args->path);
    if (args->expert_alignment < 0)
        return error_set(EXPAR_ERR_ARGUMENT, "expert_alignment is %d; expected 0 or more", args->expert_alignment);
    if (args->num_worst_tokens < 0 || args->num_worst_tokens > INT32_MAX)
        return error_set(EXPAR_ERR_ARGUMENT, "num_worst_tokens is %lld; expected 0 (none) to 2^31 - 1",
                         (long long)args->num_worst_tokens);
    return EXPAR_OK;
}

/* Counts that the host is to learn are known only when a graph runs. */
static expar_status check_capture(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    if (call->base.exec.captured && !dispatch_cached(call) && !args->num_worst_tokens)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "num_worst_tokens is 0 while the stream is being captured; expected a worst-case size, or a "
                         "handle: a graph cannot tell the host how many rows come");
    return ep_call_check_capture(&call->base, args->wait_event, args->async_finish);
}

static expar_status check_out_x(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    const expar_tensor *out = &args->out_x;
    if (!tensor_given(out)) return EXPAR_OK;
    expar_status status = ep_check_rows(call->base.ep->device, "out_x", out, call->base.ep->shape.row_bytes, true);
    if (status != EXPAR_OK) return status;
    if (out->dtype != args->x.dtype)
        return error_set(EXPAR_ERR_DTYPE, "out_x.dtype is %s; expected %s as x", expar_dtype_string(out->dtype),
                         expar_dtype_string(args->x.dtype));
    if (out->shape[1] != args->x.shape[1])
        return error_set(EXPAR_ERR_SHAPE, "out_x has hidden size %lld; expected %lld as x", (long long)out->shape[1],
                         (long long)args->x.shape[1]);
    if (tensor_pitch(out) != out->shape[1])
        return error_set(EXPAR_ERR_STRIDE, "out_x.strides[0] is %lld; expected %lld (contiguous)",
                         (long long)out->strides[0], (long long)out->shape[1]);
    return EXPAR_OK;
}

expar_status dispatch_check(dispatch_call *call, const expar_dispatch_args *args, const expar_dispatch_result *result)
{
    expar_dispatch_result unused;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    bool asked = call->args.async_finish || !call->args.num_worst_tokens;
    if (status == EXPAR_OK) status = ep_call_learn(&call->base, call->args.stream, asked);
    if (status != EXPAR_OK) return status;
    call->base.wait_event = call->args.wait_event;
    call->given = call->args.handle;
    if ((status = ep_copy_struct("result", &unused, sizeof unused, result)) != EXPAR_OK) return status;
    if ((status = dispatch_check_x(call)) != EXPAR_OK) return status;
    status = dispatch_cached(call) ? check_cached(call) : check_fresh(call);
    if (status == EXPAR_OK) status = dispatch_check_options(&call->args);
    if (status == EXPAR_OK) status = check_capture(call);
    return status == EXPAR_OK ? check_out_x(call) : status;
}
