/* SPDX-License-Identifier: Apache-2.0 */
/* Parcels by gda: a thread writes the requests of the network device itself, and rings its doorbell (net/gda/queue.h).
 * All requests to a rank go to the first queue there, which keeps their order: the data, then the word. A number is an
 * index of that queue.
 *
 * A thread that waits for the device looks at the orders of the host, and with masks at the rank's mask. If the queue
 * fails, later parcels to its rank are dropped. The host learns of the failure from the queue
 * (gda_tell), or finds it itself (net/gda/watch.c). Then it ends the call, or with masks reports the rank as lost. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_GDA_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_GDA_H

#include "exec/cuda/kernels/low_latency/parcel.h"
#include "link/device/gda.h"

GPU_FUNC const gda_view *ll_gda_view(const ll_gpu_call *c, int32_t pe)
{
    return (const gda_view *)c->far[pe].view;
}
GPU_FUNC gda_queue *ll_gda_queue(const ll_gpu_call *c, int32_t pe)
{
    return gda_queue_to(ll_gda_view(c, pe), (uint32_t)pe, 0);
}

/* Completions are noticed by threads that wait, so this may say no long after the end. */
GPU_FUNC bool ll_gda_has_ended(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    return gda_has_reached(gda_load(&ll_gda_queue(c, pe)->cons_idx), number);
}

/* LL_TURN_LEAVE: the wait was given up. Without masks it is told to the host as one for this rank itself, which the
   host does not ask about. If the queue has failed, the wait lasts until the host has ended it. */
GPU_ASIDE ll_gpu_turn ll_gda_await(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    const ll_shared s = ll_shared_here(c);
    gda_queue *queue = ll_gda_queue(c, pe);
    ll_waiting at = {{0, 0}, 0, false};
    ll_gpu_turn turn = ll_is_masked(c, pe) ? LL_TURN_LOST : LL_TURN_ON;
    while (turn == LL_TURN_ON && gda_look(queue, number) != GDA_COMPLETE) {
        between_polls();
        turn = ll_may_wait(c, &s, &at, GPU_WAIT_CREDIT, LL_MASKS ? pe : c->place.rank, number, 0);
    }
    return turn;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* The parts are out of line, so that few values live at a time: the registers of the callers are all in use. */

#define LL_GDA_NONE (~(uint64_t)0)

/* Says whether a thread that finds the queue full leaves. The host ends such a wait by the queue, too, if the rank or
   the device is lost. It never waits for the rank's kernels, so it tells the host nothing. Many threads may wait here,
   so the host's orders are read by the thread that has the watch. */
GPU_FUNC bool ll_gda_leaves(const ll_gpu_call *c, int32_t pe, uint32_t turn)
{
    if (turn % LL_MASK_POLLS) return false;
    if (ll_is_masked(c, pe) || has_failed(&c->place)) return true;
    if (turn % GPU_POLLS) return false;
    watch_take(&c->place, clock_now());
    return (load_relaxed_64(&c->place.state->orders) & GPU_ABORT) != 0;
}

/* Reserves blocks of the queue, and returns the index of the first. LL_GDA_NONE: the queue has failed, or the wait was
   given up. */
GPU_ASIDE uint64_t ll_gda_reserve(const ll_gpu_call *c, int32_t pe, uint32_t blocks)
{
    gda_queue *queue = ll_gda_queue(c, pe);
    uint64_t base = 0;
    uint32_t turns = 0;
    for (;;) {
        const gda_state state = gda_try_reserve(queue, blocks, &base);
        if (state == GDA_COMPLETE) return base;
        if (state == GDA_FAILED || gda_must_end(queue, &turns) || ll_gda_leaves(c, pe, turns)) return LL_GDA_NONE;
    }
}

/* Returns the index after the blocks; 0: the queue has failed. */
GPU_ASIDE uint64_t ll_gda_commit(const ll_gpu_call *c, int32_t pe, uint64_t base, uint32_t blocks)
{
    return gda_commit(ll_gda_queue(c, pe), base, blocks) ? base + blocks : 0;
}

/* Data is cut where a chunk of the pinned heap ends, here or there. Nearly always it is one piece. 0: some of it is not
   registered. */
GPU_ASIDE uint32_t ll_gda_count(const ll_gpu_call *c, int32_t pe, uint64_t to, uint64_t local, uint64_t bytes)
{
    return gda_count_pieces(&ll_gda_view(c, pe)->keys[LL_GPU_PINNED], pe, to, local, bytes);
}

/* Writes the first piece of the data at the index, and returns its bytes. */
GPU_ASIDE uint32_t ll_gda_write_piece(const ll_gpu_call *c, int32_t pe, uint64_t index, uint64_t to, uint64_t local,
                                      uint64_t bytes, uint32_t flags)
{
    gda_piece piece;
    gda_request put = {GDA_WRITE, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}};
    if (!gda_cut(&ll_gda_view(c, pe)->keys[LL_GPU_PINNED], pe, to, local, bytes, &piece)) return 0;
    put.remote = piece.remote;
    put.local = piece.local;
    put.rkey = piece.rkey;
    put.lkey = piece.lkey;
    put.bytes = piece.bytes;
    gda_write(ll_gda_queue(c, pe), index, &put);
    return piece.bytes;
}

/* Fills the request for the word. Where the network may reorder writes it is an atomic, which comes after all writes
   before it. */
GPU_ASIDE void ll_gda_write_swap(const ll_gpu_call *c, int32_t pe, uint64_t index, uint64_t at, uint64_t word)
{
    gda_queue *queue = ll_gda_queue(c, pe);
    gda_request r = {GDA_SWAP_MASKED_64, GDA_REPORT, 0, 0, 0, 0, 0, 0, word, 0, ~(uint64_t)0, 0, {0}};
    gda_to_sink(queue, &r);
    gda_aim(&ll_gda_view(c, pe)->keys[LL_GPU_PINNED], pe, at, sizeof word, &r);
    gda_write(queue, index, &r);
}
GPU_ASIDE void ll_gda_write_word(const ll_gpu_call *c, int32_t pe, uint64_t index, uint64_t at, uint64_t word)
{
    gda_request r = {GDA_WRITE_INLINE, GDA_REPORT, 0, 0, 0, 0, sizeof word, 0, 0, 0, 0, 0, {0}};
    if (ll_gda_view(c, pe)->reorders) {
        ll_gda_write_swap(c, pe, index, at, word);
        return;
    }
    r.data[0] = (uint32_t)word;
    r.data[1] = (uint32_t)(word >> 32);
    gda_aim(&ll_gda_view(c, pe)->keys[LL_GPU_PINNED], pe, at, sizeof word, &r);
    gda_write(ll_gda_queue(c, pe), index, &r);
}

/* Posts the first piece by itself, and returns its bytes; 0: nothing was posted. */
GPU_ASIDE uint32_t ll_gda_post_piece(const ll_gpu_call *c, int32_t pe, uint64_t to, uint64_t local, uint64_t bytes)
{
    const uint64_t base = ll_gda_reserve(c, pe, 1);
    if (base == LL_GDA_NONE) return 0;
    const uint32_t length = ll_gda_write_piece(c, pe, base, to, local, bytes, GDA_REPORT);
    return ll_gda_commit(c, pe, base, 1) ? length : 0;
}

/* Counts a parcel. */
GPU_FUNC void ll_gda_note(const ll_gpu_call *c, int32_t pe, uint64_t bytes)
{
    atomicAdd(bytes ? &c->far[pe].posted : &c->far[pe].posted_words, 1ull);
    atomicAdd(&c->far[pe].posted_bytes, (unsigned long long)(bytes + sizeof(uint64_t)));
}

/* ---- parcels ----------------------------------------------------------------------------------------------------- */

/* The parcel becomes a write for each piece of the data, and a request for the word. The last piece and the word are
   one submission. */
GPU_ASIDE uint64_t ll_gda_issue(const ll_gpu_call *c, int32_t pe, ll_parcel parcel)
{
    parcel.at += c->place.buffer;
    parcel.to += c->place.buffer;
    uint32_t blocks = ll_gda_count(c, pe, parcel.to, (uint64_t)parcel.data, parcel.bytes);
    for (; blocks > 1; blocks--) {
        const uint32_t length = ll_gda_post_piece(c, pe, parcel.to, (uint64_t)parcel.data, parcel.bytes);
        if (!length) return 0;
        parcel.to += length;
        parcel.data += length;
        parcel.bytes -= length;
    }
    blocks += gda_blocks_of(ll_gda_view(c, pe)->reorders ? GDA_SWAP_MASKED_64 : GDA_WRITE_INLINE);
    const uint64_t base = ll_gda_reserve(c, pe, blocks);
    if (base == LL_GDA_NONE) return 0;
    if (parcel.bytes) ll_gda_write_piece(c, pe, base, parcel.to, (uint64_t)parcel.data, parcel.bytes, 0);
    ll_gda_write_word(c, pe, base + (parcel.bytes != 0), parcel.at, parcel.word);
    ll_gda_note(c, pe, parcel.bytes);
    return ll_gda_commit(c, pe, base, blocks);
}

#endif
