/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in the GPU's memory of message headers and acknowledgements, for buffers that lie in pinned memory. All blocks
 * of a kernel need these words. The GPU reads a word of pinned memory for one block after the other, a microsecond
 * each, so that a hundred blocks delay each other and all stores. Here one warp reads a header, and one thread at a
 * time an acknowledgement. The others poll the copies.
 *
 * Words of copies have stamps, as the words that they are copies of. The copies of a slot are used again by the call
 * after the next, as the slot itself. With masks a thread that polls a copy may find the rank masked, as ever. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_NEAR_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_NEAR_H

#include "exec/cuda/kernels/low_latency/times.h"
#include "exec/cuda/kernels/low_latency/words.h"

/* ---- message headers --------------------------------------------------------------------------------------------- */

GPU_FUNC uint64_t *ll_near_header(const ll_gpu_call *c, const ll_now *now, int32_t source)
{
    const int64_t number = ((int64_t)now->kind * LL_SLOTS + now->slot) * LL_RANKS(c) + source;
    return (uint64_t *)(c->near + number * (int64_t)ll_space_here(c).unit_bytes[LL_DISPATCH]);
}

/* Copies the rank's header when it has come: the status first, which comes after all else, then the other words. The
   copy of the status is stored last. Nothing is copied if the wait was given up or the rank masked. A warp calls it. */
GPU_FUNC void ll_copy_header(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t source, int32_t words)
{
    const uint64_t since_ns = ll_wait_begin(c);
    const int32_t lane = threadIdx.x % 32;
    const uint64_t *from = (const uint64_t *)ll_own(c, ll_header_place(c, (ll_kind)now->kind, source, now->epoch));
    uint64_t *to = ll_near_header(c, now, source), status = 0, seen;
    bool ok = true;
    if (lane == 0)
        ok =
            ll_await(c, s, from + LL_HEADER_STATUS, now->stamp, GPU_WAIT_MESSAGE_HEADER, source, &status) == LL_TURN_ON;
    if (!__all_sync(GPU_ALL, ok)) return;
    if (lane == 0) ll_wait_end(c, s, source, 0, since_ns);
    for (int32_t w = lane; w < words && ok; w += 32) {
        ok = ll_await_word(c, s, from + w, now->stamp, GPU_WAIT_MESSAGE_HEADER, source, &seen) == LL_TURN_ON;
        if (ok && w != LL_HEADER_STATUS) store_relaxed_64(to + w, seen);
    }
    if (__all_sync(GPU_ALL, ok) && lane == 0) store_release(to + LL_HEADER_STATUS, status);
}

/* Copies the headers that no other block has undertaken to copy. A block that gives up a wait has reported that, so
   those that poll the copy give up as well. All threads of the block call it. */
GPU_ASIDE void ll_copy_headers(const ll_gpu_call *c, ll_now call, int32_t words)
{
    const ll_shared s = ll_shared_here(c);
    for (int32_t r = (int32_t)threadIdx.x / 32; r < LL_RANKS(c); r += LL_BLOCK_WARPS) {
        unsigned long long *copied = &c->far[r].copied[call.kind][call.slot];
        const bool first = threadIdx.x % 32 == 0 && atomicMax(copied, (unsigned long long)call.epoch) < call.epoch;
        if (__any_sync(GPU_ALL, first)) ll_copy_header(c, &s, &call, r, words);
    }
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* The words that tell whether the rank's slot is free. They are its acknowledgement of the call before the last, and
   words of its header of this call: the status and, with masks, the number of messages. */
typedef struct ll_slot_words {
    uint64_t read, status, messages;
} ll_slot_words;

GPU_FUNC ll_slot_words ll_slot_words_of(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    const ll_kind kind = (ll_kind)now->kind;
    const uint64_t *header = (const uint64_t *)ll_own(c, ll_header_place(c, kind, pe, now->epoch));
    ll_slot_words seen;
    seen.read = load_acquire((const uint64_t *)ll_own(c, ll_read_place(c, kind, pe, now->epoch)));
    seen.status = load_acquire(header + LL_HEADER_STATUS);
    seen.messages = LL_MASKS ? load_acquire(header + LL_HEADER_MESSAGES) : 0;
    return seen;
}

/* Returns the acknowledgement of the call before the last as far as it was read. */
GPU_FUNC uint64_t ll_near_read(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return load_acquire(&c->far[pe].read[now->kind][now->slot]);
}

/* Returns the words as far as they were read. The number of messages is copied if the status lets the call go on. */
GPU_FUNC ll_slot_words ll_near_slot_words(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    ll_slot_words seen = {ll_near_read(c, now, pe), 0, 0};
    seen.messages = load_acquire(&c->far[pe].told[now->kind][now->slot]);
    if ((uint32_t)(seen.messages >> 32) == now->stamp) seen.status = ll_flag_of(now, 0);
    return seen;
}

/* Reads the words, and copies them, unless another thread does so. Returns whether they were read. */
GPU_FUNC bool ll_read_slot_words(const ll_gpu_call *c, const ll_now *now, int32_t pe, ll_slot_words *seen)
{
    ll_gpu_far *far = &c->far[pe];
    if (atomicCAS(&far->reading[now->kind], 0u, 1u) != 0) return false;
    *seen = ll_slot_words_of(c, now, pe);
    store_release(&far->read[now->kind][now->slot], seen->read);
    if (ll_header_opens(seen->status, now->stamp) == LL_CREDIT_GIVEN)
        store_release(&far->told[now->kind][now->slot], LL_MASKS ? seen->messages : ll_flag_of(now, 0));
    atomicExch(&far->reading[now->kind], 0u);
    return true;
}

#endif
