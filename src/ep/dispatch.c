/* SPDX-License-Identifier: Apache-2.0 */
/* expar_dispatch: from arguments to steps. Fresh: layout, notify, output, rows. With a handle: output, rows. */
#include "ep/ep.h"

#include <stdlib.h>
#include <string.h>

typedef struct dispatch_call {
    ep_call base;
    expar_dispatch_args args;
    const expar_ep_handle *given; /* the caller's handle, or NULL */
    expar_ep_handle *made;        /* by a fresh dispatch */
    ep_destination to;
} dispatch_call;

static bool cached(const dispatch_call *call)
{
    return call->given != NULL;
}

static const ep_routing *routing_of(const dispatch_call *call)
{
    return cached(call) ? &call->given->routing : &call->made->routing;
}

static int64_t recv_tokens(const dispatch_call *call)
{
    return cached(call) ? call->given->recv_tokens : call->made->recv_tokens;
}

static int64_t row_bytes(const expar_tensor *x)
{
    return x->shape[1] * (int64_t)expar_dtype_bytes(x->dtype);
}

/* ---- checks ---- */

static expar_status check_x(const dispatch_call *call)
{
    const expar_ep *ep = call->base.ep;
    const expar_tensor *x = &call->args.x;
    expar_status status = ep_check_rows("x", x, ep->shape.row_bytes);
    if (status != EXPAR_OK) return status;
    if (x->shape[0] > ep->shape.tokens)
        return error_set(EXPAR_ERR_LIMIT, "x has %lld tokens; this buffer was created for at most %lld",
                         (long long)x->shape[0], (long long)ep->shape.tokens);
    return EXPAR_OK;
}

static expar_status check_routing(const dispatch_call *call)
{
    const expar_ep *ep = call->base.ep;
    const expar_dispatch_args *args = &call->args;
    int64_t tokens = args->x.shape[0], topk = args->topk_idx.shape[1];
    expar_status status = ep_check_experts(args->num_experts, ep->shape.ranks);
    if (status != EXPAR_OK) return status;
    if (args->num_experts > ep->max_experts)
        return error_set(EXPAR_ERR_LIMIT, "num_experts is %d; this buffer was created for at most %d",
                         args->num_experts, ep->max_experts);
    status = ep_check_matrix("topk_idx", &args->topk_idx, tokens, topk, EXPAR_I64, EXPAR_I32);
    if (status != EXPAR_OK) return status;
    if (topk < 1 || topk > ep->shape.topk)
        return error_set(EXPAR_ERR_LIMIT, "topk_idx has %lld slots a token; this buffer was created for 1 to %d",
                         (long long)topk, ep->shape.topk);
    if (!tensor_given(&args->topk_weights)) return EXPAR_OK;
    return ep_check_matrix("topk_weights", &args->topk_weights, tokens, topk, EXPAR_F32, EXPAR_F32);
}

static expar_status check_cached(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    expar_status status = ep_check_handle(call->base.ep, call->given);
    if (status != EXPAR_OK) return status;
    if (tensor_given(&args->topk_idx) || tensor_given(&args->topk_weights))
        return error_set(EXPAR_ERR_ARGUMENT, "%s is given together with a handle; expected one of the two",
                         tensor_given(&args->topk_idx) ? "topk_idx" : "topk_weights");
    if (args->x.shape[0] != call->given->routing.tokens)
        return error_set(EXPAR_ERR_SHAPE, "x has %lld tokens; expected the %lld of the handle's dispatch",
                         (long long)args->x.shape[0], (long long)call->given->routing.tokens);
    return EXPAR_OK;
}

static expar_status check_out_x(const expar_dispatch_args *args, int64_t max_row_bytes)
{
    const expar_tensor *out = &args->out_x;
    if (!tensor_given(out)) return EXPAR_OK;
    expar_status status = ep_check_rows("out_x", out, max_row_bytes);
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

static expar_status check(dispatch_call *call, const expar_dispatch_args *args, const expar_dispatch_result *result)
{
    expar_dispatch_result unused;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    if (status != EXPAR_OK) return status;
    call->given = call->args.handle;
    if ((status = ep_copy_struct("result", &unused, sizeof unused, result)) != EXPAR_OK) return status;
    if ((status = check_x(call)) != EXPAR_OK) return status;
    status = cached(call) ? check_cached(call) : check_routing(call);
    if (status != EXPAR_OK) return status;
    if (call->args.path < EXPAR_PATH_AUTO || call->args.path > EXPAR_PATH_QUEUE)
        return error_set(EXPAR_ERR_ARGUMENT, "path is %d; expected 0 (auto), 1 (direct) or 2 (queue)",
                         (int)call->args.path);
    if (call->args.expert_alignment < 0)
        return error_set(EXPAR_ERR_ARGUMENT, "expert_alignment is %d; expected 0 or more", call->args.expert_alignment);
    return check_out_x(&call->args, call->base.ep->shape.row_bytes);
}

static void fill_form(dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    ep_form *form = &call->base.form;
    *form = (ep_form){.kind = cached(call) ? EP_DISPATCH_CACHED : EP_DISPATCH,
                      .hidden = (int32_t)args->x.shape[1],
                      .dtype = (int32_t)args->x.dtype};
    if (cached(call)) {
        form->topk = call->given->routing.topk;
        form->experts = call->given->routing.experts;
        form->route = call->given->route;
    } else {
        form->topk = (int32_t)args->topk_idx.shape[1];
        form->experts = args->num_experts;
        form->idx_dtype = (int32_t)args->topk_idx.dtype;
        form->weights = tensor_given(&args->topk_weights);
    }
}

/* ---- layout and notify ---- */

static ep_topk_view topk_view(const dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    if (cached(call)) return (ep_topk_view){0};
    return (ep_topk_view){.idx = args->topk_idx.shape[0] ? args->topk_idx.data : "",
                          .idx_bytes = (int32_t)expar_dtype_bytes(args->topk_idx.dtype),
                          .idx_pitch = tensor_pitch(&args->topk_idx),
                          .weights = args->topk_weights.data,
                          .weights_pitch = tensor_pitch(&args->topk_weights)};
}

/* Makes the handle and fills the layout part of its routing. */
static expar_status make_layout(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    expar_status status = ep_handle_create(call->base.ep, call->args.x.shape[0], call->base.form.topk,
                                           call->base.form.experts, &call->made);
    if (status != EXPAR_OK) return status;
    ep_topk_view topk = topk_view(call);
    return exec->ops->layout(exec, &topk, &call->made->routing);
}

static expar_status notify(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    ep_notify_step step = {.epoch = call->base.ep->epoch, .form = call->base.form, .routing = &call->made->routing};
    expar_status status = exec->ops->notify(exec, &step);
    if (status == EXPAR_OK) status = ep_call_verdict(&call->base, &step.verdict);
    if (status == EXPAR_OK) call->made->recv_tokens = call->made->routing.rank_prefix[call->made->routing.ranks - 1];
    return status;
}

/* ---- output and rows ---- */

/* Rounded up to the alignment that the caller's grouped GEMM wants. */
static expar_status copy_expert_counts(dispatch_call *call)
{
    const ep_routing *routing = routing_of(call);
    int64_t unit = call->args.expert_alignment > 1 ? call->args.expert_alignment : 1;
    int32_t *counts = malloc((size_t)routing->local_experts * sizeof *counts);
    if (!counts) return error_set(EXPAR_ERR_MEMORY, "no memory for %d counts", routing->local_experts);
    call->to.output->tokens_per_expert = counts;
    for (int32_t e = 0; e < routing->local_experts; e++) {
        int64_t rounded = (routing->recv_expert_counts[e] + unit - 1) / unit * unit;
        if (rounded > INT32_MAX)
            return error_set(EXPAR_ERR_ARGUMENT,
                             "expert_alignment %lld makes a count of %lld; expected at most 2^31 - 1", (long long)unit,
                             (long long)rounded);
        counts[e] = (int32_t)rounded;
    }
    return EXPAR_OK;
}

static expar_status make_output(dispatch_call *call)
{
    const expar_dispatch_args *args = &call->args;
    int64_t rows = recv_tokens(call);
    if (tensor_given(&args->out_x) && args->out_x.shape[0] < rows)
        return error_set(EXPAR_ERR_BUFFER_SIZE, "out_x has %lld rows; %lld are received",
                         (long long)args->out_x.shape[0], (long long)rows);
    ep_wish wish = {.rows = rows,
                    .row_bytes = row_bytes(&args->x),
                    .topk = call->base.form.topk,
                    .idx_bytes = cached(call) ? 0 : (int32_t)expar_dtype_bytes(args->topk_idx.dtype),
                    .weights = call->base.form.weights,
                    .path = args->path,
                    .out_x = tensor_given(&args->out_x) ? &args->out_x : NULL};
    expar_status status = ep_destination_make(call->base.ep, &wish, &call->to);
    if (status == EXPAR_OK && !cached(call)) status = copy_expert_counts(call);
    return status;
}

static expar_status move_rows(dispatch_call *call)
{
    executor *exec = call->base.ep->exec;
    const expar_tensor *x = &call->args.x;
    ep_dispatch_step step = {.epoch = call->base.ep->epoch,
                             .form = call->base.form,
                             .refusal = call->base.refusal,
                             /* A cached dispatch only reads it. */
                             .routing = (ep_routing *)routing_of(call),
                             .x = x->data,
                             .x_pitch_bytes = tensor_pitch(x) * (int64_t)expar_dtype_bytes(x->dtype),
                             .row_bytes = row_bytes(x),
                             .topk = topk_view(call),
                             .mode = call->to.mode,
                             .out_x_offset = call->to.x_offset,
                             .out_idx_offset = call->to.idx_offset,
                             .out_weights_offset = call->to.weights_offset,
                             .out_x = call->to.x,
                             .out_idx = call->to.idx,
                             .out_weights = call->to.weights};
    expar_status status = exec->ops->dispatch(exec, &step);
    return status == EXPAR_OK ? ep_call_verdict(&call->base, &step.verdict) : status;
}

static void fill_result(const dispatch_call *call, expar_dispatch_result *result)
{
    const ep_form *form = &call->base.form;
    int64_t rows = recv_tokens(call);
    expar_dispatch_result full = {.struct_size = result->struct_size,
                                  .recv_x = expar_tensor_2d(call->to.x, (expar_dtype)form->dtype, rows, form->hidden),
                                  .num_local_experts = form->experts / call->base.ep->shape.ranks,
                                  .num_recv_tokens = rows,
                                  .handle = call->made,
                                  .output = call->to.output,
                                  .path = call->to.mode == EP_MODE_DIRECT ? EXPAR_PATH_DIRECT : EXPAR_PATH_QUEUE};
    if (!cached(call)) {
        full.recv_topk_idx = expar_tensor_2d(call->to.idx, (expar_dtype)form->idx_dtype, rows, form->topk);
        full.recv_tokens_per_expert = call->to.output->tokens_per_expert;
        if (form->weights) full.recv_topk_weights = expar_tensor_2d(call->to.weights, EXPAR_F32, rows, form->topk);
    }
    memcpy(result, &full, result->struct_size);
}

/* A rank that fails between notify and rows says so with its offers. */
static expar_status carry_out(dispatch_call *call)
{
    expar_status status = cached(call) ? EXPAR_OK : notify(call);
    if (status != EXPAR_OK) return status;
    status = make_output(call);
    if (status != EXPAR_OK) ep_call_refuse(&call->base, status);
    return move_rows(call);
}

expar_status expar_dispatch(expar_ep *ep, const expar_dispatch_args *args, expar_dispatch_result *result)
{
    dispatch_call call = {0};
    expar_status status = ep_call_begin(&call.base, "expar_dispatch", ep);
    if (status != EXPAR_OK) return status;
    status = check(&call, args, result);
    if (status == EXPAR_OK) fill_form(&call);
    if (status == EXPAR_OK && !cached(&call)) status = make_layout(&call);
    if (status != EXPAR_OK) {
        ep_call_refuse(&call.base, status);
        status = ep_call_tell_refusal(&call.base);
    } else {
        status = carry_out(&call);
    }
    if (status == EXPAR_OK) {
        fill_result(&call, result);
    } else {
        expar_ep_output_release(call.to.output);
        expar_ep_handle_destroy(call.made);
    }
    return ep_call_end(&call.base, status);
}
