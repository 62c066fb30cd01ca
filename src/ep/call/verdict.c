/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks have found out about a call, as an error's text: a rank's refusal, or ranks that called for something
 * else. */
#include "ep/call/call.h"

#include <string.h>

/* ---- of this call ------------------------------------------------------------------------------------------------ */

static const char *const kind_names[] = {"?", "expar_dispatch", "expar_dispatch with a handle", "expar_combine",
                                         "expar_ep_route"};

static int64_t exactness_of(const ep_form *form)
{
    if (form->options & EP_OPTION_ONE_ORDER) return EXPAR_NODES_ONE_ORDER;
    return form->options & EP_OPTION_EXACT_NODES ? EXPAR_NODES_EXACT : EXPAR_NODES_ROUNDED;
}

/* Names the first member in which two forms differ. */
static expar_status form_mismatch(int32_t rank, const ep_form *a, const ep_form *b)
{
    if (a->kind != b->kind)
        return error_set(EXPAR_ERR_MISMATCH, "rank %d called %s while rank 0 called %s", rank, kind_names[a->kind],
                         kind_names[b->kind]);
    const struct {
        const char *name;
        int64_t a, b;
    } members[] = {
        {"hidden size", a->hidden, b->hidden},
        {"top-k", a->topk, b->topk},
        {"number of experts", a->experts, b->experts},
        {"topk_weights (0 absent, 1 given)", a->weights, b->weights},
        {"handle (number of the buffer that it was made on)", a->route_buffer, b->route_buffer},
        {"handle (number of the call that made it)", a->route, b->route},
        {"scales a token", a->scales, b->scales},
        {"src_tokens (0 absent, 1 asked for)", a->options & EP_OPTION_SRC_TOKENS, b->options & EP_OPTION_SRC_TOKENS},
        {"global_experts", (a->options & EP_OPTION_GLOBAL_EXPERTS) != 0, (b->options & EP_OPTION_GLOBAL_EXPERTS) != 0},
        {"keep_slots", (a->options & EP_OPTION_KEEP_SLOTS) != 0, (b->options & EP_OPTION_KEEP_SLOTS) != 0},
        {"exact_across_nodes", exactness_of(a), exactness_of(b)},
        {"sum_order", a->sum_order, b->sum_order},
        {"weights_of", a->weights_of, b->weights_of},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(members); i++)
        if (members[i].a != members[i].b)
            return error_set(EXPAR_ERR_MISMATCH, "%s is %lld on rank %d and %lld on rank 0; expected the same",
                             members[i].name, (long long)members[i].a, rank, (long long)members[i].b);
    const struct {
        const char *name;
        int32_t a, b;
    } dtypes[] = {{"x", a->dtype, b->dtype},
                  {"x_scales", a->scale_dtype, b->scale_dtype},
                  {"topk_idx", a->idx_dtype, b->idx_dtype}};
    size_t i = 0;
    while (i + 1 < ARRAY_LENGTH(dtypes) && dtypes[i].a == dtypes[i].b)
        i++;
    return error_set(EXPAR_ERR_MISMATCH, "dtype of %s is %s on rank %d and %s on rank 0; expected the same",
                     dtypes[i].name, expar_dtype_string((expar_dtype)dtypes[i].a), rank,
                     expar_dtype_string((expar_dtype)dtypes[i].b));
}

expar_status ep_call_verdict(const ep_call *call, const ep_verdict *verdict)
{
    if (call->refusal.status != EXPAR_OK) return (expar_status)call->refusal.status;
    if (verdict->rank < 0) return EXPAR_OK;
    if (verdict->reason.status == EXPAR_ERR_MISMATCH && !verdict->reason.text[0])
        return ep_call_prefix(call, form_mismatch(verdict->rank, &verdict->form, &verdict->form0));
    /* What kernels find wrong with this rank's own arguments is known to them before the host. */
    if (verdict->rank == call->ep->group->rank)
        return ep_call_prefix(call, error_set((expar_status)verdict->reason.status, "%s", verdict->reason.text));
    if (verdict->reason.status == EXPAR_ERR_PEER)
        return ep_call_prefix(call, error_set(EXPAR_ERR_PEER, "%s", verdict->reason.text));
    return ep_call_prefix(call,
                          error_set(EXPAR_ERR_REMOTE, "rank %d refused its arguments: %s: %s", verdict->rank,
                                    expar_status_string((expar_status)verdict->reason.status), verdict->reason.text));
}

/* ---- of an earlier one, whose caller was not told ---------------------------------------------------------------- */

/* What this rank refused by itself it has returned. */
static bool is_told(const expar_ep *ep, const ep_verdict *verdict)
{
    return verdict->rank == ep->group->rank && verdict->reason.status == ep->own_refusal.status &&
           strcmp(verdict->reason.text, ep->own_refusal.text) == 0;
}

/* Of the threads that look one at a time. */
static bool untold_take(expar_ep *ep, ep_verdict *verdict, int64_t *dropped)
{
    pthread_mutex_lock(&ep->poison_lock);
    bool found = ep->exec->ops->untold(ep->exec, verdict, dropped) && !is_told(ep, verdict);
    pthread_mutex_unlock(&ep->poison_lock);
    return found;
}

void ep_call_tell_untold(const ep_call *call)
{
    const ep_call earlier = {.ep = call->ep, .name = "an earlier call, in a graph or with num_worst_tokens"};
    ep_verdict verdict;
    error_kept ended;
    int64_t dropped = 0;
    if (!untold_take(call->ep, &verdict, &dropped)) return;
    expar_status status = ep_call_verdict(&earlier, &verdict);
    if (status == EXPAR_OK)
        status = error_set(EXPAR_ERR_DROPPED, "%s: %lld rows were dropped", earlier.name, (long long)dropped);
    LOG(LOG_WARN, "%s", expar_last_error());
    error_keep(&ended, status);
    ep_unheard_note(call->ep->unheard, &ended);
}
