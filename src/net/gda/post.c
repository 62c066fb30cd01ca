/* SPDX-License-Identifier: Apache-2.0 */
/* Operations become requests of the queue to their PE. Small data travels inside a request. Other memory of the caller
 * that lies outside the heap is registered for the operation. A device that reaches only memory with a descriptor gets
 * a copy of it instead, in pieces. */
#include "net/gda/parts.h"
#include "net/gda/words.h"

#include <assert.h>
#include <string.h>

#define SAME_OP(name) static_assert((int)TRANSPORT_##name == (int)GDA_OP_##name, "both have the same numbers")
SAME_OP(FETCH);
SAME_OP(SET);
SAME_OP(SWAP);
SAME_OP(COMPARE_SWAP);
SAME_OP(ADD);
SAME_OP(AND);
SAME_OP(OR);
SAME_OP(XOR);

/* A wait until the operations that a lane has begun so far have ended. */
typedef struct gda_end {
    const gda_lane *lane;
    uint64_t begun;
} gda_end;

/* ---- free space -------------------------------------------------------------------------------------------------- */

/* A submission needs these: a lane, and memory for a copy of so many bytes, or 0. */
typedef struct gda_need {
    gda_lane *lane;
    uint64_t copied_bytes;
} gda_need;

/* Whether a submission of `most` blocks and one flight more can be posted without a wait. */
static bool lane_has_space(gda *g, const void *of)
{
    const gda_need *need = of;
    gda_lane *lane = need->lane;
    const uint64_t head = gda_load(&lane->queue.resv_head);
    if (gda_error(&lane->queue)) return true;
    if (need->copied_bytes && !gda_stage_has_space(g, need->copied_bytes)) return false;
    return lane->begun - lane->ended < GDA_FLIGHTS &&
           gda_look(&lane->queue, head + 2 * GDA_MOST - g->options.depth) == GDA_COMPLETE;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static expar_status aim(gda *g, const gda_lane *lane, transport_memory memory, uint64_t offset, gda_request *request)
{
    gda_piece piece;
    uint64_t bytes;
    const gda_segment *s = &g->segments[memory];
    if (memory >= TRANSPORT_MEMORIES || !s->is_open) return transport_reject(&g->base, memory);
    if (!gda_find_remote(&s->keys, lane->pe, offset, &piece, &bytes))
        return error_set(EXPAR_ERR_RANGE, "gda: offset %llu at rank %d is not registered", (unsigned long long)offset,
                         lane->pe);
    request->remote = piece.remote;
    request->rkey = piece.rkey;
    return EXPAR_OK;
}

/* The signal of a put. No atomic meets the flag of a put with `flagged`, so that is written; others are atomics. With
   adaptive routing a write may overtake the data before it, and an atomic may not: then flags are atomics, too. */
static expar_status fill_signal(gda *g, gda_lane *lane, const transport_request *r, bool flagged, gda_request *signal)
{
    const bool writes = flagged && !g->options.reorders;
    *signal = (gda_request){.form = GDA_WRITE_INLINE, .bytes = sizeof r->operand};
    memcpy(signal->data, &r->operand, sizeof r->operand);
    if (!writes) gda_fill_atomic(signal, r->op, sizeof r->operand, r->operand, 0);
    if (!writes) gda_to_sink(&lane->queue, signal);
    return aim(g, lane, (transport_memory)r->signal_memory, r->signal_offset, signal);
}

/* ---- memory of the caller ---------------------------------------------------------------------------------------- */

/* Returns whether a request can name the memory: it lies in the segment whose keys are used, or the caller has
   registered it. Then *range is set, too. */
static bool local_is_known(const gda *g, const gda_keys *keys, const void *address, uint64_t bytes, gda_range *range)
{
    uint32_t lkey;
    uint64_t there = 0;
    if (gda_find_local(keys, (uintptr_t)address, &lkey, &there) &&
        (uintptr_t)address + bytes <= keys->heap + keys->ends[gda_load(&keys->num_chunks) - 1])
        return true;
    const gda_range *own = gda_find_own(g, address, bytes);
    if (own) *range = *own;
    return own != NULL;
}

static expar_status register_local(gda *g, void *address, uint64_t bytes, gda_range *range, gda_flight *flight)
{
    const gda_source source = {.base = address, .bytes = bytes};
    expar_status status = g->device->ops->add_memory(g->device, &source, &flight->memory);
    if (status != EXPAR_OK) return status;
    *range = (gda_range){.begin = (uintptr_t)address, .end = (uintptr_t)address + bytes, .lkey = flight->memory.lkey};
    return EXPAR_OK;
}

/* Finds the memory that the request names as *local: that of the caller, or a copy. A large put whose source may be
   reused at once is not copied: the caller waits for its end. */
static expar_status gda_find_source(gda *g, const gda_keys *keys, const transport_request *r, void **local,
                                    gda_range *range, gda_flight *flight)
{
    const bool puts = r->kind == TRANSPORT_KIND_PUT, copies = puts && r->copies;
    *local = puts ? (void *)(uintptr_t)r->source : r->dest;
    if (!r->bytes) return EXPAR_OK;
    const bool known = local_is_known(g, keys, *local, r->bytes, range);
    if (known && !copies) return EXPAR_OK;
    if (gda_stage_take(g, r->bytes, flight, range)) {
        if (puts) memcpy(flight->staged, r->source, r->bytes);
        if (!puts) flight->back = r->dest;
        if (!puts) flight->back_bytes = r->bytes;
        *local = flight->staged;
        return EXPAR_OK;
    }
    flight->is_awaited = copies;
    return known ? EXPAR_OK : register_local(g, *local, r->bytes, range, flight);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static expar_status post_failed(gda *g, gda_lane *lane)
{
    expar_status status = gda_lane_error(g, lane);
    return status == EXPAR_OK ? error_set(EXPAR_ERR_RANGE, "gda: memory at rank %d is not registered", lane->pe)
                              : status;
}

static expar_status post_atomic(gda *g, gda_lane *lane, const transport_request *r, gda_flight *flight)
{
    gda_request request = {.form = GDA_ADD_64};
    gda_fill_atomic(&request, r->op, (uint32_t)r->bytes, r->operand, r->compare);
    expar_status status = aim(g, lane, (transport_memory)r->memory, r->offset, &request);
    if (status != EXPAR_OK) return status;
    if (!gda_take_results(&lane->queue, 1, &flight->result)) return post_failed(g, lane);
    request.local = gda_result_address(&lane->queue, flight->result);
    request.lkey = lane->queue.results_lkey;
    flight->result_bytes = (uint32_t)r->bytes;
    flight->dest = r->dest;
    return gda_post(&lane->queue, &request, &flight->end) ? EXPAR_OK : post_failed(g, lane);
}

/* Puts of a few bytes to one chunk. Returns false where the data does not fit. */
static bool fill_inline(gda *g, const gda_lane *lane, const transport_request *r, gda_request *request)
{
    gda_piece piece;
    uint64_t left;
    if (r->kind != TRANSPORT_KIND_PUT || r->bytes == 0 || r->bytes > GDA_MOST_INLINE) return false;
    if (!gda_find_remote(&g->segments[r->memory].keys, lane->pe, r->offset, &piece, &left) || left < r->bytes)
        return false;
    *request = (gda_request){
        .form = GDA_WRITE_INLINE, .remote = piece.remote, .rkey = piece.rkey, .bytes = (uint32_t)r->bytes};
    memcpy(request->data, r->source, r->bytes);
    return true;
}

/* Posts the data, and then the signal, in one submission. */
static expar_status post_data(gda *g, gda_lane *lane, const transport_request *r, const gda_request *signal,
                              gda_flight *flight)
{
    const bool puts = r->kind == TRANSPORT_KIND_PUT;
    gda_keys *keys = &g->segments[r->memory].keys;
    gda_range range = {0};
    void *local;
    expar_status status = gda_find_source(g, keys, r, &local, &range, flight);
    if (status != EXPAR_OK) return status;
    keys->ranges = &range;
    keys->num_ranges = range.end ? 1 : 0;
    const int posted = gda_transfer(&lane->queue, keys, puts ? GDA_WRITE : GDA_READ, r->offset, (uintptr_t)local,
                                    r->bytes, signal, &flight->end);
    keys->num_ranges = 0;
    return posted ? EXPAR_OK : post_failed(g, lane);
}

static expar_status post_transfer(gda *g, gda_lane *lane, const transport_request *r, gda_flight *flight)
{
    gda_request signal, data;
    const transport_request apart = r->flagged ? transport_flag_apart(r) : *r;
    if (apart.signals) {
        expar_status status = fill_signal(g, lane, &apart, r->flagged, &signal);
        if (status != EXPAR_OK) return status;
    }
    flight->end = gda_load(&lane->queue.resv_head); /* if there are no bytes */
    if (!fill_inline(g, lane, &apart, &data)) return post_data(g, lane, &apart, apart.signals ? &signal : NULL, flight);
    bool posted = gda_post(&lane->queue, &data, &flight->end);
    if (posted && apart.signals) posted = gda_post(&lane->queue, &signal, &flight->end);
    return posted ? EXPAR_OK : post_failed(g, lane);
}

static void gda_count(gda *g, const transport_request *r)
{
    transport_count *counts[] = {&g->traffic.puts, &g->traffic.gets, &g->traffic.atomics};
    counts[r->kind]->operations++;
    counts[r->kind]->bytes += r->bytes;
    if (!r->signals) return;
    g->traffic.atomics.operations++;
    g->traffic.atomics.bytes += sizeof r->operand;
}

/* With the lock held, when there is space. */
static expar_status post_now(gda *g, gda_lane *lane, const transport_request *r, transport_batch *batch)
{
    gda_flight flight = {.batch = batch};
    expar_status status = gda_lane_error(g, lane);
    if (status != EXPAR_OK) return status;
    if (r->memory >= TRANSPORT_MEMORIES || !g->segments[r->memory].is_open)
        return transport_reject(&g->base, (transport_memory)r->memory);
    status = r->kind == TRANSPORT_KIND_ATOMIC ? post_atomic(g, lane, r, &flight) : post_transfer(g, lane, r, &flight);
    if (status != EXPAR_OK) {
        g->device->ops->remove_memory(g->device, &flight.memory);
        gda_stage_give(g, &flight);
        return status;
    }
    atomic_fetch_add_explicit(&batch->left, 1, memory_order_relaxed);
    lane->flights[lane->begun++ % GDA_FLIGHTS] = flight;
    gda_count(g, r);
    pthread_cond_signal(&g->posted);
    return EXPAR_OK;
}

static bool flight_has_ended(gda *g, const void *of)
{
    const gda_end *end = of;
    (void)g;
    return (int64_t)(end->lane->ended - end->begun) >= 0;
}

/* Waits until the source of the operation that was posted last may be reused. */
static expar_status await_source(gda *g, const gda_lane *lane)
{
    const gda_end end = {.lane = lane, .begun = lane->begun};
    if (!lane->flights[(lane->begun - 1) % GDA_FLIGHTS].is_awaited) return EXPAR_OK;
    return gda_wait(g, flight_has_ended, &end, "posting");
}

/* Returns the queue for a request. Order is promised within a queue only. So all puts to a PE share its first queue;
   gets and atomics take all queues in turns. By the holder of the lock. */
static gda_lane *choose_lane(gda *g, const transport_request *r)
{
    if (r->kind == TRANSPORT_KIND_PUT) return gda_lane_of(g, r->pe, 0);
    return gda_lane_of(g, r->pe, g->next_queue++ % g->options.queues_per_peer);
}

/* Returns how many bytes of the request are copied because the device cannot reach the caller's memory. */
static uint64_t bytes_to_copy(const gda *g, const transport_request *r)
{
    gda_range range;
    const void *local = r->kind == TRANSPORT_KIND_PUT ? r->source : r->dest;
    if (!g->device->ops->add_region || r->kind == TRANSPORT_KIND_ATOMIC || r->memory >= TRANSPORT_MEMORIES) return 0;
    const gda_segment *s = &g->segments[r->memory];
    return s->is_open && local_is_known(g, &s->keys, local, r->bytes, &range) && !r->copies ? 0 : r->bytes;
}

/* Posts one submission when there is space. */
static expar_status post_one(gda *g, gda_lane *lane, const transport_request *r, uint64_t copied_bytes,
                             transport_batch *batch)
{
    const gda_need need = {.lane = lane, .copied_bytes = copied_bytes};
    expar_status status = gda_wait(g, lane_has_space, &need, "posting");
    return status == EXPAR_OK ? post_now(g, lane, r, batch) : status;
}

/* Posts a large operation piece by piece, on one queue, so the pieces are complete in order. The first piece takes the
   odd bytes: then a flag at the end has all of its bytes in the last one. That piece alone has the signal and the
   batch. */
static expar_status post_pieces(gda *g, gda_lane *lane, const transport_request *r, transport_batch *batch)
{
    expar_status status = EXPAR_OK;
    transport_request piece = *r;
    const size_t odd = r->bytes % GDA_MOST_STAGED;
    piece.signals = piece.flagged = false;
    piece.bytes = odd ? odd : GDA_MOST_STAGED;
    for (size_t at = 0; status == EXPAR_OK && at < r->bytes; at += piece.bytes, piece.bytes = GDA_MOST_STAGED) {
        const bool is_last = r->bytes - at == piece.bytes;
        piece.offset = r->offset + at;
        if (r->source) piece.source = (const uint8_t *)r->source + at;
        if (r->dest) piece.dest = (uint8_t *)r->dest + at;
        piece.signals = is_last && r->signals;
        piece.flagged = is_last && r->flagged;
        status = post_one(g, lane, &piece, piece.bytes, is_last ? batch : &g->pieces);
    }
    return status;
}

expar_status gda_post_request(gda *g, const transport_request *request, transport_batch *batch)
{
    expar_status status;
    pthread_mutex_lock(&g->lock);
    gda_lane *lane = choose_lane(g, request);
    const uint64_t copied_bytes = bytes_to_copy(g, request);
    if (!batch) batch = &g->rest;
    if (copied_bytes > GDA_MOST_STAGED)
        status = post_pieces(g, lane, request, batch);
    else
        status = post_one(g, lane, request, copied_bytes, batch);
    if (status == EXPAR_OK) status = await_source(g, lane);
    pthread_mutex_unlock(&g->lock);
    return status == EXPAR_ERR_PEER ? gda_explain(g, request->pe, status) : status;
}
