/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: the calls that set, query and clean them, for buffers with config.masking. */
#include "ep/low_latency/ll.h"

#include <string.h>

/* All cleans of a buffer are one topic, with a number above those of all its calls: the ranks that come may have made
   different numbers of calls. */
#define CLEAN_NUMBER (UINT64_C(1) << 62)

static expar_status mask_begin(expar_ll *ll, const char *name)
{
    expar_status status = ll_take(ll, name, true);
    if (status != EXPAR_OK || ll->shape.masking) return status;
    return ep_buffer_give(&ll->base,
                          error_set(EXPAR_ERR_STATE, "%s: config.masking is 0; expected a buffer with masks", name));
}

static expar_status mask_end(expar_ll *ll, const char *name, expar_status status)
{
    if (status != EXPAR_OK) error_prefix(status, "%s on rank %d", name, ll->base.rank);
    return ep_buffer_give(&ll->base, status);
}

static expar_status check_mask(const expar_ll *ll, int32_t rank, int32_t masked)
{
    if (rank < 0 || rank >= ll->shape.ranks)
        return error_set(EXPAR_ERR_ARGUMENT, "rank is %d; expected 0 to %d", rank, ll->shape.ranks - 1);
    if (rank == ll->base.rank) return error_set(EXPAR_ERR_ARGUMENT, "rank is %d, this one; expected another", rank);
    if (masked != 0 && masked != 1) return error_set(EXPAR_ERR_ARGUMENT, "masked is %d; expected 0 or 1", masked);
    return EXPAR_OK;
}

expar_status expar_ll_mask_set(expar_ll *ll, int32_t rank, int32_t masked)
{
    static const char name[] = "expar_ll_mask_set";
    expar_status status = mask_begin(ll, name);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = check_mask(ll, rank, masked);
    if (status == EXPAR_OK) status = ll->base.exec->ll->mask_set(ll->base.exec, rank, masked != 0);
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
    if (checked == EXPAR_OK) checked = ll->base.exec->ll->mask_query(ll->base.exec, status->data, stream);
    return ll_ended(ll, mask_end(ll, name, checked));
}

static expar_status clean_with(expar_ll *ll, const char *name, ll_clean_step *step)
{
    executor *exec = ll->base.exec;
    const expar_status status = exec->ll->mask_clean(exec, step);
    /* Others may have come to a decision with this rank, and await it in calls, whose numbers are lower. */
    const ep_call clean = {.buffer = &ll->base, .name = name, .number = status == EXPAR_OK ? CLEAN_NUMBER : 0};
    const ep_rejection *own = &step->call.rejection;
    if (status != EXPAR_OK || own->status == EXPAR_OK) return ll_judge(&clean, status, &step->call.vote);
    return ep_call_prefix(&clean, error_set((expar_status)own->status, "%s", own->text));
}

/* With no call open, and handles of before that serve no more. */
static void begin_again(expar_ll *ll, uint64_t calls)
{
    ll->base.calls = calls;
    ll->era++;
    memset(ll->made, 0, sizeof ll->made);
    memset(ll->open, 0, sizeof ll->open);
}

expar_status expar_ll_mask_clean(expar_ll *ll)
{
    static const char name[] = "expar_ll_mask_clean";
    expar_status status = mask_begin(ll, name);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    boot *notes = ll->base.group->boot;
    const boot_topic topic = ep_buffer_topic(&ll->base, CLEAN_NUMBER);
    ll_clean_step step = {.call = {.number = CLEAN_NUMBER}, .calls = ll->base.calls};
    boot_note_call(notes, &topic, name);
    status = clean_with(ll, name, &step);
    if (status == EXPAR_OK) {
        begin_again(ll, step.calls);
        /* Others may have given this rank up, which is in again. */
        boot_note_new(notes, &topic);
    }
    return ll_ended(ll, ep_buffer_give(&ll->base, status));
}
