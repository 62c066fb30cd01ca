/* SPDX-License-Identifier: Apache-2.0 */
/* Rings over the network. The slots lie in the receiver's memory, in K places for chunks. The sender fills a chunk in a
 * place of its own, and sends it as one put that ends with its flag. Chunk j has place j mod K.
 *
 *     tail  a word of each place, at the receiver: chunks sent in all, this one included. The source sends it after the
 *           chunk (release), the receiver loads it (acquire).
 *     head  a word of each place, at the source: chunks read in all, this one included. The receiver sends it (release)
 *           when it has read the chunk, the source loads it (acquire).
 *
 * A chunk goes into a place only after the head of the chunk before has come there. So no word has two flags under way.
 * The network need only keep a flag after its own put. No rank confirms heads and tails: the completion flag after them
 * shows that all have arrived. Words count chunks of the current call and carry its epoch. All chunks are full except a
 * ring's last, so both sides know how long each one is. A chunk ends where its tail is, and is filled from its
 * beginning on. Heads for which no rank will wait are not sent.
 *
 * A word may come in pieces, its lowest byte first. Meanwhile it has the value of another call. Or its upper bytes are
 * those of a smaller count, and it is less than the final word. Both mean that it has not come.
 *
 * A slot that is larger than a place goes in pieces, each of them a chunk. It is filled, and read, in memory of its own
 * at both ends, where no rank waits for a piece. */
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

static link_batch *batch_of(const cpu_rails *rails, uint64_t ring, int32_t place)
{
    return &rails->batches[ring * (uint64_t)rails->shape.chunks + (uint64_t)place];
}

/* Returns the slot whose pieces the ring carries: the outgoing or the incoming one. */
static uint8_t *wide_slot(const cpu_rails *rails, uint64_t ring, bool comes)
{
    return rails->spare.wide + (2 * ring + comes) * rails->spare.wide_bytes;
}

/* Returns the offset of a slot's next piece, when so many are left. */
static uint64_t piece_at(const cpu_rails *rails, uint32_t left)
{
    return (uint64_t)(rails->pieces - left) * rails->shape.chunk_bytes;
}

static uint64_t piece_bytes(const cpu_rails *rails, uint64_t at)
{
    const uint64_t rest = rails->slot.bytes - at;
    return rest < rails->shape.chunk_bytes ? rest : rails->shape.chunk_bytes;
}

static uint64_t *work_of(const cpu_executor *self, int32_t channel, int32_t node, bool comes, uint32_t chunk)
{
    const cpu_rails *rails = self->rails;
    const uint64_t rings = (uint64_t)rails->shape.nodes * (uint64_t)self->shape.channels;
    const uint64_t ring = ep_rail_ring(rails->shape.nodes, channel, node) + comes * rings;
    return &rails->work[ring * (uint64_t)rails->shape.chunks + (uint64_t)place_of(rails, chunk)];
}

/* The lane has asked for all that a chunk needs. Some chunks are worth a command by themselves. */
static void note_work(const cpu_executor *self, int32_t channel, int32_t node, bool comes, uint32_t chunk)
{
    cpu_carrier *carrier = self->carrying;
    const int32_t lane = cpu_worker_of(self, channel);
    const bool holds = comes && self->rails->holds;
    *work_of(self, channel, node, comes, chunk) = holds ? UINT64_MAX : carrier->ops->asked(carrier, lane);
    carrier->ops->hand_over(carrier, lane, true);
}

/* Returns the slots of the next chunk, when so many are to go or come. */
static uint32_t slots_of_chunk(const cpu_rails *rails, uint32_t left)
{
    return left < rails->slots ? left : rails->slots;
}

/* ---- source ------------------------------------------------------------------------------------------------------ */

/* Returns the value of a word of this call if it is at least `wanted`; else less. A word that the rank of this rail on
   the node cannot have sent is an error. */
static uint32_t rail_word_come(const cpu_executor *self, const _Atomic uint64_t *word, uint32_t epoch, uint32_t wanted,
                               int32_t node, expar_status *status)
{
    const uint64_t peeked = link_peek(word);
    const uint32_t seen = ep_word_value(peeked, epoch);
    if (!ep_word_is_sound(peeked, epoch, INT32_MAX)) {
        *status =
            cpu_word_spoilt(ep_rail_of(&self->rails->shape, node, self->sym->rank), "a count of chunks", peeked, epoch);
        return 0;
    }
    if (seen < wanted) return seen;
    sym_behold(self->sym);
    return ep_word_value(atomic_load_explicit(word, memory_order_acquire), epoch);
}

/* Says whether the place of the next chunk is free: its last chunk was sent, the network no longer reads from it, and
   the receiver no longer from its own. A head for which no chunk was sent is the peer's fault. */
static bool place_is_free(cpu_executor *self, uint32_t epoch, const rail_ring *ring, uint64_t number, int32_t node,
                          expar_status *status)
{
    const cpu_rails *rails = self->rails;
    const uint32_t chunks = (uint32_t)rails->shape.chunks;
    const int32_t place = place_of(rails, ring->chunks_full);
    link_batch *batch = batch_of(rails, number, place);
    if (ring->chunks_full - ring->chunks_put == chunks || !link_is_quiet(batch)) return false;
    *status = rail_ended(self, link_quiet(self->sym, batch));
    if (*status != EXPAR_OK || ring->chunks_full < chunks) return *status == EXPAR_OK;
    const _Atomic uint64_t *head = rail_word_here(self, ep_rail_head_at(&rails->space, number, place));
    const uint32_t sent = ring->chunks_full - chunks + 1, read = rail_word_come(self, head, epoch, sent, node, status);
    if (read > sent)
        *status = error_set(EXPAR_ERR_PEER, "rank %d has read %u chunks of %u that it was sent",
                            ep_rail_of(&rails->shape, node, self->sym->rank), read, sent);
    return read == sent;
}

/* Returns where a chunk, which is filled here, ends. */
static ep_rail_end *staged_end(const cpu_executor *self, uint64_t number, uint32_t chunk)
{
    const cpu_rails *rails = self->rails;
    return rail_at(self, rails->space.staged + ep_rail_chunk_end(&rails->shape, number, place_of(rails, chunk)));
}

/* Returns the last bytes before the end of a chunk, which is being filled or has come. */
static uint8_t *bytes_before(const ep_rail_end *end, uint64_t bytes)
{
    return (uint8_t *)(uintptr_t)end - bytes;
}

/* Sends the next chunk. It has been filled with so many bytes, and has the ends of so many slots. */
static expar_status send_chunk(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint64_t bytes,
                               uint32_t slots)
{
    const cpu_rails *rails = self->rails;
    const ep_rails *shape = &rails->shape;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t here = ep_rail_ring(shape->nodes, channel, node);
    const uint64_t there = ep_rail_ring(shape->nodes, channel, rails->node);
    ep_rail_end *end = staged_end(self, here, ring->chunks_put);
    const int32_t place = place_of(rails, ring->chunks_put++);
    end->bytes = bytes;
    atomic_store_explicit(&end->tail, ep_word(epoch, ring->chunks_put), memory_order_relaxed);
    const link_data data = {.offset =
                                self->buffer + rails->space.places + ep_rail_chunk_end(shape, there, place) - bytes,
                            .source = bytes_before(end, bytes),
                            .bytes = bytes + sizeof *end,
                            .ordered = true,
                            .rows = slots};
    cpu_step(self);
    return rail_ended(self, link_put_flag(&rails->links[node], &data, NULL, batch_of(rails, here, place)));
}

static bool send_slot_pieces(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    const uint32_t before = ring->pieces_left;
    while (ring->pieces_left > 0 && place_is_free(self, epoch, ring, number, node, status)) {
        const uint64_t at = piece_at(rails, ring->pieces_left--), bytes = piece_bytes(rails, at);
        memcpy(bytes_before(staged_end(self, number, ring->chunks_full++), bytes), wide_slot(rails, number, false) + at,
               (size_t)bytes);
        *status = send_chunk(self, epoch, channel, node, bytes, ring->pieces_left == 0);
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
    const uint32_t slots = slots_of_chunk(rails, ring->goes - (ring->put - ring->filled));
    return bytes_before(staged_end(self, number, ring->chunks_full), (slots - ring->filled) * rails->slot.bytes);
}

expar_status rail_slot_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    expar_status status = EXPAR_OK;
    ring->put++;
    if (rails->pieces > 1) {
        ring->pieces_left = rails->pieces;
        send_slot_pieces(self, epoch, channel, node, &status);
        return status;
    }
    ring->filled++;
    if (ring->filled < rails->slots && ring->put < ring->goes) return EXPAR_OK;
    const uint32_t filled = ring->filled;
    ring->filled = 0;
    if (self->carrying) note_work(self, channel, node, false, ring->chunks_full);
    ring->chunks_full++;
    return self->carrying ? EXPAR_OK : send_chunk(self, epoch, channel, node, filled * rails->slot.bytes, filled);
}

/* ---- receiver ---------------------------------------------------------------------------------------------------- */

/* Returns where the next chunk ends. */
static const ep_rail_end *end_here(const cpu_executor *self, const rail_ring *ring, uint64_t number)
{
    const cpu_rails *rails = self->rails;
    const int32_t place = place_of(rails, ring->chunks_taken);
    return rail_at(self, rails->space.places + ep_rail_chunk_end(&rails->shape, number, place));
}

/* Says whether the chunk has come, with so many bytes. Another number is the peer's fault. */
static bool chunk_has_come(cpu_executor *self, uint32_t epoch, const rail_ring *ring, uint64_t number, int32_t node,
                           uint64_t bytes, expar_status *status)
{
    const ep_rail_end *end = end_here(self, ring, number);
    const uint32_t wanted = ring->chunks_taken + 1,
                   sent = rail_word_come(self, &end->tail, epoch, wanted, node, status);
    if (sent < wanted || (sent == wanted && end->bytes == bytes)) return sent == wanted;
    *status = error_set(EXPAR_ERR_PEER, "rank %d has sent chunk %u of %llu bytes where %u of %llu was to come",
                        ep_rail_of(&self->rails->shape, node, self->sym->rank), sent, (unsigned long long)end->bytes,
                        wanted, (unsigned long long)bytes);
    return false;
}

/* Returns the place of the oldest chunk that has been read. left: slots, or pieces, that come after it. If the chunks
   of these have places of their own, this one is not needed again. */
static expar_status return_place(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint64_t left)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const int32_t place = place_of(rails, ring->chunks_freed++);
    const uint64_t there = ep_rail_ring(rails->shape.nodes, channel, rails->node);
    if (left <= (uint64_t)(rails->shape.chunks - 1) * rails->slots) return EXPAR_OK;
    const uint64_t word = ep_word(epoch, ring->chunks_freed);
    const link_data head = {.offset = self->buffer + ep_rail_head_at(&rails->space, there, place),
                            .source = &word,
                            .bytes = sizeof word,
                            .copies = true,
                            .ordered = true};
    cpu_step(self);
    return rail_ended(self, link_put_flag(&rails->links[node], &head, NULL, &self->rails->flags));
}

/* Returns the oldest slot, once all of its pieces have come. */
static const uint8_t *collect_pieces(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node,
                                     expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    uint8_t *slot = wide_slot(rails, number, true);
    while (ring->pieces_here < rails->pieces) {
        const uint64_t at = piece_at(rails, rails->pieces - ring->pieces_here), bytes = piece_bytes(rails, at);
        if (!chunk_has_come(self, epoch, ring, number, node, bytes, status)) return NULL;
        memcpy(slot + at, bytes_before(end_here(self, ring, number), bytes), (size_t)bytes);
        ring->pieces_here++;
        const uint64_t after = (uint64_t)ring->comes * rails->pieces - ++ring->chunks_taken;
        *status = return_place(self, epoch, channel, node, after);
        if (*status != EXPAR_OK) return NULL;
    }
    return slot;
}

const uint8_t *rail_slot_front(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint64_t number = ep_rail_ring(rails->shape.nodes, channel, node);
    cpu_step(self);
    if (ring->taken == ring->comes) return NULL;
    if (rails->pieces > 1) return collect_pieces(self, epoch, channel, node, status);
    if (ring->taken == ring->come) {
        const uint32_t slots = slots_of_chunk(rails, ring->comes - ring->taken);
        if (!chunk_has_come(self, epoch, ring, number, node, slots * rails->slot.bytes, status)) return NULL;
        ring->come += slots;
    }
    return bytes_before(end_here(self, ring, number), (ring->come - ring->taken) * rails->slot.bytes);
}

expar_status rail_slot_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node)
{
    rail_ring *ring = rail_ring_of(self, channel, node);
    ring->taken++;
    ring->pieces_here = 0;
    if (self->rails->pieces > 1 || ring->taken < ring->come) return EXPAR_OK;
    if (self->carrying) note_work(self, channel, node, true, ring->chunks_taken);
    ring->chunks_taken++;
    return self->carrying ? EXPAR_OK : return_place(self, epoch, channel, node, ring->comes - ring->taken);
}

/* ---- with a carrier ---------------------------------------------------------------------------------------------- */

/* Returns how many slots the ring's chunks have up to one of them, itself included, of `all`. */
static uint32_t slots_up_to(const cpu_rails *rails, uint32_t chunk, uint32_t all)
{
    const uint64_t slots = ((uint64_t)chunk + 1) * rails->slots;
    return slots < all ? (uint32_t)slots : all;
}

static bool send_filled(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint64_t complete,
                        expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint32_t before = ring->chunks_put;
    while (*status == EXPAR_OK && ring->chunks_put < ring->chunks_full &&
           *work_of(self, channel, node, false, ring->chunks_put) <= complete) {
        const uint32_t slots = slots_up_to(rails, ring->chunks_put, ring->goes) - ring->chunks_put * rails->slots;
        *status = send_chunk(self, epoch, channel, node, slots * rails->slot.bytes, slots);
    }
    return ring->chunks_put != before;
}

static bool return_read(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, uint64_t complete,
                        expar_status *status)
{
    const cpu_rails *rails = self->rails;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint32_t before = ring->chunks_freed;
    while (*status == EXPAR_OK && ring->chunks_freed < ring->chunks_taken &&
           *work_of(self, channel, node, true, ring->chunks_freed) <= complete) {
        const uint32_t left = ring->comes - slots_up_to(rails, ring->chunks_freed, ring->comes);
        *status = return_place(self, epoch, channel, node, left);
    }
    return ring->chunks_freed != before;
}

bool rail_slot_go_on(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status)
{
    cpu_carrier *carrier = self->carrying;
    uint64_t complete;
    if (!carrier) return send_slot_pieces(self, epoch, channel, node, status);
    *status = carrier->ops->complete(carrier, cpu_worker_of(self, channel), &complete);
    const bool sent = send_filled(self, epoch, channel, node, complete, status);
    return return_read(self, epoch, channel, node, complete, status) || sent;
}

void rail_places_settle(const cpu_executor *self, int32_t channel)
{
    cpu_carrier *carrier = self->carrying;
    const uint64_t asked = carrier->ops->asked(carrier, cpu_worker_of(self, channel));
    for (int32_t i = 0; i < self->rails->shape.nodes - 1; i++) {
        const int32_t node = rail_node_in_turn(self->rails, i);
        const rail_ring *ring = rail_ring_of(self, channel, node);
        for (uint32_t chunk = ring->chunks_freed; chunk != ring->chunks_taken; chunk++) {
            uint64_t *work = work_of(self, channel, node, true, chunk);
            if (*work == UINT64_MAX) *work = asked;
        }
    }
}

bool rail_slots_fit(const cpu_executor *self, const ep_routing *routing, const ep_form *form, int64_t row_bytes,
                    bool back)
{
    const bool wide = back && form->options & EP_OPTION_EXACT_NODES;
    const int64_t size = (int64_t)expar_dtype_bytes((expar_dtype)form->dtype);
    const int64_t bytes = wide ? row_bytes / size * (int64_t)sizeof(float) : row_bytes;
    const ep_rail_slot slot =
        ep_rail_slot_of(back ? 0 : routing->rails->kept_words, bytes, back ? 0 : form->scales, form->topk);
    return slot.bytes <= self->rails->shape.chunk_bytes;
}

void rail_report(const cpu_executor *self, int32_t rings, int32_t worker, cpu_report *report)
{
    const cpu_rails *rails = self->rails;
    for (int32_t i = 0; i < rails->shape.nodes - 1; i++) {
        const int32_t node = rail_node_in_turn(rails, i), rank = ep_rail_of(&rails->shape, node, self->sym->rank);
        uint64_t came = 0, comes = 0, put = 0, goes = 0;
        for (int32_t c = worker; c < rings; c += self->active) {
            const rail_ring *ring = rail_ring_of(self, c, node);
            came += ring->taken;
            comes += ring->comes;
            put += ring->put;
            goes += ring->goes;
        }
        cpu_report_add(report, rank, rails->back ? "sums from" : "records from", came, comes);
        cpu_report_add(report, rank, rails->back ? "sums to" : "records to", put, goes);
    }
}
