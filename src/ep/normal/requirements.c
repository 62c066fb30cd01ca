/* SPDX-License-Identifier: Apache-2.0 */
/* The requirements of a normal-mode call: its form, on which all ranks agree, and for which records and rings must be
 * large enough. */
#include "ep/normal/normal.h"

#include <string.h>

_Static_assert(sizeof(ep_form) <= EP_FORM_BYTES, "two forms fit a vote");

expar_status normal_begin(ep_call *call, const char *name, const ep_parts *parts, expar_ep *ep)
{
    expar_status status = ep_check_outside(name);
    if (status == EXPAR_OK) status = ep_check_known(ep, name);
    return status == EXPAR_OK ? ep_call_begin(call, name, parts, &ep->base) : status;
}

/* ---- ranks that agree -------------------------------------------------------------------------------------------- */

static const char *const kind_names[] = {"?", "expar_ep_dispatch", "expar_ep_dispatch with a handle",
                                         "expar_ep_combine", "expar_ep_route"};

static bool form_has(const ep_form *form, int32_t option)
{
    return (form->options & option) != 0;
}

static int64_t exactness_of(const ep_form *form)
{
    if (form->options & EP_OPTION_ONE_ORDER) return EXPAR_EP_NODES_SUM_ONE_ORDER;
    if (form->options & EP_OPTION_OWN_FIRST) return EXPAR_EP_NODES_SUM_OWN_FIRST;
    return form->options & EP_OPTION_EXACT_NODES ? EXPAR_EP_NODES_SUM_EXACT : EXPAR_EP_NODES_SUM_ROUNDED;
}

/* From rank 0's. */
expar_status normal_mismatch(const ep_vote *vote, int32_t own)
{
    const int32_t rank = vote->rank;
    ep_form form, first;
    const ep_form *a = &form, *b = &first;
    (void)own;
    memcpy(&form, vote->form, sizeof form);
    memcpy(&first, vote->other, sizeof first);
    if (a->kind != b->kind)
        return error_set(EXPAR_ERR_MISMATCH, "rank %d called %s while rank 0 called %s", rank, kind_names[a->kind],
                         kind_names[b->kind]);
    const ep_agreed members[] = {
        {"hidden size", NULL, a->hidden, b->hidden},
        {"top-k", NULL, a->topk, b->topk},
        {"number of experts", NULL, a->experts, b->experts},
        {"topk_weights", &ep_names_given, a->weights, b->weights},
        {"handle (number of the buffer that it was made on)", NULL, a->route_buffer, b->route_buffer},
        {"handle (number of the call that made it)", NULL, a->route, b->route},
        {"scales a token", NULL, a->scales, b->scales},
        {"src_tokens", NULL, form_has(a, EP_OPTION_SRC_TOKENS), form_has(b, EP_OPTION_SRC_TOKENS)},
        {"global_experts", NULL, form_has(a, EP_OPTION_GLOBAL_EXPERTS), form_has(b, EP_OPTION_GLOBAL_EXPERTS)},
        {"keep_slots", NULL, form_has(a, EP_OPTION_KEEP_SLOTS), form_has(b, EP_OPTION_KEEP_SLOTS)},
        {"nodes_sum", &ep_names_nodes_sum, exactness_of(a), exactness_of(b)},
        {"sum_order", &ep_names_sum_order, a->sum_order, b->sum_order},
        {"weights_of", &ep_names_weights_of, a->weights_of, b->weights_of},
    };
    const expar_status differs = ep_check_agreed(members, ARRAY_LENGTH(members), rank, 0);
    if (differs != EXPAR_OK) return differs;
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

expar_status normal_reject(ep_call *call)
{
    executor *exec = call->buffer->exec;
    ep_notify_step step = {
        .epoch = normal_epoch(call), .form = ((normal_call *)call)->brings.form, .rejection = call->rejection};
    return ep_call_step(call, exec->normal->notify(exec, &call->exec, &step));
}

/* ---- records and rings ------------------------------------------------------------------------------------------- */

static bool fits_now(const ep_call *call, const ep_requirements *brings)
{
    executor *exec = call->buffer->exec;
    return exec->normal->fits(exec, &brings->form, brings->row_bytes);
}

/* A call makes records larger before it is sent. A call of a graph cannot do that. Calls before its capture have ended,
   so no thread opens one of them while the graph runs. */
expar_status normal_fits(ep_call *call, const ep_requirements *brings, bool *fits)
{
    const bool recorded = call->leaves && call->exec.captured;
    *fits = true;
    if (call->leaves && !recorded) return EXPAR_OK;
    expar_status status = ep_call_await(call, recorded ? EP_CALL_ENDED : call->after);
    call->told = status != EXPAR_OK;
    if (status == EXPAR_OK) *fits = fits_now(call, brings);
    return status;
}

static expar_status grow(ep_call *call, const ep_grow_step *step)
{
    executor *exec = call->buffer->exec;
    ep_vote vote = {.rank = -1};
    expar_status status = ep_call_await(call, EP_CALL_ENDED);
    if (status == EXPAR_OK) status = ep_call_check_poison(call);
    if (status == EXPAR_OK) status = ep_call_step(call, exec->normal->grow(exec, &call->exec, step, &vote));
    return status == EXPAR_OK ? ep_call_vote(call, &vote) : status;
}

expar_status normal_grow(ep_call *call, const ep_requirements *brings, ep_grow_step step)
{
    ep_buffer *buffer = call->buffer;
    step.epoch = normal_epoch(call);
    step.form = brings->form;
    step.row_bytes = brings->row_bytes;
    expar_status status = grow(call, &step);
    call->told = status != EXPAR_OK;
    if (call->told) return status;
    atomic_fetch_add_explicit(&ep_of(call)->growths, 1, memory_order_release);
    if (buffer->exec->normal->grows_apart) call->number = buffer->kind->number(++buffer->calls);
    return EXPAR_OK;
}

expar_status normal_make_space(ep_call *call)
{
    const ep_requirements *brings = &((normal_call *)call)->brings;
    const ep_grow_step step = {.tokens = -1};
    if (!call->leaves || fits_now(call, brings)) return EXPAR_OK;
    return normal_grow(call, brings, step);
}
