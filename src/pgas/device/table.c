/* SPDX-License-Identifier: Apache-2.0 */
/* The memory in a handle's state: this rank's heaps, and where each rank's copies are for this target. */
#include "pgas/device/parts.h"

#include <assert.h>

static_assert(EXPAR_DEV_MOST_REGISTERED == KINDS_MOST_REGISTERED, "kernels know all registered memory");

/* Words that kernels may read at the same time. */
static void set_word(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static expar_dev_entry *entries_of(const handle_slot *slot, int32_t kind)
{
    return (expar_dev_entry *)(void *)(slot->image + 1) + (size_t)kind * (size_t)slot->handle.ranks;
}

/* The kinds that the target loads and stores; EXPAR_DEV_… numbers them. */
static const transport_memory memories[EXPAR_DEV_KINDS] = {
    [EXPAR_DEV_HOST] = TRANSPORT_HOST, [EXPAR_DEV_DEVICE] = TRANSPORT_DEVICE, [EXPAR_DEV_PINNED] = TRANSPORT_PINNED};

static bool target_uses(const handle_slot *slot, int32_t kind)
{
    return kind == EXPAR_DEV_PINNED || kind == (slot->gpu < 0 ? EXPAR_DEV_HOST : EXPAR_DEV_DEVICE);
}

static void fill_entry(const sym *self, const handle_slot *slot, int32_t kind, int32_t rank)
{
    const kinds_place start = {.memory = memories[kind]};
    expar_dev_entry *entry = &entries_of(slot, kind)[rank];
    const uint64_t base = (uintptr_t)kinds_peer_at(self, &start, rank);
    const expar_dev_way way = ways_of_data(self, slot, memories[kind], rank, base != 0);
    const expar_dev_way atomics = ways_of_atomics(self, slot, memories[kind], rank, base != 0);
    __atomic_store_n(&entry->way, way, __ATOMIC_RELEASE);
    __atomic_store_n(&entry->atomics, atomics, __ATOMIC_RELEASE);
    set_word(&entry->base, base);
}

/* Returns whether kernels reach the rank's memory in more than one way. Commands carry what requests cannot. */
static bool is_mixed(const sym *self, const handle_slot *slot, int32_t rank)
{
    bool stores = false, sends = false, requests = false;
    for (int32_t kind = 0; kind < EXPAR_DEV_KINDS; kind++) {
        const expar_dev_entry *entry = &entries_of(slot, kind)[rank];
        stores = stores || entry->way == EXPAR_DEV_WAY_MAPPED || entry->atomics == EXPAR_DEV_WAY_MAPPED;
        sends = sends || entry->way == EXPAR_DEV_WAY_PROXY || entry->atomics == EXPAR_DEV_WAY_PROXY;
        requests = requests || entry->way == EXPAR_DEV_WAY_GDA || entry->atomics == EXPAR_DEV_WAY_GDA;
    }
    sends = sends || (requests && slot->rings);
    return stores + sends + requests > 1 || (requests && queues_have_no_order(self, slot));
}

static void fill_registered(const sym *self, handle_slot *slot)
{
    for (int32_t i = 0; i < KINDS_MOST_REGISTERED; i++) {
        kinds_range range;
        expar_dev_span *span = &slot->image->registered[i];
        const bool found = kinds_registered_range(self, i, &range);
        if (found) set_word(&span->begin, range.begin);
        set_word(&span->end, found ? range.end : 0);
    }
}

void table_fill(const expar_group *group, handle_slot *slot)
{
    const sym *self = group->sym;
    for (int32_t kind = 0; kind < EXPAR_DEV_KINDS; kind++) {
        kinds_range users;
        expar_dev_heap *heap = &slot->image->heaps[kind];
        if (!target_uses(slot, kind) || !kinds_users_range(self, memories[kind], &users)) continue;
        for (int32_t r = 0; r < self->size; r++)
            fill_entry(self, slot, kind, r);
        set_word(&heap->base, (uintptr_t)kinds_at(self, &(kinds_place){.memory = memories[kind]}));
        set_word(&heap->begin, users.begin);
        set_word(&heap->end, users.end);
    }
    bool mixed = false;
    for (int32_t r = 0; r < self->size; r++)
        mixed = mixed || is_mixed(self, slot, r);
    __atomic_store_n(&slot->image->is_mixed, mixed, __ATOMIC_RELEASE);
    if (slot->gpu >= 0) fill_registered(self, slot);
}

expar_status table_renew(const expar_group *group, handle_slot *slot)
{
    table_fill(group, slot);
    /* Kernels find new memory by `heaps` and `registered`, and then read its entries. */
    expar_status status = queues_fill(group->sym, slot);
    if (status == EXPAR_OK) status = slot_publish(slot, slot->image + 1, slot_entries_bytes(slot->handle.ranks));
    if (status == EXPAR_OK) status = slot_publish(slot, &slot->image->is_mixed, sizeof slot->image->is_mixed);
    if (status == EXPAR_OK) status = slot_publish(slot, slot->image->heaps, sizeof slot->image->heaps);
    return status == EXPAR_OK ? slot_publish(slot, slot->image->registered, sizeof slot->image->registered) : status;
}

void table_fill_sync(const expar_team *team, handle_slot *slot)
{
    expar_dev_state *state = slot->image;
    const uint64_t size = (uint64_t)team->group->size, row = size * (uint64_t)team->slot;
    state->sync_slot = team->slot; /* formed teams share one, so their barriers come in one order */
    if (slot->gpu < 0) {
        state->sync_kind = EXPAR_DEV_HOST;
        state->sync_offset = team->table->kernel_flags + row * sizeof(uint64_t);
        state->counts = (uintptr_t)(team->table->kernel_counts + row);
        return;
    }
    /* A row of flags for each slot, and after all of them a row of counts for each. */
    const uint64_t base = (uintptr_t)kinds_at(team->group->sym, &(kinds_place){.memory = TRANSPORT_DEVICE});
    state->sync_kind = EXPAR_DEV_DEVICE;
    state->sync_offset = row * sizeof(uint64_t);
    state->counts = base + (KINDS_SYNC_ROWS * size + row) * sizeof(uint64_t);
}
