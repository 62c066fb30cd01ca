/* SPDX-License-Identifier: Apache-2.0 */
/* Rings over the network. The slots lie in the receiver's memory, in K places for chunks; the sender fills a chunk in
 * a place of its own, and sends it as one put with its flag. Chunk j has place j mod K.
 *
 *   tail  a word a place, at the receiver: slots sent in all, this chunk included. The source sends it behind the
 * chunk         (release), the receiver loads it (acquire).
 *   head  a word a place, at the source: slots read in all, this chunk included. The receiver sends it (release) when
 *         it has read the chunk, the source loads it (acquire).
 *
 * A chunk goes into a place only when the head of the chunk before has come there, so no word has two flags under way,
 * and nothing is asked of the network's order but that a flag comes behind its own put. Words count slots of the
 * current call and carry its epoch. All chunks are full but a ring's last; heads that nobody will wait for are not
 * sent. */
#include "exec/cpu/nodes/rails.h"

static _Atomic uint64_t *rail_word_here(const cpu_executor *self, uint64_t offset)
{
    return cpu_at(self, self->sym->rank, offset);
}

static int32_t place_of(const cpu_rails *rails, uint32_t chunk)
{
    return (int32_t)(chunk % (uint32_t)rails->shape.chunks);
}

static transport_batch *batch_of(const cpu_rails *rails, uint64_t ring, int32_t place)
{
    return &rails->batches[ring * (uint64_t)rails->shape.chunks + (uint64_t)place];
}

/* The network no longer reads from the place, and the receiver no longer from its own. A head that no chunk was sent
   for is the peer's fault. */
static bool place_is_free(cpu_executor *self, uint32_t epoch, const rail_ring *ring, uint64_t number, int32_t node,
                          expar_status *status)
{
    const cpu_rails *rails = self->rails;
    const int32_t place = place_of(rails, ring->chunks_put);
    transport_batch *batch = batch_of(rails, number, place);
    if (!link_is_quiet(batch)) return false;
    *status = rail_ended(self, link_quiet(self->sym, batch));
    if (*status != EXPAR_OK || ring->chunks_put < (uint32_t)rails->shape.chunks) return *status == EXPAR_OK;
    const uint64_t head =
        atomic_load_explicit(rail_word_here(self, ep_rail_head_at(&rails->space, number, place)), memory_order_acquire);
    const uint32_t read = ep_word_value(head, epoch);
    if (read > ring->sent[place])
        *status = error_set(EXPAR_ERR_PEER, "rank %d has read %u slots of %u that it was sent",
                            ep_rail_of(&rails->shape, node, self->sym->rank), read, ring->sent[place]);
    return read == ring->sent[place];
}

uint8_t *rail_slot_free(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status)
{
    const cpu_rails *rails = self->rails;
    const rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    const int32_t place = place_of(rails, ring->chunks_put);
    cpu_step(self);
    if (ring->filled == 0 && !place_is_free(self, epoch, ring, number, node, status)) return NULL;
    uint8_t *chunk = cpu_at(self, self->sym->rank, rails->space.staged + ep_rail_chunk(&rails->shape, number, place));
    return chunk + ring->filled * rails->slot.bytes;
}

static expar_status send_chunk(cpu_executor *self, uint32_t epoch, rail_ring *ring, int32_t channel, int32_t node)
{
    const cpu_rails *rails = self->rails;
    const ep_rails *shape = &rails->shape;
    const uint64_t here = ep_rail_ring(shape->nodes, channel, node);
    const uint64_t there = ep_rail_ring(shape->nodes, channel, rails->node);
    const int32_t place = place_of(rails, ring->chunks_put++);
    const link_data data = {.offset = self->buffer + rails->space.slots + ep_rail_chunk(shape, there, place),
                            .source =
                                cpu_at(self, self->sym->rank, rails->space.staged + ep_rail_chunk(shape, here, place)),
                            .bytes = ring->filled * rails->slot.bytes};
    const link_flag tail = {.offset = self->buffer + ep_rail_tail_at(&rails->space, there, place),
                            .word = ep_word(epoch, ring->put)};
    ring->sent[place] = ring->put;
    ring->filled = 0;
    cpu_step(self);
    return rail_ended(self, link_put_flag(&rails->links[node], &data, &tail, batch_of(rails, here, place)));
}

expar_status rail_slot_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t all)
{
    rail_ring *ring = rail_ring_of(self, channel, node);
    ring->put++;
    ring->filled++;
    const bool leaves = ring->filled == self->rails->slots || ring->put == all;
    return leaves ? send_chunk(self, epoch, ring, channel, node) : EXPAR_OK;
}

/* Whether the next chunk has come. One that is not as long as it has to be is the peer's fault. */
static bool chunk_has_come(cpu_executor *self, uint32_t epoch, rail_ring *ring, uint64_t number, int32_t node,
                           uint32_t all, expar_status *status)
{
    const cpu_rails *rails = self->rails;
    const uint32_t left = all - ring->taken, wanted = ring->taken + (left < rails->slots ? left : rails->slots);
    const uint64_t offset = ep_rail_tail_at(&rails->space, number, place_of(rails, ring->chunks_taken));
    const uint32_t sent =
        ep_word_value(atomic_load_explicit(rail_word_here(self, offset), memory_order_acquire), epoch);
    /* That of the chunk before it in this place, or none yet. */
    if (sent <= ring->taken) return false;
    if (sent != wanted) {
        *status = error_set(EXPAR_ERR_PEER, "rank %d has sent %u slots where %u of %u were to come",
                            ep_rail_of(&rails->shape, node, self->sym->rank), sent, wanted, all);
        return false;
    }
    sym_behold(self->sym);
    ring->come = sent;
    return true;
}

const uint8_t *rail_slot_front(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t all,
                               expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    cpu_step(self);
    if (ring->taken == all) return NULL;
    if (ring->taken == ring->come && !chunk_has_come(self, epoch, ring, number, node, all, status)) return NULL;
    const int32_t place = place_of(rails, ring->chunks_taken);
    const uint32_t first = ring->chunks_taken * rails->slots;
    const uint8_t *chunk =
        cpu_at(self, self->sym->rank, rails->space.slots + ep_rail_chunk(&rails->shape, number, place));
    return chunk + (ring->taken - first) * rails->slot.bytes;
}

expar_status rail_slot_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t all)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    if (++ring->taken < ring->come) return EXPAR_OK;
    const int32_t place = place_of(rails, ring->chunks_taken++);
    const uint64_t there = ep_rail_ring(rails->shape.nodes, channel, rails->node);
    /* The chunks behind it have places of their own. */
    if (all - ring->taken <= (uint64_t)(rails->shape.chunks - 1) * rails->slots) return EXPAR_OK;
    const link_flag head = {.offset = self->buffer + ep_rail_head_at(&rails->space, there, place),
                            .word = ep_word(epoch, ring->taken)};
    cpu_step(self);
    return rail_ended(self, link_set_flag(&rails->links[node], &head, &self->rails->flags));
}

/* In a combine what goes and what comes change places. */
void rail_report(const cpu_executor *self, const ep_routing *routing, int32_t joined, bool sums, int32_t worker,
                 cpu_report *report)
{
    const cpu_rails *rails = self->rails;
    const int32_t rings = ep_rings_of(routing->channels, joined);
    for (int32_t i = 0; i < rails->shape.nodes - 1; i++) {
        const int32_t node = rail_node_in_turn(rails, i), rank = ep_rail_of(&rails->shape, node, self->sym->rank);
        const int32_t *out = rail_records_out(routing, node), *in = rail_records_in(routing, node);
        uint64_t came = 0, expected = 0, put = 0, all = 0;
        for (int32_t c = worker; c < rings; c += self->active) {
            came += rail_ring_of(self, c, node)->taken;
            expected += (uint64_t)ep_rows_of_ring(sums ? out : in, routing->channels, joined, c);
            put += rail_ring_of(self, c, node)->put;
            all += (uint64_t)ep_rows_of_ring(sums ? in : out, routing->channels, joined, c);
        }
        cpu_report_add(report, rank, sums ? "sums from" : "records from", came, expected);
        cpu_report_add(report, rank, sums ? "sums to" : "records to", put, all);
    }
}
