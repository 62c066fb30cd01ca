/* SPDX-License-Identifier: Apache-2.0 */
/* The queue rings. For each (channel, source, receiver) there is one, in its receiver's memory.
 *
 *     tail  in the receiver's memory: rows put in.   The source stores it (release) after it has filled the slots, the
 *           receiver loads it (acquire).
 *     head  in the source's memory: rows taken out.  The receiver stores it (release) after it has read the slots, the
 *           source loads it (acquire).
 *
 * If a peer is on another node, the ring (channel, peer) carries rows that are forwarded inside this node, in the name
 * of ranks there. Peer m · P + l is local rank l of node m. The ring towards it goes to the rank l here, in the name of
 * this rank's rail on m. The ring from it comes from the rank l here, which puts in rows for, or from, its own rail on
 * m. So a receiver finds the rows of every source in the ring of that source, whichever rank has put them in.
 *
 * Both words count rows of the current call and carry its epoch; a word of another epoch counts as 0. Rings are empty
 * between calls. A source sends rows of a call only after its call before that has ended. Then every receiver has said
 * that it has taken everything out. */
#include "exec/cpu/normal/cpu.h"

#include <string.h>

void cpu_rings_reset(cpu_executor *self)
{
    memset(self->rings, 0, (size_t)self->shape.ranks * (size_t)self->shape.channels * sizeof *self->rings);
}

/* The number of rows that are announced, or slots that are returned, together: a quarter of the ring. */
static uint32_t chunk_rows(const cpu_executor *self)
{
    return self->slots < 4 ? 1 : self->slots / 4;
}

/* Returns the rank of this node at the other end of the ring, by the number under which it has this end. */
static int32_t end_of(const cpu_executor *self, int32_t peer)
{
    return self->nodes ? self->near_first + peer % self->near_ranks : peer;
}

static int32_t this_end_of(const cpu_executor *self, int32_t peer)
{
    const int32_t rank = self->sym->rank, each = self->near_ranks;
    return self->nodes ? peer - peer % each + rank % each : rank;
}

static _Atomic uint64_t *word_at(const cpu_executor *self, int32_t pe, uint64_t offset)
{
    return cpu_at(self, pe, offset);
}

/* A ring begins at the first slot of the layout for which the records were made. */
static void *slot_at(const cpu_executor *self, int32_t receiver, int32_t channel, int32_t source, uint32_t row)
{
    const uint64_t ring = ep_slot_at(&self->space, &self->shape, channel, source, 0);
    return cpu_at(self, receiver, ring + row % self->slots * self->slot.bytes);
}

static void publish(cpu_executor *self, cpu_ring *ring, uint32_t epoch, int32_t channel, int32_t peer)
{
    cpu_copy_fence();
    cpu_step(self);
    const int32_t pe = end_of(self, peer);
    const uint64_t tail = ep_tail_at(&self->space, self->shape.ranks, channel, this_end_of(self, peer));
    atomic_store_explicit(word_at(self, pe, tail), ep_word(epoch, ring->put), memory_order_release);
    ring->published = ring->put;
    cpu_step(self);
    sym_ring(self->sym, pe);
}

static void give_back(cpu_executor *self, cpu_ring *ring, uint32_t epoch, int32_t channel, int32_t peer)
{
    cpu_step(self);
    const int32_t pe = end_of(self, peer);
    const uint64_t head = ep_head_at(&self->space, self->shape.ranks, channel, this_end_of(self, peer));
    atomic_store_explicit(word_at(self, pe, head), ep_word(epoch, ring->taken), memory_order_release);
    ring->freed = ring->taken;
    cpu_step(self);
    sym_ring(self->sym, pe);
}

uint8_t *cpu_ring_slot_free(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer)
{
    cpu_ring *ring = cpu_ring_of(self, channel, peer);
    cpu_step(self);
    uint64_t head =
        atomic_load_explicit(word_at(self, self->sym->rank, ep_head_at(&self->space, self->shape.ranks, channel, peer)),
                             memory_order_acquire);
    if (ep_ring_free(head, epoch, ring->put, (int32_t)self->slots) == 0) return NULL;
    return slot_at(self, end_of(self, peer), channel, this_end_of(self, peer), ring->put);
}

void cpu_ring_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer)
{
    cpu_ring *ring = cpu_ring_of(self, channel, peer);
    if (++ring->put - ring->published >= chunk_rows(self)) publish(self, ring, epoch, channel, peer);
}

uint32_t cpu_ring_ready(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer)
{
    cpu_step(self);
    uint64_t tail =
        atomic_load_explicit(word_at(self, self->sym->rank, ep_tail_at(&self->space, self->shape.ranks, channel, peer)),
                             memory_order_acquire);
    return (uint32_t)ep_ring_ready(tail, epoch, cpu_ring_of(self, channel, peer)->taken, (int32_t)self->slots);
}

/* Checks that rows are taken after they were put, and that no more are under way than there are slots. */
static expar_status ring_check(const cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer)
{
    const int32_t ranks = self->shape.ranks, rank = self->sym->rank;
    const cpu_ring *ring = &self->rings[(int64_t)channel * ranks + peer];
    const uint64_t tail =
        atomic_load_explicit(word_at(self, rank, ep_tail_at(&self->space, ranks, channel, peer)), memory_order_relaxed);
    const uint64_t head =
        atomic_load_explicit(word_at(self, rank, ep_head_at(&self->space, ranks, channel, peer)), memory_order_relaxed);
    if (!ep_word_is_sound(tail, epoch, INT32_MAX) || ep_word_value(tail, epoch) - ring->taken > self->slots)
        return cpu_word_spoilt(end_of(self, peer), "a tail", tail, epoch);
    if (!ep_word_is_sound(head, epoch, INT32_MAX) || ring->put - ep_word_value(head, epoch) > self->slots)
        return cpu_word_spoilt(end_of(self, peer), "a head", head, epoch);
    return EXPAR_OK;
}

expar_status cpu_rings_check(const cpu_executor *self, uint32_t epoch, int32_t channel)
{
    expar_status status = EXPAR_OK;
    for (int32_t peer = 0; peer < self->shape.ranks && status == EXPAR_OK; peer++)
        status = ring_check(self, epoch, channel, peer);
    return status;
}

const uint8_t *cpu_ring_front(cpu_executor *self, int32_t channel, int32_t peer)
{
    uint32_t row = cpu_ring_of(self, channel, peer)->taken;
    return slot_at(self, self->sym->rank, channel, peer, row);
}

void cpu_ring_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer)
{
    cpu_ring *ring = cpu_ring_of(self, channel, peer);
    if (++ring->taken - ring->freed >= chunk_rows(self)) give_back(self, ring, epoch, channel, peer);
}

void cpu_ring_flush(cpu_executor *self, uint32_t epoch, int32_t channel)
{
    for (int32_t peer = 0; peer < self->shape.ranks; peer++) {
        cpu_ring *ring = cpu_ring_of(self, channel, peer);
        if (ring->put != ring->published) publish(self, ring, epoch, channel, peer);
        if (ring->taken != ring->freed) give_back(self, ring, epoch, channel, peer);
    }
}
