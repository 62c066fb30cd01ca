/* SPDX-License-Identifier: Apache-2.0 */
/* Rings over the network. The slots lie in the receiver's memory, in K places for chunks; the sender fills a chunk in
 * a place of its own, and sends it as one put with its flag. Chunk j has place j mod K.
 *
 *   tail  a word a place, at the receiver: slots sent in all, this chunk included. The source sends it behind the
 *         chunk (release), the receiver loads it (acquire).
 *   head  a word a place, at the source: slots read in all, this chunk included. The receiver sends it (release) when
 *         it has read the chunk, the source loads it (acquire).
 *
 * A chunk goes into a place only when the head of the chunk before has come there, so no word has two flags under way,
 * and nothing is asked of the network's order but that a flag comes behind its own put. Words count slots of the
 * current call and carry its epoch. All chunks are full but a ring's last; heads that nobody will wait for are not
 * sent.
 *
 * A slot that is larger than a place goes in pieces, each of them a chunk, which words count then: it is filled, and
 * read, in memory of its own at both ends, and nobody waits there for a piece. */
#include "exec/cpu/nodes/rails.h"

#include <string.h>

static _Atomic uint64_t *rail_word_here(const cpu_executor *self, uint64_t offset)
{
    return rail_at(self, offset);
}

static int32_t place_of(const cpu_rails *rails, uint32_t chunk)
{
    return (int32_t)(chunk % (uint32_t)rails->shape.chunks);
}

static transport_batch *batch_of(const cpu_rails *rails, uint64_t ring, int32_t place)
{
    return &rails->batches[ring * (uint64_t)rails->shape.chunks + (uint64_t)place];
}

/* The slot that the ring's pieces are of: one that goes, or one that comes. */
static uint8_t *wide_slot(const cpu_rails *rails, uint64_t ring, bool comes)
{
    return rails->room.wide + (2 * ring + comes) * rails->room.wide_bytes;
}

/* Of a slot the piece before which so many are left. */
static uint64_t piece_at(const cpu_rails *rails, uint32_t left)
{
    return (uint64_t)(rails->pieces - left) * rails->shape.chunk_bytes;
}

static uint64_t piece_bytes(const cpu_rails *rails, uint64_t at)
{
    const uint64_t rest = rails->slot.bytes - at;
    return rest < rails->shape.chunk_bytes ? rest : rails->shape.chunk_bytes;
}

/* ---- source ------------------------------------------------------------------------------------------------------ */

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

/* Where the next chunk is filled. */
static uint8_t *staged_chunk(const cpu_executor *self, const rail_ring *ring, uint64_t number)
{
    const cpu_rails *rails = self->rails;
    const int32_t place = place_of(rails, ring->chunks_put);
    return rail_at(self, rails->space.staged + ep_rail_chunk(&rails->shape, number, place));
}

/* It has been filled with so many bytes, and so many slots whose end is in it. sent: slots, or pieces, that have been
   sent with it. */
static expar_status send_chunk(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint64_t bytes,
                               uint32_t slots, uint32_t sent)
{
    const cpu_rails *rails = self->rails;
    const ep_rails *shape = &rails->shape;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t here = ep_rail_ring(shape->nodes, channel, node);
    const uint64_t there = ep_rail_ring(shape->nodes, channel, rails->node);
    const uint8_t *staged = staged_chunk(self, ring, here);
    const int32_t place = place_of(rails, ring->chunks_put++);
    const link_data data = {.offset = self->buffer + rails->space.slots + ep_rail_chunk(shape, there, place),
                            .source = staged,
                            .bytes = bytes,
                            .rows = slots};
    const link_flag tail = {.offset = self->buffer + ep_rail_tail_at(&rails->space, there, place),
                            .word = ep_word(epoch, sent)};
    ring->sent[place] = sent;
    cpu_step(self);
    return rail_ended(self, link_put_flag(&rails->links[node], &data, &tail, batch_of(rails, here, place)));
}

bool rail_slot_go_on(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    const uint32_t before = ring->pieces_left;
    while (ring->pieces_left > 0 && place_is_free(self, epoch, ring, number, node, status)) {
        const uint64_t at = piece_at(rails, ring->pieces_left--), bytes = piece_bytes(rails, at);
        memcpy(staged_chunk(self, ring, number), wide_slot(rails, number, false) + at, (size_t)bytes);
        *status = send_chunk(self, epoch, channel, node, bytes, ring->pieces_left == 0, ring->chunks_put + 1);
        if (*status != EXPAR_OK) break;
    }
    return ring->pieces_left != before;
}

uint8_t *rail_slot_free(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status)
{
    const cpu_rails *rails = self->rails;
    const rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    cpu_step(self);
    if (rails->pieces > 1) return ring->pieces_left > 0 ? NULL : wide_slot(rails, number, false);
    if (ring->filled == 0 && !place_is_free(self, epoch, ring, number, node, status)) return NULL;
    return staged_chunk(self, ring, number) + ring->filled * rails->slot.bytes;
}

expar_status rail_slot_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t all)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    expar_status status = EXPAR_OK;
    ring->put++;
    if (rails->pieces > 1) {
        ring->pieces_left = rails->pieces;
        rail_slot_go_on(self, epoch, channel, node, &status);
        return status;
    }
    ring->filled++;
    if (ring->filled < rails->slots && ring->put < all) return EXPAR_OK;
    const uint32_t filled = ring->filled;
    ring->filled = 0;
    return send_chunk(self, epoch, channel, node, filled * rails->slot.bytes, filled, ring->put);
}

/* ---- receiver ---------------------------------------------------------------------------------------------------- */

/* Whether the next chunk has come, of slots or pieces: `taken` were read before it, `wanted` are with it. One that is
   not as long as it has to be is the peer's fault. */
static bool chunk_has_come(cpu_executor *self, uint32_t epoch, const rail_ring *ring, uint64_t number, int32_t node,
                           uint32_t taken, uint32_t wanted, expar_status *status)
{
    const cpu_rails *rails = self->rails;
    const uint64_t offset = ep_rail_tail_at(&rails->space, number, place_of(rails, ring->chunks_taken));
    const uint32_t sent =
        ep_word_value(atomic_load_explicit(rail_word_here(self, offset), memory_order_acquire), epoch);
    /* That of the chunk before it in this place, or none yet. */
    if (sent <= taken) return false;
    if (sent != wanted) {
        *status = error_set(EXPAR_ERR_PEER, "rank %d has sent %u slots where %u were to come",
                            ep_rail_of(&rails->shape, node, self->sym->rank), sent, wanted);
        return false;
    }
    sym_behold(self->sym);
    return true;
}

static const uint8_t *chunk_here(const cpu_executor *self, const rail_ring *ring, uint64_t number)
{
    const cpu_rails *rails = self->rails;
    const int32_t place = place_of(rails, ring->chunks_taken);
    return rail_at(self, rails->space.slots + ep_rail_chunk(&rails->shape, number, place));
}

/* It has been read. taken: slots, or pieces, with it; left: that are to come behind it, where those of the chunks that
   have places of their own need none of this one. */
static expar_status return_place(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t taken,
                                 uint64_t left)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const int32_t place = place_of(rails, ring->chunks_taken++);
    const uint64_t there = ep_rail_ring(rails->shape.nodes, channel, rails->node);
    if (left <= (uint64_t)(rails->shape.chunks - 1) * rails->slots) return EXPAR_OK;
    const link_flag head = {.offset = self->buffer + ep_rail_head_at(&rails->space, there, place),
                            .word = ep_word(epoch, taken)};
    cpu_step(self);
    return rail_ended(self, link_set_flag(&rails->links[node], &head, &self->rails->flags));
}

/* The oldest slot, once all of its pieces have come. */
static const uint8_t *collect_pieces(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t all,
                                     expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    uint8_t *slot = wide_slot(rails, number, true);
    while (ring->pieces_here < rails->pieces &&
           chunk_has_come(self, epoch, ring, number, node, ring->chunks_taken, ring->chunks_taken + 1, status)) {
        const uint64_t at = piece_at(rails, rails->pieces - ring->pieces_here++);
        const uint64_t behind = (uint64_t)all * rails->pieces - ring->chunks_taken - 1;
        memcpy(slot + at, chunk_here(self, ring, number), (size_t)piece_bytes(rails, at));
        *status = return_place(self, epoch, channel, node, ring->chunks_taken + 1, behind);
        if (*status != EXPAR_OK) return NULL;
    }
    return ring->pieces_here == rails->pieces ? slot : NULL;
}

const uint8_t *rail_slot_front(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t all,
                               expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    cpu_step(self);
    if (ring->taken == all) return NULL;
    if (rails->pieces > 1) return collect_pieces(self, epoch, channel, node, all, status);
    if (ring->taken == ring->come) {
        const uint32_t left = all - ring->taken, wanted = ring->taken + (left < rails->slots ? left : rails->slots);
        if (!chunk_has_come(self, epoch, ring, number, node, ring->taken, wanted, status)) return NULL;
        ring->come = wanted;
    }
    const uint32_t first = ring->chunks_taken * rails->slots;
    return chunk_here(self, ring, number) + (ring->taken - first) * rails->slot.bytes;
}

expar_status rail_slot_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint32_t all)
{
    rail_ring *ring = rail_ring_of(self, channel, node);
    ring->taken++;
    ring->pieces_here = 0;
    if (self->rails->pieces > 1 || ring->taken < ring->come) return EXPAR_OK;
    return return_place(self, epoch, channel, node, ring->taken, all - ring->taken);
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
