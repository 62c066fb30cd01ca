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
    if ((uint32_t)args->format > EXPAR_LL_FORMAT_NVFP4 || args->format == EXPAR_LL_FORMAT_LOGFMT)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "format is %s; expected PLAIN, FP8, FP8_ROUND, FP8_UE8M0, INT8 or NVFP4 for a dispatch",
                         ep_tell(&ep_names_format, args->format).text);
    if (!codec_takes(ll_codec_of(&form), ll->shape.hidden))
        return error_set(EXPAR_ERR_SHAPE, "format is %s, but x has hidden size %d; expected a multiple of %d",
                         ep_tell(&ep_names_format, args->format).text, ll->shape.hidden, CODEC_GROUP);
    return EXPAR_OK;
}

static expar_status ll_dispatch_check_global_scale(const expar_ll *ll, const expar_ll_dispatch_args *args)
{
    const bool given = tensor_given(&args->global_scale);
    if (args->format == EXPAR_LL_FORMAT_NVFP4) {
        if (!given) return error_set(EXPAR_ERR_NULL, "global_scale is not given; format NVFP4 needs one f32");
        return ll_check_vector(ll, "global_scale", &args->global_scale, EXPAR_F32, 1);
    }
    if (!given) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "global_scale is given, but format is %s; expected none, or NVFP4",
                     ep_tell(&ep_names_format, args->format).text);
}

static expar_dtype payload_dtype(const expar_ll_dispatch_args *args)
{
    switch (args->format) {
    case EXPAR_LL_FORMAT_PLAIN:
        return args->x.dtype;
    case EXPAR_LL_FORMAT_INT8:
        return EXPAR_I8;
    case EXPAR_LL_FORMAT_NVFP4:
        return EXPAR_U8;
    default:
        return EXPAR_F8E4M3;
    }
}

/* [L][N*B][H], or half of H for NVFP4, which has two elements in a byte. */
static expar_tensor payload_tensor(const expar_ll *ll, const expar_ll_dispatch_args *args)
{
    expar_tensor rows = ll_rows_tensor(ll, args->out_x.data, payload_dtype(args));
    if (args->format != EXPAR_LL_FORMAT_NVFP4) return rows;
    return expar_tensor_3d_on(ll->base.device, rows.data, rows.dtype, rows.shape[0], rows.shape[1], rows.shape[2] / 2);
}

/* NVFP4: [L][tiles of rows][words][bytes of a tile], contiguous. */
static expar_tensor tiled_scales_tensor(const expar_ll *ll, void *data, int64_t words, int64_t rows)
{
    const int64_t bytes = NVFP4_TILE * 4, tiles = nvfp4_tiles(rows);
    return (expar_tensor){.data = data,
                          .dtype = EXPAR_F8E4M3,
                          .ndim = 4,
                          .shape = {ll->shape.local_experts, tiles, words, bytes},
                          .strides = {tiles * words * bytes, words * bytes, bytes, 1},
                          .device = ll->base.device};
}

/* [L][N*B][words], the token dimension contiguous; none for a format without scales. */
static expar_tensor scales_tensor(const expar_ll *ll, const expar_ll_dispatch_args *args)
{
    const ll_form form = {.format = (int32_t)args->format, .dtype = (int32_t)args->x.dtype};
    const int64_t words = codec_scales(ll_codec_of(&form), ll->shape.hidden);
    const int64_t rows = (int64_t)ll->shape.ranks * ll->shape.tokens;
    if (words == 0) return EXPAR_TENSOR_NONE;
    if (args->format == EXPAR_LL_FORMAT_NVFP4) return tiled_scales_tensor(ll, args->out_scales.data, words, rows);
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
    call->recv_x = payload_tensor(ll, args);
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
    if (status == EXPAR_OK) status = ll_dispatch_check_global_scale(ll, &call->args);
    if (status == EXPAR_OK) status = ll_dispatch_check_format(ll, &call->args);
    if (status == EXPAR_OK) status = ll_check_manner(call->args.hook, call->args.async_finish);
    return status == EXPAR_OK ? ll_dispatch_check_results(call) : status;
}
