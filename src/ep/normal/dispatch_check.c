/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the arguments of a dispatch. */
#include "ep/normal/dispatch.h"

static expar_status dispatch_check_x(const dispatch_call *call)
{
    const expar_ep *ep = ep_of(&call->base);
    const expar_tensor *x = &call->args.x;
    expar_status status = ep_check_rows(call->base.buffer->device, "x", x, ep->limits.row_bytes, true);
    if (status != EXPAR_OK) return status;
    if (x->shape[0] > ep->limits.tokens)
        return error_set(EXPAR_ERR_LIMIT,
                         "x has %lld tokens; this buffer was created for at most %lld (config.max_tokens)",
                         (long long)x->shape[0], (long long)ep->limits.tokens);
    if (!tensor_given(&call->args.x_scales)) return EXPAR_OK;
    if (x->dtype != EXPAR_F8E4M3 && x->dtype != EXPAR_I8)
        return error_set(EXPAR_ERR_ARGUMENT, "x_scales is given with x of %s; expected f8e4m3 or i8",
                         expar_dtype_string(x->dtype));
    return ep_check_scales(call->base.buffer->device, &call->args.x_scales, x->shape[0], ep->limits.scales);
}

static ep_prologue dispatch_prologue(const expar_ep_dispatch_args *args)
{
    return (ep_prologue){.tokens = args->x.shape[0],
                         .topk_idx = args->topk_idx,
                         .topk_weights = args->topk_weights,
                         .topk_idx_copy = args->topk_idx_copy,
                         .token_in_rank = args->token_in_rank,
                         .tokens_per_expert = args->tokens_per_expert,
                         .counts_far = mem_is_far(args->tokens_per_expert),
                         .num_worst_tokens = args->num_worst_tokens,
                         .num_expert_rows = args->num_expert_rows,
                         .num_experts = args->num_experts,
                         .expert_alignment = args->expert_alignment,
                         .keep_slots = args->keep_slots != 0};
}

static expar_status check_fresh(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const char *needs = tensor_given(&args->topk_weights)    ? "topk_weights"
                        : args->num_worst_tokens             ? "num_worst_tokens"
                        : args->expert_major                 ? "expert_major"
                        : args->keep_slots                   ? "keep_slots"
                        : tensor_given(&args->topk_idx_copy) ? "topk_idx_copy"
                                                             : NULL;
    expar_status status = prologue_check(ep_of(&call->base), &call->prologue, needs);
    if (status == EXPAR_OK && args->num_expert_rows && !args->expert_major)
        return error_set(EXPAR_ERR_ARGUMENT, "num_expert_rows is given without expert_major; expected both, or none");
    return status;
}

/* Checks topk_idx and topk_weights of a dispatch with a handle, which gives the places of rows. */
static expar_status check_topk_beside_handle(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const ep_routing *routing = &call->given->routing;
    bool given = tensor_given(&args->topk_idx);
    if (!given && tensor_given(&args->topk_weights))
        return error_set(EXPAR_ERR_NULL, "topk_idx is not given, but topk_weights is, which needs it");
    expar_status status = given ? prologue_check_topk(ep_of(&call->base), &call->prologue) : EXPAR_OK;
    if (status != EXPAR_OK) return status;
    if (given && args->topk_idx.shape[1] != routing->topk)
        return error_set(EXPAR_ERR_SHAPE, "topk_idx has %lld slots a token; expected the %d of the handle",
                         (long long)args->topk_idx.shape[1], routing->topk);
    if (args->expert_major && !given && !ep_handle_is_mapped(call->given))
        return error_set(EXPAR_ERR_HANDLE,
                         "expert_major is 1; expected a handle of an expert-major dispatch, or topk_idx");
    return EXPAR_OK;
}

static expar_status check_cached(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    expar_status status = ep_check_handle(ep_of(&call->base), call->given);
    if (status != EXPAR_OK) return status;
    const char *extra = tensor_given(&args->token_in_rank)   ? "token_in_rank"
                        : args->num_worst_tokens             ? "num_worst_tokens"
                        : args->num_expert_rows              ? "num_expert_rows"
                        : tensor_given(&args->topk_idx_copy) ? "topk_idx_copy"
                                                             : NULL;
    if (extra)
        return error_set(EXPAR_ERR_ARGUMENT, "%s is given together with a handle; expected one of the two", extra);
    if (args->x.shape[0] != call->given->routing.tokens)
        return error_set(EXPAR_ERR_SHAPE, "x has %lld tokens; expected the %lld of the handle's dispatch",
                         (long long)args->x.shape[0], (long long)call->given->routing.tokens);
    status = prologue_check_sizes(&call->prologue);
    return status == EXPAR_OK ? check_topk_beside_handle(call) : status;
}

static expar_status dispatch_check_flags(const expar_ep_dispatch_args *args)
{
    const ep_flag flags[] = {{"expert_major", args->expert_major}, {"zero_padding", args->zero_padding},
                             {"async_finish", args->async_finish}, {"keep_slots", args->keep_slots},
                             {"src_tokens", args->src_tokens},     {"global_experts", args->global_experts},
                             {"row_weights", args->row_weights},   {"column_scales", args->column_scales}};
    return ep_check_flags(flags, ARRAY_LENGTH(flags));
}

static expar_status dispatch_check_options(const expar_ep_dispatch_args *args)
{
    return ep_check_named("path", &ep_names_path, args->path, EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_QUEUE);
}

static expar_status check_capture(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    expar_status status = dispatch_cached(call) ? EXPAR_OK : prologue_check_capture(&call->base, &call->prologue);
    if (status != EXPAR_OK) return status;
    return ep_call_check_events(&call->base, args->wait_event, args->async_finish);
}

const char *dispatch_out_name(int part)
{
    static const char *const names[EP_DISPATCH_PARTS] = {[EXPAR_EP_PART_X] = "out_x",
                                                         [EXPAR_EP_PART_SCALES] = "out_scales",
                                                         [EXPAR_EP_PART_TOPK_IDX] = "out_topk_idx",
                                                         [EXPAR_EP_PART_TOPK_WEIGHTS] = "out_topk_weights",
                                                         [EXPAR_EP_PART_ROW_MAP] = "out_row_map",
                                                         [EXPAR_EP_PART_SRC_TOKEN] = "out_src_token",
                                                         [EXPAR_EP_PART_ROW_WEIGHTS] = "out_row_weights",
                                                         [EXPAR_EP_PART_SRC_METADATA] = "out_src_metadata"};
    return names[part];
}

static expar_status check_out_x(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const expar_tensor *out = &args->out_x;
    if (!tensor_given(out)) return EXPAR_OK;
    expar_status status =
        ep_check_rows(call->base.buffer->device, "out_x", out, ep_of(&call->base)->limits.row_bytes, true);
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

/* Checks one of the other outputs: it is as wide as the tensor `like`, and its rows are contiguous. */
static expar_status check_own(const dispatch_call *call, int part, const char *from, const expar_tensor *like)
{
    const expar_tensor *out = dispatch_own(call, part);
    const char *name = dispatch_out_name(part);
    if (!out) return EXPAR_OK;
    if (!tensor_given(like))
        return error_set(EXPAR_ERR_ARGUMENT, "%s is given without %s; expected both, or none", name, from);
    expar_status status =
        ep_check_matrix(call->base.buffer->device, name, out, out->shape[0], like->shape[1], like->dtype, like->dtype);
    if (status == EXPAR_OK && tensor_pitch(out) != out->shape[1])
        return error_set(EXPAR_ERR_STRIDE, "%s.strides[0] is %lld; expected %lld (contiguous)", name,
                         (long long)out->strides[0], (long long)out->shape[1]);
    return status;
}

/* out_scales that are to be column-major, and have passed what any scales have to. */
static expar_status check_pitch(const expar_tensor *out)
{
    const long long rows = out->shape[0], row = out->strides[0], column = out->strides[1];
    if ((rows > 1 && row != 1) || (out->shape[1] > 1 && (column < rows || column % 4)))
        return error_set(EXPAR_ERR_STRIDE,
                         "out_scales has strides (%lld, %lld); expected (1, a multiple of 4, at least %lld), as "
                         "column_scales says",
                         row, column, rows);
    return EXPAR_OK;
}

static expar_status check_column_scales(const dispatch_call *call)
{
    const expar_tensor *scales = &call->args.x_scales, *out = &call->args.out_scales;
    if (!tensor_given(scales))
        return error_set(EXPAR_ERR_ARGUMENT, "column_scales is given without x_scales; expected both, or none");
    if (!tensor_given(out)) return EXPAR_OK;
    expar_status status = ep_check_columns(call->base.buffer->device, "out_scales", out, scales);
    return status == EXPAR_OK ? check_pitch(out) : status;
}

static expar_status check_own_scales(const dispatch_call *call)
{
    const expar_tensor *scales = &call->args.x_scales;
    return call->args.column_scales ? check_column_scales(call)
                                    : check_own(call, EXPAR_EP_PART_SCALES, "x_scales", scales);
}

static expar_status check_stride(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const int32_t most = INT32_MAX / ep_of(&call->base)->shape.ranks;
    if (args->src_stride < 0 || args->src_stride > most)
        return error_set(EXPAR_ERR_ARGUMENT, "src_stride is %d; expected 0 (none) to %d", args->src_stride, most);
    if (args->src_stride && args->src_stride < args->x.shape[0])
        return error_set(EXPAR_ERR_ARGUMENT, "src_stride is %d; expected at least the %lld tokens of x",
                         args->src_stride, (long long)args->x.shape[0]);
    return EXPAR_OK;
}

/* Checks an output that has one element in each row. */
static expar_status check_own_vector(const dispatch_call *call, int part, expar_dtype dtype)
{
    const expar_tensor *out = dispatch_own(call, part);
    return out ? ep_check_vector(call->base.buffer->device, dispatch_out_name(part), out, dtype) : EXPAR_OK;
}

static expar_status check_row_weights(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const char *name = args->row_weights ? "row_weights" : "out_row_weights";
    const char *without = !args->expert_major                  ? "expert_major"
                          : !tensor_given(&args->topk_weights) ? "topk_weights"
                                                               : NULL;
    if (!dispatch_weighs_rows(call)) return EXPAR_OK;
    if (without) return error_set(EXPAR_ERR_ARGUMENT, "%s is given without %s; expected both, or none", name, without);
    return check_own_vector(call, EXPAR_EP_PART_ROW_WEIGHTS, EXPAR_F32);
}

static expar_status check_outputs(const dispatch_call *call)
{
    const expar_ep_dispatch_args *args = &call->args;
    const int64_t topk = call->given ? call->given->routing.topk : args->topk_idx.shape[1];
    const expar_tensor map = args->expert_major ? expar_tensor_2d(NULL, EXPAR_I32, 1, topk) : EXPAR_TENSOR_NONE;
    const expar_tensor sources = args->src_stride ? expar_tensor_2d(NULL, EXPAR_I32, 1, 2 + topk) : EXPAR_TENSOR_NONE;
    expar_status status = check_out_x(call);
    if (status == EXPAR_OK) status = check_own_scales(call);
    if (status == EXPAR_OK) status = check_own(call, EXPAR_EP_PART_TOPK_IDX, "topk_idx", &args->topk_idx);
    if (status == EXPAR_OK) status = check_own(call, EXPAR_EP_PART_TOPK_WEIGHTS, "topk_weights", &args->topk_weights);
    if (status == EXPAR_OK) status = check_own(call, EXPAR_EP_PART_ROW_MAP, "expert_major", &map);
    if (status == EXPAR_OK) status = check_own(call, EXPAR_EP_PART_SRC_METADATA, "src_stride", &sources);
    if (status == EXPAR_OK) status = check_own_vector(call, EXPAR_EP_PART_SRC_TOKEN, EXPAR_I32);
    return status == EXPAR_OK ? check_row_weights(call) : status;
}

expar_status dispatch_check(dispatch_call *call, const expar_ep_dispatch_args *args,
                            const expar_ep_dispatch_result *result)
{
    expar_ep_dispatch_result unused;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    bool asked = call->args.async_finish || !call->args.num_worst_tokens;
    if (status == EXPAR_OK) status = ep_call_learn(&call->base, call->args.stream, call->args.num_sms, asked);
    if (status != EXPAR_OK) return status;
    call->base.wait_event = call->args.wait_event;
    call->given = call->args.handle;
    ep_call_set_async(&call->base, call->args.async_finish != 0, dispatch_sized(call));
    call->prologue = dispatch_prologue(&call->args);
    if ((status = ep_copy_struct("result", &unused, sizeof unused, result)) != EXPAR_OK) return status;
    if ((status = dispatch_check_flags(&call->args)) != EXPAR_OK) return status;
    if ((status = dispatch_check_x(call)) != EXPAR_OK) return status;
    status = dispatch_cached(call) ? check_cached(call) : check_fresh(call);
    if (status == EXPAR_OK) status = dispatch_check_options(&call->args);
    if (status == EXPAR_OK) status = check_stride(call);
    if (status == EXPAR_OK) status = check_capture(call);
    if (status == EXPAR_OK) status = prologue_check_counts(ep_of(&call->base), call->args.recv_counts, &call->counts);
    return status == EXPAR_OK ? check_outputs(call) : status;
}
