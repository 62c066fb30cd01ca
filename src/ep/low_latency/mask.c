/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: what a caller says and asks of them, for buffers that have some (config.masking). */
#include "ep/low_latency/ll.h"

/* All cleans of a buffer are one topic, behind all of its calls: of those ranks that come have made different numbers.
   */
#define CLEAN_NUMBER (UINT64_C(1) << 62)

static expar_status mask_begin(expar_ll *ll, const char *name)
{
    expar_status status = ll_begin(ll, name, true);
    if (status != EXPAR_OK || ll->shape.masking) return status;
    return ll_end(ll, error_set(EXPAR_ERR_STATE, "%s: config.masking is 0; expected a buffer with masks", name));
}

static expar_status mask_end(expar_ll *ll, const char *name, expar_status status)
{
    if (status != EXPAR_OK) error_prefix(status, "%s on rank %d", name, ll->rank);
    return ll_end(ll, status);
}

static expar_status check_mask(const expar_ll *ll, int32_t rank, int32_t masked)
{
    if (rank < 0 || rank >= ll->shape.ranks)
        return error_set(EXPAR_ERR_ARGUMENT, "rank is %d; expected 0 to %d", rank, ll->shape.ranks - 1);
    if (rank == ll->rank) return error_set(EXPAR_ERR_ARGUMENT, "rank is %d, this one; expected another", rank);
    if (masked != 0 && masked != 1) return error_set(EXPAR_ERR_ARGUMENT, "masked is %d; expected 0 or 1", masked);
    return EXPAR_OK;
}

expar_status expar_ll_mask_set(expar_ll *ll, int32_t rank, int32_t masked)
{
    static const char name[] = "expar_ll_mask_set";
    expar_status status = mask_begin(ll, name);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = check_mask(ll, rank, masked);
    if (status == EXPAR_OK) status = ll->exec->ops->mask_set(ll->exec, rank, masked != 0);
    return ll_ended(ll, mask_end(ll, name, status));
}

static expar_status check_query(const expar_ll *ll, const expar_tensor *status)
{
    if (!status) return error_set(EXPAR_ERR_NULL, "status is NULL");
    if (!tensor_given(status)) return error_set(EXPAR_ERR_NULL, "status is not given");
    return ll_check_vector(ll, "status", status, EXPAR_I32, ll->shape.ranks);
}

expar_status expar_ll_mask_query(expar_ll *ll, const expar_tensor *status, void *stream)
{
    static const char name[] = "expar_ll_mask_query";
    expar_status begun = mask_begin(ll, name);
    if (begun != EXPAR_OK) return ll_ended(ll, begun);
    expar_status checked = check_query(ll, status);
    if (checked == EXPAR_OK) checked = ll->exec->ops->mask_query(ll->exec, status->data, stream);
    return ll_ended(ll, mask_end(ll, name, checked));
}

expar_status expar_ll_mask_clean(expar_ll *ll)
{
    static const char name[] = "expar_ll_mask_clean";
    expar_status status = mask_begin(ll, name);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    const boot_topic topic = {.kind = BOOT_KIND_LOW_LATENCY, .object = ll->number, .number = CLEAN_NUMBER};
    ll_clean_step step = {.call = {.number = CLEAN_NUMBER}, .calls = ll->calls};
    boot_note_call(ll->group->boot, &topic, name);
    status = ll->exec->ops->mask_clean(ll->exec, &step);
    /* Others may have come to a decision with this rank, and await it in calls, whose numbers are lower. */
    if (status != EXPAR_OK) step.call.number = 0;
    status = ll_received(ll, name, &step.call, status);
    if (status == EXPAR_OK) {
        ll->calls = step.calls;
        /* Others may have given this rank up, which is in again. */
        boot_note_new(ll->group->boot, &topic);
    }
    return ll_ended(ll, ll_end(ll, status));
}
