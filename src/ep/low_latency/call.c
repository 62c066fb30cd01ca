/* SPDX-License-Identifier: Apache-2.0 */
/* What every low-latency call has: who is in, poison, refusals and verdicts. */
#include "ep/low_latency/ll.h"

/* ---- poison ------------------------------------------------------------------------------------------------------ */

expar_status ll_check_poison(expar_ll *ll)
{
    pthread_mutex_lock(&ll->poison_lock);
    expar_status status = error_restore(&ll->poison);
    pthread_mutex_unlock(&ll->poison_lock);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "the buffer is poisoned");
}

/* A call was broken off: whoever awaits this rank there, or in a later call, learns that it does not come. */
static expar_status ll_poison(expar_ll *ll, const ll_call *call, expar_status status)
{
    pthread_mutex_lock(&ll->poison_lock);
    const bool first = ll->poison.status == EXPAR_OK;
    if (first) error_keep(&ll->poison, status);
    pthread_mutex_unlock(&ll->poison_lock);
    const boot_topic topic = {.kind = BOOT_KIND_LOW_LATENCY, .object = ll->number, .number = call->number};
    if (first) boot_note_ended(ll->group->boot, &topic, status, expar_last_error());
    return status;
}

/* A call that has returned may have come to its end in vain since. */
static expar_status ll_check_earlier(expar_ll *ll)
{
    expar_status status = ll_check_poison(ll);
    if (status != EXPAR_OK) return status;
    status = ll->exec->ops->check(ll->exec, "an earlier call");
    if (status == EXPAR_OK) return EXPAR_OK;
    const ll_call earlier = {.number = 2 * ll->calls};
    ll_poison(ll, &earlier, status);
    return ll_check_poison(ll);
}

expar_status ll_prefix(const expar_ll *ll, const char *name, expar_status status)
{
    return error_prefix(status, "%s on rank %d", name, ll->rank);
}

/* ---- who is in --------------------------------------------------------------------------------------------------- */

expar_status ll_settle(expar_ll *ll, const char *name)
{
    expar_status status = ep_issuer_await(ll->issuer, EP_CALL_ENDED);
    if (status == EXPAR_OK) status = ll_check_earlier(ll);
    return status == EXPAR_OK ? EXPAR_OK : ll_prefix(ll, name, status);
}

expar_status ll_begin(expar_ll *ll, const char *name, bool alone)
{
    expar_status status = ll_enter(ll, name);
    if (status != EXPAR_OK) return status;
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong(&ll->busy, &idle, 1)) {
        ll_leave(ll);
        return error_set(EXPAR_ERR_BUSY, "%s: another call on this buffer is still running", name);
    }
    /* Whoever abandons the buffer now sees that it is busy, or has been seen. */
    if (atomic_load(&ll->ended))
        status = error_set(EXPAR_ERR_STATE, "%s: the buffer has been destroyed or abandoned", name);
    if (status == EXPAR_OK) status = alone ? ll_settle(ll, name) : ll_prefix(ll, name, ll_check_earlier(ll));
    return status == EXPAR_OK ? EXPAR_OK : ll_end(ll, status);
}

expar_status ll_begin_shaped(expar_ll *ll, const char *name)
{
    expar_status status = ll_begin(ll, name, false);
    if (status != EXPAR_OK || ll->shape.tokens > 0) return status;
    return ll_end(ll, error_set(EXPAR_ERR_STATE, "%s: the buffer has no shape; expected expar_ll_lay_out first", name));
}

expar_status ll_end(expar_ll *ll, expar_status status)
{
    atomic_store_explicit(&ll->busy, 0, memory_order_release);
    ll_leave(ll);
    return status;
}

uint64_t ll_number_call(expar_ll *ll, const char *name, ll_kind kind)
{
    const uint64_t number = 2 * ++ll->calls + (kind == LL_COMBINE);
    const boot_topic topic = {.kind = BOOT_KIND_LOW_LATENCY, .object = ll->number, .number = number};
    boot_note_call(ll->group->boot, &topic, name);
    boot_note_came(ll->group->boot, BOOT_KIND_LOW_LATENCY, ll->number);
    return number;
}

/* ---- how phases went --------------------------------------------------------------------------------------------- */

void ll_refuse(ll_call *call, expar_status status)
{
    if (status != EXPAR_OK) call->refusal = ep_refusal_of(status);
}

expar_status ll_sent(expar_ll *ll, const char *name, const ll_call *call, expar_status status, const error_kept *kept)
{
    if (status != EXPAR_OK) return ll_poison(ll, call, ll_prefix(ll, name, status));
    if (call->open) return EXPAR_OK;
    if (kept->status != EXPAR_OK) return ll_prefix(ll, name, error_restore(kept));
    return ll_prefix(ll, name, error_set((expar_status)call->refusal.status, "%s", call->refusal.text));
}

/* Names the first member in which two forms differ. */
static expar_status ll_form_mismatch(const expar_ll *ll, const ll_verdict *verdict)
{
    const ll_form *other = &verdict->form, *own = &verdict->own;
    const struct {
        const char *name;
        int64_t a, b;
    } members[] = {
        {"format", other->format, own->format},
        {"sum", other->sum, own->sum},
        {"topk_weights (0 absent, 1 given)", other->weights, own->weights},
        {"top-k", other->topk, own->topk},
        {"handle (number of the dispatch that made it)", other->route, own->route},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(members); i++)
        if (members[i].a != members[i].b)
            return error_set(EXPAR_ERR_MISMATCH, "%s is %lld on rank %d and %lld on rank %d; expected the same",
                             members[i].name, (long long)members[i].a, verdict->rank, (long long)members[i].b,
                             ll->rank);
    return error_set(EXPAR_ERR_MISMATCH, "dtype of x is %s on rank %d and %s on rank %d; expected the same",
                     expar_dtype_string((expar_dtype)other->dtype), verdict->rank,
                     expar_dtype_string((expar_dtype)own->dtype), ll->rank);
}

static expar_status ll_verdict_status(const expar_ll *ll, const ll_call *call)
{
    const ll_verdict *verdict = &call->verdict;
    if (call->refusal.status != EXPAR_OK)
        return error_set((expar_status)call->refusal.status, "%s", call->refusal.text);
    if (verdict->rank < 0) return EXPAR_OK;
    if (verdict->reason.status == EXPAR_ERR_MISMATCH && !verdict->reason.text[0]) return ll_form_mismatch(ll, verdict);
    /* What only kernels find wrong with this rank's own arguments. */
    if (verdict->rank == ll->rank) return error_set((expar_status)verdict->reason.status, "%s", verdict->reason.text);
    if (verdict->reason.status == EXPAR_ERR_PEER) return error_set(EXPAR_ERR_PEER, "%s", verdict->reason.text);
    return error_set(EXPAR_ERR_REMOTE, "rank %d refused its arguments: %s: %s", verdict->rank,
                     expar_status_string((expar_status)verdict->reason.status), verdict->reason.text);
}

expar_status ll_received(expar_ll *ll, const char *name, const ll_call *call, expar_status status)
{
    if (status != EXPAR_OK) return ll_poison(ll, call, ll_prefix(ll, name, status));
    status = ll_verdict_status(ll, call);
    if (status == EXPAR_OK) return EXPAR_OK;
    ll_prefix(ll, name, status);
    /* PEER: a rank has left the buffer for good. LIMIT: rows did not fit here, which no other rank knows; without
       poison the others would await this rank's combine. */
    return status == EXPAR_ERR_PEER || status == EXPAR_ERR_LIMIT ? ll_poison(ll, call, status) : status;
}

/* ---- calls that nobody asks for ---------------------------------------------------------------------------------- */

expar_status expar_ll_query(expar_ll *ll)
{
    static const char name[] = "expar_ll_query";
    expar_status status = ll_begin(ll, name, false);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = ll_tell_earlier(ll, name, 2 * ll->calls);
    return ll_ended(ll, ll_end(ll, status));
}
