/* SPDX-License-Identifier: Apache-2.0 */
/* By what kernels reach each rank: mapped memory, requests to queues of a network device (queues.c), or commands to
 * rings of the proxy. Handles of one target share the rings. A command carries a tag, by which the handle is found to
 * which a failed one belongs. */
#include "pgas/device/parts.h"

#include <assert.h>
#include <stdio.h>

/* expar/device.h has these layouts and numbers once more, since kernels have no other header. */
#define SAME_PLACE(ours, theirs, member)                                                                               \
    static_assert(offsetof(ours, member) == offsetof(theirs, member), "kernels have the ring's layout")
static_assert(sizeof(expar_dev_command) == sizeof(proxy_command), "kernels have the ring's layout");
SAME_PLACE(expar_dev_command, proxy_command, local);
SAME_PLACE(expar_dev_command, proxy_command, bytes);
SAME_PLACE(expar_dev_command, proxy_command, operand);
SAME_PLACE(expar_dev_command, proxy_command, compare);
SAME_PLACE(expar_dev_command, proxy_command, signal);
SAME_PLACE(expar_dev_command, proxy_command, pe);
SAME_PLACE(expar_dev_command, proxy_command, kind);
SAME_PLACE(expar_dev_command, proxy_command, op);
SAME_PLACE(expar_dev_command, proxy_command, memory);
SAME_PLACE(expar_dev_command, proxy_command, signal_memory);
static_assert(sizeof(expar_dev_ring_slot) == sizeof(proxy_slot), "kernels have the ring's layout");
SAME_PLACE(expar_dev_ring_slot, proxy_slot, words);
static_assert(sizeof(expar_dev_ring) == sizeof(proxy_ring), "kernels have the ring's layout");
SAME_PLACE(expar_dev_ring, proxy_ring, consumed);
SAME_PLACE(expar_dev_ring, proxy_ring, done);
SAME_PLACE(expar_dev_ring, proxy_ring, moves);
SAME_PLACE(expar_dev_ring, proxy_ring, ended);
SAME_PLACE(expar_dev_ring, proxy_ring, failure);
SAME_PLACE(expar_dev_ring, proxy_ring, awaited);
static_assert(sizeof(expar_dev_port) == sizeof(proxy_port), "kernels have the port's layout");
SAME_PLACE(expar_dev_port, proxy_port, head);
SAME_PLACE(expar_dev_port, proxy_port, freed);
SAME_PLACE(expar_dev_port, proxy_port, ring);
SAME_PLACE(expar_dev_port, proxy_port, num_slots);
SAME_PLACE(expar_dev_port, proxy_port, done);
SAME_PLACE(expar_dev_port, proxy_port, failure);
SAME_PLACE(expar_dev_port, proxy_port, ended);
SAME_PLACE(expar_dev_port, proxy_port, done_to);
SAME_PLACE(expar_dev_port, proxy_port, size);
SAME_PLACE(expar_dev_port, proxy_port, awaited);
SAME_PLACE(expar_dev_port, proxy_port, watched_ns);
#define SAME_NUMBER(ours, theirs) static_assert((int)(ours) == (int)(theirs), "kernels have the proxy's numbers")
SAME_NUMBER(EXPAR_DEV_RING_PUT, PROXY_PUT);
SAME_NUMBER(EXPAR_DEV_RING_GET, PROXY_GET);
SAME_NUMBER(EXPAR_DEV_RING_PUT_SIGNAL, PROXY_PUT_SIGNAL);
SAME_NUMBER(EXPAR_DEV_RING_ATOMIC, PROXY_ATOMIC);
SAME_NUMBER(EXPAR_DEV_RING_FENCE, PROXY_FENCE);
SAME_NUMBER(EXPAR_DEV_RING_P, PROXY_P);
SAME_NUMBER(EXPAR_DEV_RING_FIND_LOCAL, PROXY_FIND_LOCAL);
SAME_NUMBER(EXPAR_DEV_FETCH, TRANSPORT_FETCH);
SAME_NUMBER(EXPAR_DEV_SET, TRANSPORT_SET);
SAME_NUMBER(EXPAR_DEV_SWAP, TRANSPORT_SWAP);
SAME_NUMBER(EXPAR_DEV_COMPARE_SWAP, TRANSPORT_COMPARE_SWAP);
SAME_NUMBER(EXPAR_DEV_ADD, TRANSPORT_ADD);
SAME_NUMBER(EXPAR_DEV_AND, TRANSPORT_AND);
SAME_NUMBER(EXPAR_DEV_OR, TRANSPORT_OR);
SAME_NUMBER(EXPAR_DEV_XOR, TRANSPORT_XOR);
SAME_NUMBER(0, TRANSPORT_HOST); /* expar_dev_memory_of */
SAME_NUMBER(1, TRANSPORT_PINNED);
SAME_NUMBER(2, TRANSPORT_DEVICE);
SAME_NUMBER(EXPAR_DEV_MOST_RINGS, SYM_MOST_RINGS);

/* ---- ways -------------------------------------------------------------------------------------------------------- */

static bool target_uses_host(const handle_slot *slot)
{
    return slot->gpu < 0;
}

/* Data and signals go by two transports at most. */
static bool has_proxy(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank)
{
    const transport_ways *ways = sym_ways(self, memory, rank);
    return slot->rings && ways->data && ways->words;
}

/* The first way of the settings that is there. */
static expar_dev_way choose(const handle_slot *slot, bool by_stores, bool by_queue, bool by_proxy)
{
    static const expar_dev_way handles_have[] = {[KERNEL_WAY_NONE] = EXPAR_DEV_WAY_NONE,
                                                 [KERNEL_WAY_MAPPED] = EXPAR_DEV_WAY_MAPPED,
                                                 [KERNEL_WAY_GDA] = EXPAR_DEV_WAY_GDA,
                                                 [KERNEL_WAY_PROXY] = EXPAR_DEV_WAY_PROXY};
    return handles_have[kernel_ways_choose(&slot->ways, by_stores, by_queue, by_proxy)];
}

/* Kernels reach memory of their own rank by stores, whatever the settings say. */
expar_dev_way ways_of_data(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank, bool mapped)
{
    if (rank == self->rank && mapped) return EXPAR_DEV_WAY_MAPPED;
    return choose(slot, mapped, queues_reach(self, slot, memory, rank, false), has_proxy(self, slot, memory, rank));
}

/* CPUs are atomic with each other where all ranks use loads and stores, and with transports that say so. All ranks have
   chosen alike for the owner's memory (shmem/reach.c). GPUs are atomic with CPUs if their link has atomics. */
static bool stores_are_atomic(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank)
{
    const transport_ways *ways = sym_ways(self, memory, rank);
    if (!target_uses_host(slot) && !kinds_has_gpu_atomics(self, memory, rank)) return false;
    return ways->words ? ways->words == ways->map : rank == self->rank;
}

/* Words of device memory are changed by kernels alone, or by the owners' CPUs alone. */
static expar_dev_way way_of_device_atomics(const sym *self, const handle_slot *slot, int32_t rank, bool mapped)
{
    const bool node = kinds_atomics_by(self) == KERNEL_ATOMICS_NODE;
    if (!node && !kinds_kernels_meet(self))
        return choose(slot, false, false, has_proxy(self, slot, TRANSPORT_DEVICE, rank));
    return mapped && kinds_has_gpu_atomics(self, TRANSPORT_DEVICE, rank) ? EXPAR_DEV_WAY_MAPPED : EXPAR_DEV_WAY_NONE;
}

expar_dev_way ways_of_atomics(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank,
                              bool mapped)
{
    if (memory == TRANSPORT_DEVICE) return way_of_device_atomics(self, slot, rank, mapped);
    const bool by_stores = mapped && stores_are_atomic(self, slot, memory, rank);
    const expar_dev_way way =
        choose(slot, by_stores, queues_reach(self, slot, memory, rank, true), has_proxy(self, slot, memory, rank));
    return way == EXPAR_DEV_WAY_NONE && by_stores && rank == self->rank ? EXPAR_DEV_WAY_MAPPED : way;
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

/* proxy_plan.failed: from the thread of a ring. */
static void command_failed(void *context, const proxy_command *command, expar_status status)
{
    const uint64_t tag = proxy_tag(command);
    const expar_dev_report lost = {.lost_status = (uint32_t)status,
                                   .lost_operation = (uint32_t)(tag >> 24 & 0xff),
                                   .lost_pe = command->pe,
                                   .lost_offset = command->offset};
    char why[HANDLE_TEXT];
    snprintf(why, sizeof why, "rank %d: %s", command->pe, expar_status_text(status));
    if (command->memory & PROXY_FIND_LOCAL)
        snprintf(why, sizeof why,
                 "the caller's memory at %#llx is not known to the host, which must reach it for rank %d: expected "
                 "symmetric memory, or memory of expar_register",
                 (unsigned long long)command->local, command->pe);
    const bool is_rank = command->pe >= 0 && command->pe < ((const sym *)context)->size;
    if (is_rank && sym_check_pe(context, command->pe, "a command of a kernel") != EXPAR_OK)
        snprintf(why, sizeof why, "%s", expar_last_error());
    slot_lose((uint32_t)(tag & 0xffffff), (uint32_t)(tag >> 32), &lost, why);
}

/* Returns whether kernels may need commands for some memory of the rank: where they do not store, or requests do not do
   it all. */
static bool memory_needs_commands(const sym *self, const handle_slot *slot, transport_memory memory, int32_t rank)
{
    const kinds_place start = {.memory = memory};
    const bool mapped = kinds_peer_at(self, &start, rank) != NULL;
    return ways_of_data(self, slot, memory, rank, mapped) != EXPAR_DEV_WAY_MAPPED ||
           ways_of_atomics(self, slot, memory, rank, mapped) != EXPAR_DEV_WAY_MAPPED;
}

/* Returns whether kernels need commands for that rank, for some memory that the target uses. A GPU with a handle has
   both kinds; the CPU's pinned memory is reached as its host memory. */
static bool slot_needs_commands(const sym *self, const handle_slot *slot, int32_t rank)
{
    if (slot->ways.list[0] == KERNEL_WAY_PROXY) return true;
    if (target_uses_host(slot)) return memory_needs_commands(self, slot, TRANSPORT_HOST, rank);
    return memory_needs_commands(self, slot, TRANSPORT_DEVICE, rank) ||
           memory_needs_commands(self, slot, TRANSPORT_PINNED, rank);
}

expar_status ways_open_rings(const expar_team *team, handle_slot *slot)
{
    sym *self = team->group->sym;
    expar_dev_state *state = slot->image;
    bool needed = false;
    state->results_at = (uintptr_t)slot->report->results;
    state->report = (uintptr_t)slot->handle.report;
    state->orphan_ns = slot->handle.orphan_ns;
    if (!kernel_ways_have(&slot->ways, KERNEL_WAY_PROXY)) return EXPAR_OK;
    for (int32_t pe = 0; pe < team->size; pe++)
        needed = needed || slot_needs_commands(self, slot, team->start + pe * team->stride);
    if (!needed) return EXPAR_OK;
    expar_status status = sym_rings_get_for_handles(self, slot->gpu, command_failed, &slot->rings);
    if (status != EXPAR_OK) return status;
    for (int32_t i = 0; i < slot->rings->count; i++)
        state->ports[i] = slot->rings->ports[i];
    state->rings = (uint32_t)slot->rings->count;
    return EXPAR_OK;
}
