/* SPDX-License-Identifier: Apache-2.0 */
/* What every call on a buffer has: one call at a time, poison, epochs, and what ranks tell each other about bad
 * arguments. */
#include "ep/ep.h"

#include <stdio.h>
#include <string.h>

expar_status ep_call_begin(ep_call *call, const char *name, expar_ep *ep)
{
    if (!ep) return error_set(EXPAR_ERR_NULL, "%s: ep is NULL", name);
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong_explicit(&ep->busy, &idle, 1, memory_order_acquire, memory_order_relaxed))
        return error_set(EXPAR_ERR_BUSY, "%s: another call on this buffer is still running", name);
    *call = (ep_call){.ep = ep, .name = name};
    ep_issue_join(ep);
    if (ep->gpu && ep->poison.status == EXPAR_OK)
        ep_call_poison(call, executor_cuda_failure(ep->exec, "an earlier call"));
    if (error_restore(&ep->poison) != EXPAR_OK)
        return ep_call_end(call, error_prefix(ep->poison.status, "%s: the buffer is poisoned", name));
    if (ep->gpu) ep_gpu_tell_untold(call);
    if (ep->gpu) executor_cuda_reset(ep->exec);
    ep->epoch++;
    return EXPAR_OK;
}

static void poison(const ep_call *call, expar_status status)
{
    expar_ep *ep = call->ep;
    if (ep->poison.status == EXPAR_OK) error_keep(&ep->poison, error_prefix(status, "%s", call->name));
}

static bool is_of_group(expar_status status)
{
    return status == EXPAR_ERR_PEER || status == EXPAR_ERR_ABORTED;
}

expar_status ep_call_poison(const ep_call *call, expar_status status)
{
    if (is_of_group(status)) poison(call, status);
    return status;
}

expar_status ep_call_step(const ep_call *call, expar_status status)
{
    if (!call->ep->gpu || status == EXPAR_OK) return status;
    if (!call->ep->exec->capturing)
        poison(call, status);
    else if (!is_of_group(status))
        error_prefix(status, "%s", call->name);
    return status;
}

/* A call that failed on its way has left work on its stream all the same. Why it failed stays the last error. */
static void end_on_stream(const ep_call *call, expar_status why)
{
    error_kept kept;
    error_keep(&kept, why);
    ep_call_step(call, executor_cuda_end(call->ep->exec));
    error_restore(&kept);
}

expar_status ep_call_end(const ep_call *call, expar_status status)
{
    ep_call_poison(call, status);
    if (call->ep->gpu && status != EXPAR_OK) end_on_stream(call, status);
    atomic_store_explicit(&call->ep->busy, 0, memory_order_release);
    return status;
}

expar_status ep_call_refuse(ep_call *call, expar_status status)
{
    call->refusal.status = (int32_t)status;
    snprintf(call->refusal.text, sizeof call->refusal.text, "%.*s", (int)sizeof call->refusal.text - 1,
             expar_last_error());
    if (call->ep->gpu) call->ep->own_refusal = call->refusal;
    return error_prefix(status, "%s", call->name);
}

expar_status ep_call_tell_refusal(ep_call *call)
{
    /* In a graph it would be told again and again. */
    if (call->ep->exec->capturing) return (expar_status)call->refusal.status;
    ep_notify_step step = {.epoch = call->ep->epoch, .form = call->form, .refusal = call->refusal};
    expar_status status = call->ep->gpu ? executor_cuda_begin_refused(call->ep->exec) : EXPAR_OK;
    if (status == EXPAR_OK) status = call->ep->exec->ops->notify(call->ep->exec, &step);
    ep_call_step(call, status);
    return status == EXPAR_OK ? (expar_status)call->refusal.status : status;
}

static expar_status wait_event(expar_event *event)
{
    if (!event) return EXPAR_OK;
    if (expar_event_wait(event) == EXPAR_OK) return EXPAR_OK;
    /* Another status than the event's: its failure says nothing about this group. */
    return error_prefix(EXPAR_ERR_STATE, "wait_event ended badly");
}

bool ep_call_follows(const ep_call *call)
{
    return !call->ep->gpu || executor_cuda_follows(call->ep->exec);
}

expar_status ep_call_follow(const ep_call *call, expar_event *event)
{
    expar_status status = wait_event(event);
    if (!call->ep->gpu) return status;
    /* A refusal that comes with the call's offers has its place on the stream, too. */
    error_kept kept;
    error_keep(&kept, status);
    expar_status followed = executor_cuda_follow(call->ep->exec);
    return status == EXPAR_OK ? followed : error_restore(&kept);
}

static const char *const kind_names[] = {"?", "expar_dispatch", "expar_dispatch with a handle", "expar_combine"};

/* Names the first member in which two forms differ. */
static expar_status mismatch(const ep_call *call, int32_t rank, const ep_form *a, const ep_form *b)
{
    if (a->kind != b->kind)
        return error_set(EXPAR_ERR_MISMATCH, "%s: rank %d called %s while rank 0 called %s", call->name, rank,
                         kind_names[a->kind], kind_names[b->kind]);
    const struct {
        const char *name;
        int64_t a, b;
    } members[] = {
        {"hidden size", a->hidden, b->hidden},
        {"top-k", a->topk, b->topk},
        {"number of experts", a->experts, b->experts},
        {"topk_weights (0 absent, 1 given)", a->weights, b->weights},
        {"handle (number of the dispatch that made it)", a->route, b->route},
        {"scales a token", a->scales, b->scales},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(members); i++)
        if (members[i].a != members[i].b)
            return error_set(EXPAR_ERR_MISMATCH, "%s: %s is %lld on rank %d and %lld on rank 0; expected the same",
                             call->name, members[i].name, (long long)members[i].a, rank, (long long)members[i].b);
    const struct {
        const char *name;
        int32_t a, b;
    } dtypes[] = {{"x", a->dtype, b->dtype},
                  {"x_scales", a->scale_dtype, b->scale_dtype},
                  {"topk_idx", a->idx_dtype, b->idx_dtype}};
    size_t i = 0;
    while (i + 1 < ARRAY_LENGTH(dtypes) && dtypes[i].a == dtypes[i].b)
        i++;
    return error_set(EXPAR_ERR_MISMATCH, "%s: dtype of %s is %s on rank %d and %s on rank 0; expected the same",
                     call->name, dtypes[i].name, expar_dtype_string((expar_dtype)dtypes[i].a), rank,
                     expar_dtype_string((expar_dtype)dtypes[i].b));
}

expar_status ep_call_verdict(ep_call *call, const ep_verdict *verdict)
{
    if (call->refusal.status != EXPAR_OK) return (expar_status)call->refusal.status;
    if (verdict->rank < 0) return EXPAR_OK;
    if (verdict->reason.status == EXPAR_ERR_MISMATCH && !verdict->reason.text[0])
        return mismatch(call, verdict->rank, &verdict->form, &verdict->form0);
    /* On a GPU this rank's own indices are looked at by its kernels. */
    if (verdict->rank == call->ep->group->rank)
        return error_set((expar_status)verdict->reason.status, "%s: %s", call->name, verdict->reason.text);
    return error_set(EXPAR_ERR_REMOTE, "%s: rank %d refused its arguments: %s: %s", call->name, verdict->rank,
                     expar_status_string((expar_status)verdict->reason.status), verdict->reason.text);
}

expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source)
{
    if (!source) return error_set(EXPAR_ERR_NULL, "%s is NULL", what);
    size_t given;
    memcpy(&given, source, sizeof given);
    if (given < sizeof given || given > size)
        return error_set(EXPAR_ERR_ARGUMENT, "%s.struct_size is %zu; expected %zu to %zu (set it with the _INIT macro)",
                         what, given, sizeof given, size);
    memset(dest, 0, size);
    memcpy(dest, source, given);
    return EXPAR_OK;
}
