/* SPDX-License-Identifier: Apache-2.0 */
/* All that one rank alone can find wrong with the arguments of a low-latency dispatch. */
#include "ep/low_latency/dispatch.h"

static expar_status ll_dispatch_check_x(const expar_ll *ll, const expar_tensor *x)
{
    expar_status status = ep_check_rows(ll->device, "x", x, INT64_MAX, false);
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

static expar_status ll_dispatch_check_format(const expar_ll_dispatch_args *args)
{
    if ((int)args->format < EXPAR_LL_PLAIN || (int)args->format > EXPAR_LL_LOGFMT)
        return error_set(EXPAR_ERR_ARGUMENT, "format is %d; expected %d to %d", (int)args->format, (int)EXPAR_LL_PLAIN,
                         (int)EXPAR_LL_INT8);
    if (args->format == EXPAR_LL_LOGFMT)
        return error_set(EXPAR_ERR_ARGUMENT, "format is %d (LogFMT), which combines have; expected %d to %d",
                         (int)args->format, (int)EXPAR_LL_PLAIN, (int)EXPAR_LL_INT8);
    if (args->format != EXPAR_LL_PLAIN)
        return error_set(EXPAR_ERR_UNSUPPORTED, "format is %d; expected %d: quantised formats are not built yet",
                         (int)args->format, (int)EXPAR_LL_PLAIN);
    return EXPAR_OK;
}

/* What says how the call is made. */
static expar_status ll_dispatch_check_manner(const expar_ll_dispatch_args *args)
{
    if (args->async_finish)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "async_finish is %d; expected 0: it is not built yet in low-latency mode", args->async_finish);
    if (args->wait_event)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "wait_event is given; expected NULL: it is not built yet in low-latency "
                         "mode");
    if (args->hook != 0 && args->hook != 1)
        return error_set(EXPAR_ERR_ARGUMENT, "hook is %d; expected 0 or 1", args->hook);
    return EXPAR_OK;
}

/* Shapes of the results, and that the caller's memory for them has these. */
static expar_status ll_dispatch_check_results(ll_dispatch_call *call)
{
    const expar_ll *ll = call->ll;
    const expar_ll_dispatch_args *args = &call->args;
    expar_status status = EXPAR_OK;
    call->recv_x = ll_rows_tensor(ll, args->out_x.data, args->x.dtype);
    call->recv_count = expar_tensor_1d(args->out_count.data, EXPAR_I32, ll->shape.local_experts);
    call->recv_count.device = ll->device;
    if (tensor_given(&args->out_x)) status = ll_check_result(ll, "out_x", &args->out_x, &call->recv_x);
    if (status == EXPAR_OK && tensor_given(&args->out_scales))
        status = error_set(EXPAR_ERR_ARGUMENT, "out_scales is given, but format %d has no scales; expected none",
                           (int)args->format);
    if (status == EXPAR_OK && tensor_given(&args->out_count))
        status = ll_check_result(ll, "out_count", &args->out_count, &call->recv_count);
    if (status == EXPAR_OK)
        status = ll_check_vector(ll, "expert_recv_stats", &args->expert_recv_stats, EXPAR_I32, ll->shape.local_experts);
    return status == EXPAR_OK ? ll_check_vector(ll, "wait_ns", &args->wait_ns, EXPAR_I64, ll->shape.ranks) : status;
}

expar_status ll_dispatch_check(ll_dispatch_call *call, const expar_ll_dispatch_args *args,
                               const expar_ll_dispatch_result *result)
{
    const expar_ll *ll = call->ll;
    expar_ll_dispatch_result checked;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    if (status == EXPAR_OK) status = ep_copy_struct("result", &checked, sizeof checked, result);
    if (status == EXPAR_OK) status = ll_dispatch_check_x(ll, &call->args.x);
    if (status == EXPAR_OK)
        status = ll_check_topk(ll, &call->args.topk_idx, &call->args.topk_weights, call->args.x.shape[0]);
    if (status == EXPAR_OK) status = ll_dispatch_check_format(&call->args);
    if (status == EXPAR_OK) status = ll_dispatch_check_manner(&call->args);
    return status == EXPAR_OK ? ll_dispatch_check_results(call) : status;
}
