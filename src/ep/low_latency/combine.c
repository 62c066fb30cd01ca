/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ll_combine: from arguments to send and receive; and the memory that a GEMM may write its rows to. */
#include "ep/low_latency/ll.h"

#include <string.h>

typedef struct ll_combine_call {
    ll_op op;
    expar_ll_combine_args args;
    expar_tensor y;
    ll_signals signals;
} ll_combine_call;

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static expar_status ll_combine_check_logfmt(const ll_combine_call *call)
{
    const expar_ll *ll = ll_of(&call->op.base);
    if (call->args.sum != EXPAR_LL_SUM_EXACT)
        return error_set(EXPAR_ERR_ARGUMENT, "format is LOGFMT with sum %s; expected sum EXACT with it",
                         ep_tell(&ep_names_sum, call->args.sum).text);
    if (!codec_takes(CODEC_LOGFMT, ll->shape.hidden))
        return error_set(EXPAR_ERR_SHAPE, "format is LOGFMT, but x has hidden size %d; expected a multiple of %d",
                         ll->shape.hidden, CODEC_GROUP);
    if (ll->combine_memory && call->args.x.data == ll->combine_memory->data)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "format is LOGFMT, and x is of expar_ll_get_combine_buffer; expected other memory: coded "
                         "rows are never sent without a copy");
    return EXPAR_OK;
}

static expar_status ll_combine_check_sum(const ll_combine_call *call)
{
    const expar_ll_combine_args *args = &call->args;
    const ll_shape *shape = &ll_of(&call->op.base)->shape;
    expar_status status = ep_check_named("sum", &ep_names_sum, args->sum, EXPAR_LL_SUM_EXACT, EXPAR_LL_SUM_REDUCED);
    if (status != EXPAR_OK) return status;
    if (!(args->sum == EXPAR_LL_SUM_EXACT ? shape->exact : shape->reduced))
        return error_set(EXPAR_ERR_LIMIT, "sum is %s, for which this buffer was not created (config.sums)",
                         ep_tell(&ep_names_sum, args->sum).text);
    if (args->sum == EXPAR_LL_SUM_REDUCED && args->hook && !args->handle->routing.weights)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "hook is 1 for a reduced sum, but the dispatch had no topk_weights; expected it to have them: "
                         "else they go ahead, and the send waits for those of the others");
    if (args->format != EXPAR_LL_FORMAT_PLAIN && args->format != EXPAR_LL_FORMAT_LOGFMT)
        return error_set(EXPAR_ERR_ARGUMENT, "format is %s; expected PLAIN or LOGFMT",
                         ep_tell(&ep_names_format, args->format).text);
    return args->format == EXPAR_LL_FORMAT_LOGFMT ? ll_combine_check_logfmt(call) : EXPAR_OK;
}

/* Checks topk_idx and topk_weights: they have as many tokens and slots as in the dispatch. */
static expar_status ll_combine_check_route(const ll_combine_call *call)
{
    const expar_ll_combine_args *args = &call->args;
    const ll_routing *routing = &args->handle->routing;
    expar_status status = ep_check_matrix(ll_of(&call->op.base)->base.device, "topk_idx", &args->topk_idx,
                                          routing->tokens, routing->topk, EXPAR_I64, EXPAR_I32);
    if (status != EXPAR_OK) return status;
    return ep_check_matrix(ll_of(&call->op.base)->base.device, "topk_weights", &args->topk_weights, routing->tokens,
                           routing->topk, EXPAR_F32, EXPAR_F32);
}

static expar_status ll_combine_check_y(ll_combine_call *call)
{
    const expar_ll *ll = ll_of(&call->op.base);
    const expar_tensor *given = &call->args.out_y;
    call->y = expar_tensor_2d_on(ll->base.device, given->data, call->args.x.dtype, call->args.handle->routing.tokens,
                                 ll->shape.hidden);
    if (!tensor_given(given)) return EXPAR_OK;
    expar_status status = ep_check_matrix(ll->base.device, "out_y", given, call->y.shape[0], ll->shape.hidden,
                                          call->y.dtype, call->y.dtype);
    if (status == EXPAR_OK) call->y = *given;
    return status == EXPAR_OK ? ep_check_units("out_y", given) : status;
}

/* Ranks that a clean has taken in again do not know earlier dispatches. */
static expar_status ll_combine_check_era(const ll_combine_call *call)
{
    if (call->args.handle->era == ll_of(&call->op.base)->era) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "handle is of a dispatch before expar_ll_mask_clean; expected one after it");
}

static expar_status ll_combine_check(ll_combine_call *call, const expar_ll_combine_args *args,
                                     const expar_ll_combine_result *result)
{
    const expar_ll *ll = ll_of(&call->op.base);
    expar_ll_combine_result checked;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    if (status == EXPAR_OK) status = ep_copy_struct("result", &checked, sizeof checked, result);
    if (status == EXPAR_OK) status = ll_handle_check_own(ll, call->args.handle);
    if (status == EXPAR_OK) status = ll_combine_check_sum(call);
    if (status == EXPAR_OK && tensor_given(&call->args.x)) status = ll_check_dtype(ll, "x", call->args.x.dtype);
    if (status == EXPAR_OK) status = ll_check_rows(ll, "x", &call->args.x, call->args.x.dtype);
    if (status == EXPAR_OK) status = ll_combine_check_route(call);
    if (status == EXPAR_OK) status = ll_combine_check_y(call);
    if (status == EXPAR_OK) status = ll_check_vector(ll, "wait_ns", &call->args.wait_ns, EXPAR_I64, ll->shape.ranks);
    if (status == EXPAR_OK) status = ll_check_manner(call->args.hook, call->args.async_finish);
    if (status == EXPAR_OK) status = ll_signals_make(ll, call->args.signals, &call->signals);
    if (status == EXPAR_OK) status = ll_combine_check_era(call);
    return status == EXPAR_OK ? ll_signals_await(ll, &call->signals) : status;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static expar_status ll_combine_make_y(ll_combine_call *call)
{
    expar_ll *ll = ll_of(&call->op.base);
    const uint64_t bytes = (uint64_t)ll->shape.tokens * (uint64_t)ll->shape.hidden * expar_dtype_bytes(call->y.dtype);
    if (tensor_given(&call->args.out_y)) return EXPAR_OK;
    expar_status status = ll_output_make(ll, bytes, &call->op.output);
    if (status != EXPAR_OK) return status;
    call->y.data = call->op.output->block->data;
    call->op.output->parts[EXPAR_EP_PART_X] = call->y;
    return EXPAR_OK;
}

static void ll_combine_fill(ll_combine_call *call)
{
    const expar_ll_combine_args *args = &call->args;
    const int64_t element = (int64_t)expar_dtype_bytes(args->x.dtype);
    ll_combine_step *step = &call->op.step.combine;
    step->x = args->x.data;
    step->x_expert_pitch_bytes = args->x.strides[0] * element;
    step->x_row_pitch_bytes = args->x.strides[1] * element;
    step->x_stays = !args->hook;
    step->route = ll_route_view(&args->topk_idx, &args->topk_weights);
    step->routing = &args->handle->routing;
    step->signals = call->signals;
    step->y = call->y.data;
    step->y_pitch_bytes = tensor_pitch(&call->y) * element;
    step->call.wait_ns = tensor_given(&args->wait_ns) ? args->wait_ns.data : NULL;
    step->call.whole = !args->hook;
    step->call.form = (ll_form){.format = (int32_t)args->format,
                                .dtype = (int32_t)args->x.dtype,
                                .sum = (int32_t)args->sum,
                                .weights = args->sum == EXPAR_LL_SUM_REDUCED && !args->handle->routing.weights,
                                .topk = args->handle->routing.topk,
                                .route = args->handle->routing.route};
}

/* Does everything that comes before the other ranks are told. The call holds its handle from then on. */
static expar_status ll_combine_prepare(ll_combine_call *call)
{
    expar_status status = ll_combine_make_y(call);
    if (status == EXPAR_OK) status = ll_op_promise(&call->op);
    if (status != EXPAR_OK) return status;
    call->op.handle = ll_handle_hold(call->args.handle);
    ll_combine_fill(call);
    return EXPAR_OK;
}

static void ll_combine_give(const ll_combine_call *call, expar_ll_combine_result *result)
{
    const expar_ll_combine_result full = {.struct_size = result->struct_size,
                                          .y = call->y,
                                          .output = call->op.output,
                                          .hook = call->op.hook,
                                          .event = call->op.base.event};
    memcpy(result, &full, result->struct_size);
}

expar_status expar_ll_combine(expar_ll *ll, const expar_ll_combine_args *args, expar_ll_combine_result *result)
{
    ll_combine_call call = {0};
    expar_status status = ll_op_begin(&call.op, "expar_ll_combine", LL_COMBINE, ll);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = ll_combine_check(&call, args, result);
    status = ll_op_learn(&call.op, LL_MANNER_OF(&call.args), status);
    if (status == EXPAR_OK) status = ll_combine_prepare(&call);
    status = ll_op_finish(&call.op, status);
    if (status == EXPAR_OK) {
        ll_combine_give(&call, result);
        expar_ll_handle_release(call.op.handle);
    }
    return ll_ended(ll, ll_op_end(&call.op, status));
}

/* ---- zero copy --------------------------------------------------------------------------------------------------- */

static expar_status combine_memory(expar_ll *ll, const expar_ll_handle *handle, expar_dtype dtype, expar_tensor *x)
{
    if (!x) return error_set(EXPAR_ERR_NULL, "x is NULL");
    expar_status status = ll_handle_check_own(ll, handle);
    if (status == EXPAR_OK) status = ll_check_dtype(ll, "x", dtype);
    if (status == EXPAR_OK && !ll->combine_memory)
        status = ll->base.exec->ops->take(
            ll->base.exec, NULL, ll_rows_bytes(&ll->shape, (int64_t)ll->shape.hidden * ll->shape.element_bytes),
            &ll->combine_memory);
    if (status == EXPAR_OK) *x = ll_rows_tensor(ll, ll->combine_memory->data, dtype);
    return status;
}

expar_status expar_ll_get_combine_buffer(expar_ll *ll, const expar_ll_handle *handle, expar_dtype dtype,
                                         expar_tensor *x)
{
    static const char name[] = "expar_ll_get_combine_buffer";
    expar_status status = ll_take(ll, name, false);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = ll_check_shaped(ll, name);
    if (status != EXPAR_OK) return ll_ended(ll, ep_buffer_give(&ll->base, status));
    status = combine_memory(ll, handle, dtype, x);
    if (status != EXPAR_OK) error_prefix(status, "%s", name);
    return ll_ended(ll, ep_buffer_give(&ll->base, status));
}
