/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of every low-latency call beside ep/call: send and receive, which the executor carries out, and their
 * results. */
#include "ep/low_latency/ll.h"

#include <stddef.h>
#include <string.h>

_Static_assert(offsetof(ll_dispatch_step, call) == 0 && offsetof(ll_combine_step, call) == 0, "steps begin with it");
_Static_assert(sizeof(ll_form) <= EP_FORM_BYTES, "two forms fit a vote");

void ll_op_hold(ep_call *base)
{
    const ll_op *op = (const ll_op *)base;
    if (op->handle) ll_handle_hold(op->handle);
    if (op->output) ep_output_hold(op->output);
}

void ll_op_drop(ep_call *base)
{
    const ll_op *op = (const ll_op *)base;
    expar_ll_handle_release(op->handle);
    expar_ep_output_release(op->output);
}

/* ---- how calls went ---------------------------------------------------------------------------------------------- */

/* Names the first member in which two forms differ: that rank's, and this one's. */
expar_status ll_mismatch(const ep_vote *vote, int32_t own_rank)
{
    ll_form other, own;
    memcpy(&other, vote->form, sizeof other);
    memcpy(&own, vote->other, sizeof own);
    const ep_agreed members[] = {
        {"format", &ep_names_format, other.format, own.format},
        {"sum", &ep_names_sum, other.sum, own.sum},
        {"topk_weights", &ep_names_given, other.weights, own.weights},
        {"top-k", NULL, other.topk, own.topk},
        {"handle (number of the dispatch that made it)", NULL, other.route, own.route},
    };
    const expar_status differs = ep_check_agreed(members, ARRAY_LENGTH(members), vote->rank, own_rank);
    if (differs != EXPAR_OK) return differs;
    return error_set(EXPAR_ERR_MISMATCH, "dtype of x is %s on rank %d and %s on rank %d; expected the same",
                     expar_dtype_string((expar_dtype)other.dtype), vote->rank,
                     expar_dtype_string((expar_dtype)own.dtype), own_rank);
}

expar_status ll_judge(const ep_call *call, expar_status status, const ep_vote *vote)
{
    if (status != EXPAR_OK) return ep_call_poison(call, ep_call_prefix(call, status));
    status = ep_call_vote(call, vote);
    /* PEER: a rank has left the buffer for good. LIMIT: rows did not fit here, which no other rank knows; without
       poison the others would await this rank's combine. */
    return status == EXPAR_ERR_PEER || status == EXPAR_ERR_LIMIT ? ep_call_poison(call, status) : status;
}

expar_status ll_tell_earlier(expar_ll *ll, const char *name, uint64_t number)
{
    executor *exec = ll->base.exec;
    const ep_call earlier = {.buffer = &ll->base, .name = "an earlier call", .number = number};
    ep_vote vote;
    int64_t dropped;
    if (!exec->ops->streams || !exec->ops->untold(exec, &vote, &dropped)) return EXPAR_OK;
    const expar_status status = ll_judge(&earlier, EXPAR_OK, &vote);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", name);
}

expar_status expar_ll_query(expar_ll *ll)
{
    static const char name[] = "expar_ll_query";
    expar_status status = ll_take(ll, name, false);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = ll_tell_earlier(ll, name, ll->base.kind->number(ll->base.calls));
    return ll_ended(ll, ep_buffer_give(&ll->base, status));
}

/* ---- the first half ---------------------------------------------------------------------------------------------- */

static void count_call(ll_op *op)
{
    op->half = (int32_t)(++ll_of(&op->base)->made[op->step.call.kind] % LL_SLOTS);
}

/* Tells a rejection by the message headers of the call alone. */
static expar_status tell_rejection(const ep_call *base, exec_call *call, ll_kind kind)
{
    executor *exec = base->buffer->exec;
    ll_op told = {.step.call = {.kind = kind, .number = base->number, .rejection = base->rejection}};
    expar_status status = exec->ll->prepare(exec, &told.step.call);
    if (status == EXPAR_OK) status = exec->ll->send(exec, call, &told.step.call);
    return status == EXPAR_OK ? EXPAR_OK : ll_judge(base, status, NULL);
}

static expar_status ll_reject(ep_call *base)
{
    ll_op *op = (ll_op *)base;
    count_call(op);
    return tell_rejection(base, &base->exec, op->step.call.kind);
}

/* Tells the rejection in the call's turn, since the other ranks wait for it. In a capture it only records it. */
static expar_status reject_in_turn(ll_op *op, expar_status rejected)
{
    ep_call *base = &op->base;
    ll_call *call = &op->step.call;
    error_kept own;
    error_keep(&own, ep_call_reject(base, rejected));
    mem_block_release(call->record);
    call->record = NULL;
    expar_status status = EXPAR_OK;
    if (base->exec.captured)
        ep_call_note_uncaptured(base, own.status);
    else
        status = tell_rejection(base, &base->exec, call->kind);
    return status == EXPAR_OK ? error_restore(&own) : status;
}

/* Checks on the host that the slot is free. Kernels find it out in any case. */
static expar_status check_open(const ll_op *op)
{
    const expar_ll *ll = ll_of(&op->base);
    const ll_kind kind = op->step.call.kind;
    if (ll->in_graphs || !ll->open[kind][op->half]) return EXPAR_OK;
    return error_set(EXPAR_ERR_STATE,
                     "the %s before the last is still open; expected its hook to be called first: two are open at most",
                     kind == LL_DISPATCH ? "dispatch" : "combine");
}

/* Returns why this rank takes no part in the call, now that its turn has come. If there is no reason, the call takes
   its place here. */
static expar_status find_why_not(ll_op *op)
{
    const ll_call *call = &op->step.call;
    if (call->rejection.status != EXPAR_OK)
        return error_set((expar_status)call->rejection.status, "%s", call->rejection.text);
    const expar_status status = check_open(op);
    return status == EXPAR_OK ? ep_call_follow(&op->base) : status;
}

/* In a capture, makes the graph keep what its kernels use, whatever becomes of the caller's references. */
static expar_status keep_in_graph(const ll_op *op)
{
    executor *exec = op->base.buffer->exec;
    if (!op->base.exec.captured) return EXPAR_OK;
    mem_block *const blocks[] = {op->handle ? op->handle->routing.block : NULL, op->output ? op->output->block : NULL};
    return exec->ops->keep(exec, &op->base.exec, blocks, ARRAY_LENGTH(blocks));
}

static expar_status ll_send(ep_call *base)
{
    ll_op *op = (ll_op *)base;
    ll_call *call = &op->step.call;
    executor *exec = base->buffer->exec;
    call->number = base->number;
    count_call(op);
    expar_status status = exec->ll->prepare(exec, call);
    if (status != EXPAR_OK) return ll_judge(base, status, NULL);
    status = find_why_not(op);
    if (status != EXPAR_OK && base->followed && !base->exec.placed) return ll_judge(base, status, NULL);
    if (status != EXPAR_OK) return reject_in_turn(op, status);
    status = keep_in_graph(op);
    if (status == EXPAR_OK) status = exec->ll->send(exec, &base->exec, call);
    if (status != EXPAR_OK) return ll_judge(base, status, NULL);
    if (!call->open) return ep_call_rejected(base, &call->rejection);
    ll_of(base)->open[call->kind][op->half] = base->hooked;
    return EXPAR_OK;
}

/* ---- the second -------------------------------------------------------------------------------------------------- */

static expar_status ll_receive(ep_call *base)
{
    ll_op *op = (ll_op *)base;
    ll_call *call = &op->step.call;
    expar_ll *ll = ll_of(base);
    executor *exec = base->buffer->exec;
    expar_status status = EXPAR_OK;
    if (base->hooked) {
        ll->open[call->kind][op->half] = false;
        status = keep_in_graph(op);
    }
    if (status == EXPAR_OK) status = exec->ll->receive(exec, &base->exec, call);
    /* Tokens that it went on without. */
    if (status == EXPAR_OK && call->rejection.status != EXPAR_OK) return ep_call_rejected(base, &call->rejection);
    status = ll_judge(base, status, &call->vote);
    if (status != EXPAR_OK) return status;
    if (call->kind == LL_DISPATCH) atomic_store_explicit(&op->handle->filled, true, memory_order_release);
    return base->exec.captured ? EXPAR_OK : ll_tell_earlier(ll, base->name, base->number);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static const ep_parts ll_parts = {.bytes = sizeof(ll_op),
                                  .send = ll_send,
                                  .receive = ll_receive,
                                  .reject = ll_reject,
                                  .judge = ll_judge,
                                  .hold = ll_op_hold,
                                  .drop = ll_op_drop};

expar_status ll_op_begin(ll_op *op, const char *name, ll_kind kind, expar_ll *ll)
{
    op->step.call.kind = kind;
    op->base.second = kind == LL_COMBINE;
    expar_status status = ll_check_known(ll, name);
    if (status == EXPAR_OK) status = ep_call_begin(&op->base, name, &ll_parts, &ll->base);
    if (status != EXPAR_OK) return status;
    status = ll_check_shaped(ll, name);
    op->base.withdrawn = status != EXPAR_OK;
    return status == EXPAR_OK ? EXPAR_OK : ep_call_end(&op->base, status);
}

expar_status ll_op_learn(ll_op *op, const ll_manner *manner, expar_status checked)
{
    ep_call *base = &op->base;
    error_kept kept;
    error_keep(&kept, checked);
    base->wait_event = manner->wait_event;
    base->hooked = manner->hook != 0;
    ep_call_set_async(base, manner->async_finish != 0, false);
    expar_status status = ep_call_learn(base, manner->stream, manner->num_sms, manner->async_finish != 0);
    if (base->exec.captured) ll_of(base)->in_graphs = true;
    if (kept.status != EXPAR_OK) return error_restore(&kept);
    return status == EXPAR_OK ? ep_call_check_events(base, manner->wait_event, base->by_itself) : status;
}

expar_status ll_op_promise(ll_op *op)
{
    ep_call *base = &op->base;
    expar_status status = base->hooked ? ll_hook_make(ll_of(base), &op->hook) : EXPAR_OK;
    return status == EXPAR_OK && base->by_itself ? ep_call_promise(base) : status;
}

expar_status ll_op_finish(ll_op *op, expar_status prepared)
{
    ep_call *base = &op->base;
    expar_status status = prepared == EXPAR_OK ? ep_call_finish(base) : ep_call_tell_rejection(base, prepared);
    if (status != EXPAR_OK)
        ep_call_break_promise(base);
    else if (op->hook)
        ll_hook_fill(op->hook, op);
    return status;
}

expar_status ll_op_end(ll_op *op, expar_status status)
{
    if (status != EXPAR_OK) {
        expar_ll_hook_release(op->hook);
        ll_op_drop(&op->base);
    }
    return ep_call_end(&op->base, status);
}
