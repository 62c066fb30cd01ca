/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the arguments of a low-latency dispatch that a rank can make alone. */
#include "ep/low_latency/dispatch.h"

static expar_status ll_dispatch_check_x(const expar_ll *ll, const expar_tensor *x)
{
    expar_status status = ep_check_rows(ll->base.device, "x", x, INT64_MAX, false);
    if (status == EXPAR_OK) status = ll_check_dtype(ll, "x", x->dtype);
    if (status != EXPAR_OK) return status;
    if (x->shape[1] != ll->shape.hidden)
        return error_set(EXPAR_ERR_SHAPE, "x has hidden size %lld; this buffer was created for %d (config.hidden)",
                         (long long)x->shape[1], ll->shape.hidden);
    if (x->shape[0] > ll->shape.tokens)
        return error_set(EXPAR_ERR_LIMIT,
                         "x has %lld tokens; this buffer was created for at most %d (config.max_tokens)",
                         (long long)x->shape[0], ll->shape.tokens);
    return EXPAR_OK;
}

static expar_status ll_dispatch_check_format(const expar_ll *ll, const expar_ll_dispatch_args *args)
{
    const ll_form form = {.format = (int32_t)args->format, .dtype = (int32_t)args->x.dtype};
    expar_status status =
        ep_check_named("format", &ep_names_format, args->format, EXPAR_LL_FORMAT_PLAIN, EXPAR_LL_FORMAT_INT8);
    if (status != EXPAR_OK) return status;
    if (!codec_takes(ll_codec_of(&form), ll->shape.hidden))
        return error_set(EXPAR_ERR_SHAPE, "format is %s, but x has hidden size %d; expected a multiple of %d",
                         ep_tell(&ep_names_format, args->format).text, ll->shape.hidden, CODEC_GROUP);
    return EXPAR_OK;
}

static expar_dtype payload_dtype(const expar_ll_dispatch_args *args)
{
    return args->format == EXPAR_LL_FORMAT_PLAIN  ? args->x.dtype
           : args->format == EXPAR_LL_FORMAT_INT8 ? EXPAR_I8
                                                  : EXPAR_F8E4M3;
}

/* [L][N*B][words], the token dimension contiguous; none for a format without scales. */
static expar_tensor scales_tensor(const expar_ll *ll, const expar_ll_dispatch_args *args)
{
    const ll_form form = {.format = (int32_t)args->format, .dtype = (int32_t)args->x.dtype};
    const int64_t words = codec_scales(ll_codec_of(&form), ll->shape.hidden);
    const int64_t rows = (int64_t)ll->shape.ranks * ll->shape.tokens;
    if (words == 0) return EXPAR_TENSOR_NONE;
    return (expar_tensor){.data = args->out_scales.data,
                          .dtype = args->format == EXPAR_LL_FORMAT_FP8_UE8M0 ? EXPAR_I32 : EXPAR_F32,
                          .ndim = 3,
                          .shape = {ll->shape.local_experts, rows, words},
                          .strides = {words * rows, 1, rows},
                          .device = ll->base.device};
}

static expar_status check_out_scales(const ll_dispatch_call *call)
{
    const expar_tensor *given = &call->args.out_scales;
    if (!tensor_given(given)) return EXPAR_OK;
    if (tensor_given(&call->recv_scales))
        return ll_check_result(ll_of(&call->op.base), "out_scales", given, &call->recv_scales);
    return error_set(EXPAR_ERR_ARGUMENT, "out_scales is given, but format %s has no scales; expected none",
                     ep_tell(&ep_names_format, call->args.format).text);
}

/* Computes the shapes of the results, and checks that the caller's tensors for them have these. */
static expar_status ll_dispatch_check_results(ll_dispatch_call *call)
{
    const expar_ll *ll = ll_of(&call->op.base);
    const expar_ll_dispatch_args *args = &call->args;
    expar_status status = EXPAR_OK;
    call->recv_x = ll_rows_tensor(ll, args->out_x.data, payload_dtype(args));
    call->recv_scales = scales_tensor(ll, args);
    call->recv_count = expar_tensor_1d_on(ll->base.device, args->out_count.data, EXPAR_I32, ll->shape.local_experts);
    if (tensor_given(&args->out_x)) status = ll_check_result(ll, "out_x", &args->out_x, &call->recv_x);
    if (status == EXPAR_OK) status = check_out_scales(call);
    if (status == EXPAR_OK && tensor_given(&args->out_count))
        status = ll_check_result(ll, "out_count", &args->out_count, &call->recv_count);
    if (status == EXPAR_OK)
        status = ll_check_vector(ll, "expert_recv_stats", &args->expert_recv_stats, EXPAR_I32, ll->shape.local_experts);
    return status == EXPAR_OK ? ll_check_vector(ll, "wait_ns", &args->wait_ns, EXPAR_I64, ll->shape.ranks) : status;
}

expar_status ll_dispatch_check(ll_dispatch_call *call, const expar_ll_dispatch_args *args,
                               const expar_ll_dispatch_result *result)
{
    const expar_ll *ll = ll_of(&call->op.base);
    expar_ll_dispatch_result checked;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    if (status == EXPAR_OK) status = ep_copy_struct("result", &checked, sizeof checked, result);
    if (status == EXPAR_OK) status = ll_dispatch_check_x(ll, &call->args.x);
    if (status == EXPAR_OK)
        status = ll_check_topk(ll, &call->args.topk_idx, &call->args.topk_weights, call->args.x.shape[0]);
    if (status == EXPAR_OK) status = ll_dispatch_check_format(ll, &call->args);
    if (status == EXPAR_OK) status = ll_check_manner(call->args.hook, call->args.async_finish);
    return status == EXPAR_OK ? ll_dispatch_check_results(call) : status;
}
