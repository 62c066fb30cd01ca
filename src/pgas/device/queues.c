/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of a network device to which kernels write requests themselves. expar/device.h has a copy of the producer of
 * net/gda (scripts/device_gda.py), so both have the same layouts. */
#include "net/gda/gda.h"
#include "net/gda/view.h"
#include "pgas/device/parts.h"

#include <assert.h>
#include <stdio.h>

#define SAME_PLACE(type, member)                                                                                       \
    static_assert(offsetof(expar_dev_##type, member) == offsetof(type, member), "kernels have the layout of net/gda")
#define SAME_SIZE(type) static_assert(sizeof(expar_dev_##type) == sizeof(type), "kernels have the layout of net/gda")
SAME_SIZE(gda_queue);
SAME_PLACE(gda_queue, record);
SAME_PLACE(gda_queue, stop);
SAME_PLACE(gda_queue, results);
SAME_PLACE(gda_queue, depth);
SAME_PLACE(gda_queue, flushes);
SAME_PLACE(gda_queue, resv_head);
SAME_PLACE(gda_queue, cons_idx);
SAME_PLACE(gda_queue, result_tail);
SAME_PLACE(gda_queue, error);
SAME_SIZE(gda_keys);
SAME_PLACE(gda_keys, rkeys);
SAME_PLACE(gda_keys, num_chunks);
SAME_SIZE(gda_range);
SAME_SIZE(gda_known);
SAME_PLACE(gda_known, lkey);
SAME_SIZE(gda_view);
SAME_PLACE(gda_view, known);
SAME_PLACE(gda_view, reorders);
SAME_SIZE(gda_block);

bool queues_are_there(const sym *self, const handle_slot *slot)
{
    return kernel_ways_have(&slot->ways, KERNEL_WAY_GDA) && sym_queues(self, slot->gpu >= 0, NULL) != 0;
}

bool queues_reach(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank, bool words)
{
    return queues_are_there(self, slot) && sym_queues_reach(self, slot->gpu >= 0, memory, rank, words);
}

bool queues_have_no_order(const sym *self, const handle_slot *slot)
{
    bool ordered = true;
    sym_queues(self, slot->gpu >= 0, &ordered);
    return !ordered;
}

expar_status queues_fill(const sym *self, handle_slot *slot)
{
    expar_dev_state *state = slot->image;
    if (state->queues || !queues_are_there(self, slot)) return EXPAR_OK;
    state->used = slot->state + sizeof *state + slot_entries_bytes(slot->handle.ranks);
    __atomic_store_n(&state->queues, sym_queues(self, slot->gpu >= 0, NULL), __ATOMIC_RELEASE);
    expar_status status = slot_publish(slot, &state->used, sizeof state->used);
    return status == EXPAR_OK ? slot_publish(slot, &state->queues, sizeof state->queues) : status;
}

void queues_say_failure(const handle_slot *slot, char *text, size_t text_bytes)
{
    const expar_dev_report *report = slot->report;
    const int32_t rank = slot->handle.start + report->pe * slot->handle.stride;
    if (report->failure == EXPAR_DEV_UNKNOWN_LOCAL)
        snprintf(
            text, text_bytes,
            "the caller's memory at %#llx is not known to the network device, and no command may carry it: expected "
            "symmetric memory of the same kind, or proxy in EXPAR_DEVICE_TRANSPORTS",
            (unsigned long long)report->seen);
    else if (slot->symmetric && sym_check_pe(slot->symmetric, rank, "a request of a kernel") != EXPAR_OK)
        snprintf(text, text_bytes, "%s", expar_last_error());
    else
        gda_failure_text(report->failure, rank, text, text_bytes);
}
