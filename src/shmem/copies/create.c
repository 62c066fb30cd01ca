/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending what reaches device memory. */
#include "base/knobs.h"
#include "shmem/copies/parts.h"

#include <stdlib.h>
#include <string.h>

/* Messages of all ranks together take this at most, unless the least slots take more. */
#define MOST_MESSAGE_BYTES ((uint64_t)16 << 20)
#define LEAST_SLOT_BYTES   ((uint64_t)4 << 10)

static copies *copies_of(const sym *self)
{
    return (copies *)atomic_load_explicit(&self->copies, memory_order_acquire);
}

static uint64_t find_slot_bytes(const sym *self)
{
    const uint64_t each = MOST_MESSAGE_BYTES / ((uint64_t)self->size * MAIL_AREAS * MAIL_SLOTS);
    const uint64_t most = (uint64_t)knob(KNOB_STAGE_SLOT_BYTES);
    const uint64_t bytes = (each < most ? each : most) / LEAST_SLOT_BYTES * LEAST_SLOT_BYTES;
    return bytes > LEAST_SLOT_BYTES ? bytes : LEAST_SLOT_BYTES;
}

static uint64_t block_bytes(const copies *self)
{
    return mail_slot(self, self->sym->size, MAIL_REQUESTS, 0);
}

uint64_t copies_message_bytes(const sym *self)
{
    return copies_of(self) ? block_bytes(copies_of(self)) : 0;
}

static void copies_free(copies *self)
{
    if (!self) return;
    for (int32_t r = 0; self->peers && r < self->sym->size; r++)
        pthread_mutex_destroy(&self->peers[r].lock);
    pthread_mutex_destroy(&self->owner_lock);
    free(self->peers);
    free(self->clients);
    free(self);
}

static expar_status copies_make(sym *symmetric, copies **out)
{
    const size_t size = (size_t)symmetric->size;
    int64_t stages = 0;
    copies *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory");
    self->base.ops = &transport_copies;
    self->sym = symmetric;
    self->slot_bytes = find_slot_bytes(symmetric);
    pthread_mutex_init(&self->owner_lock, NULL);
    self->peers = calloc(size, sizeof *self->peers);
    self->clients = calloc(size, sizeof *self->clients);
    for (int32_t r = 0; self->peers && r < symmetric->size; r++)
        pthread_mutex_init(&self->peers[r].lock, NULL);
    expar_status status = self->peers && self->clients ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory");
    if (status == EXPAR_OK) status = env_int("EXPAR_STAGE", 0, 1, &stages);
    self->stages = stages == 1;
    if (status == EXPAR_OK)
        *out = self;
    else
        copies_free(self);
    return status;
}

/* Takes the memory for messages, whose flags are 0 on all ranks when this returns. */
static expar_status copies_take_block(copies *self, const char *what, pinned_heap *pinned)
{
    self->pinned = pinned;
    expar_status status = pinned_heap_take(pinned, what, block_bytes(self), LEAST_SLOT_BYTES, &self->offset);
    if (status != EXPAR_OK) return status;
    self->block = pinned_heap_base(pinned, self->sym->rank) + self->offset;
    memset(self->block, 0, block_bytes(self));
    const boot_matter matter = {.what = what, .rejected = "could not serve its device memory"};
    return sym_agree(self->sym, &matter, EXPAR_OK);
}

/* All ranks have their memory. Each starts its thread, and nothing is sent before all have. */
static expar_status copies_start(copies *self, const char *what, device_heap *device, mem_copier *copier)
{
    self->device = device;
    self->copier = copier;
    const boot_matter matter = {.what = what, .rejected = "could not serve its device memory"};
    return sym_agree(self->sym, &matter, owner_start(self));
}

/* Sets what calls on device memory use. Other threads have no address of such memory yet. */
static void copies_publish(copies *self)
{
    sym *symmetric = self->sym;
    for (int32_t pe = 0; pe < symmetric->size; pe++) {
        const unsigned reach = transport_copies.reach(&self->base, pe, TRANSPORT_DEVICE);
        symmetric->ways[(size_t)TRANSPORT_DEVICE * (size_t)symmetric->size + (size_t)pe] = (transport_ways){
            .data = reach & TRANSPORT_PUT ? &self->base : NULL, .words = reach & TRANSPORT_ATOMIC ? &self->base : NULL};
    }
    atomic_store_explicit(&symmetric->copies, &self->base, memory_order_release);
}

/* After a failure on all ranks, whose text stays. */
static void undo(copies *self, const char *what, bool taken, expar_status status)
{
    error_kept kept;
    error_keep(&kept, status);
    owner_stop(self);
    if (taken) pinned_heap_give(self->pinned, what, self->offset, EXPAR_OK);
    copies_free(self);
    error_restore(&kept);
}

expar_status copies_create(sym *symmetric, const char *what, device_heap *device, pinned_heap *pinned,
                           mem_copier *copier)
{
    copies *self = NULL;
    const boot_matter matter = {.what = what, .rejected = "could not serve its device memory"};
    expar_status status = sym_agree(symmetric, &matter, copies_make(symmetric, &self));
    if (status != EXPAR_OK) {
        copies_free(self);
        return status;
    }
    status = copies_take_block(self, what, pinned);
    const bool taken = self->block != NULL;
    if (status == EXPAR_OK) status = copies_start(self, what, device, copier);
    if (status == EXPAR_OK)
        copies_publish(self);
    else
        undo(self, what, taken, status);
    return status;
}

/* Nothing may touch the batches any more. */
static void drop_messages(copies *self)
{
    for (int32_t r = 0; r < self->sym->size; r++) {
        transport *via = mail_carrier(self, r);
        for (int i = 0; i < MAIL_SLOTS && via && via->ops->drop; i++) {
            via->ops->drop(via, r, &self->peers[r].batches[i]);
            via->ops->drop(via, r, &self->clients[r].batches[i]);
        }
    }
}

void copies_destroy(sym *symmetric)
{
    copies *self = copies_of(symmetric);
    if (!self) return;
    owner_stop(self);
    drop_messages(self);
    atomic_store_explicit(&symmetric->copies, NULL, memory_order_release);
    copies_free(self);
}

expar_status copies_quiet(sym *symmetric)
{
    copies *self = copies_of(symmetric);
    return self ? self->base.ops->quiet(&self->base) : EXPAR_OK;
}
