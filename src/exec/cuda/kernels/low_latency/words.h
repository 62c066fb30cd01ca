/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for words that carry a stamp, and rows in such words. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_WORDS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_WORDS_H

#include "exec/cuda/kernels/low_latency/masks.h"

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Waits until the word has the stamp (LL_TURN_ON) and returns the word. With `after`, all that was stored before the
   word is visible, too. `original`: the word that this one is a copy of, or the word itself. A thread that is about to
   mask the peer looks at the original once more. */
GPU_FUNC ll_gpu_turn ll_await_stamp(const ll_gpu_call *c, const ll_shared *s, const uint64_t *word,
                                    const uint64_t *original, uint32_t stamp, int32_t wait, int32_t peer, bool after,
                                    uint64_t *seen)
{
    ll_waiting w = {{0, 0}, 0, false};
    if (ll_is_masked(c, peer)) return LL_TURN_LOST;
    for (;;) {
        *seen = after ? load_acquire(word) : load_relaxed_64(LL_MASKS && w.loses ? original : word);
        if ((uint32_t)(*seen >> 32) == stamp) return LL_TURN_ON;
        const ll_gpu_turn turn = ll_may_wait(c, s, &w, wait, peer, *seen, (uint64_t)stamp << 32);
        if (turn != LL_TURN_ON) return turn;
        if (!after) between_polls();
    }
}

/* Waits for a word that carries all information itself. */
GPU_FUNC ll_gpu_turn ll_await_word(const ll_gpu_call *c, const ll_shared *s, const uint64_t *word, uint32_t stamp,
                                   int32_t wait, int32_t peer, uint64_t *seen)
{
    return ll_await_stamp(c, s, word, word, stamp, wait, peer, false, seen);
}
/* Waits for a copy of such a word. */
GPU_FUNC ll_gpu_turn ll_await_copy(const ll_gpu_call *c, const ll_shared *s, const uint64_t *copy, const uint64_t *word,
                                   uint32_t stamp, int32_t wait, int32_t peer, uint64_t *seen)
{
    return ll_await_stamp(c, s, copy, word, stamp, wait, peer, false, seen);
}
/* Waits for a word that is stored after other data. */
GPU_FUNC ll_gpu_turn ll_await(const ll_gpu_call *c, const ll_shared *s, const uint64_t *word, uint32_t stamp,
                              int32_t wait, int32_t peer, uint64_t *seen)
{
    return ll_await_stamp(c, s, word, word, stamp, wait, peer, true, seen);
}

/* ---- rows in words ----------------------------------------------------------------------------------------------- */

GPU_FUNC void ll_store_in_words(uint64_t *to, uint32_t stamp, uint4 value)
{
    const uint64_t high = (uint64_t)stamp << 32;
    store_words(to, high | value.x, high | value.y);
    store_words(to + 2, high | value.z, high | value.w);
}

/* True if all four words have the stamp; value: their data. */
GPU_FUNC bool ll_look_at_words(const uint64_t *from, uint32_t stamp, uint4 *value)
{
    uint64_t w[4];
    poll_words(from, &w[0], &w[1]);
    poll_words(from + 2, &w[2], &w[3]);
    *value = make_uint4((uint32_t)w[0], (uint32_t)w[1], (uint32_t)w[2], (uint32_t)w[3]);
    return (uint32_t)(w[0] >> 32) == stamp && (uint32_t)(w[1] >> 32) == stamp && (uint32_t)(w[2] >> 32) == stamp &&
           (uint32_t)(w[3] >> 32) == stamp;
}

/* Waits for 16 bytes of a row that the peer sends. False: a wait was given up. */
GPU_FUNC bool ll_await_row_words(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t peer,
                                 const uint64_t *from, uint4 *value)
{
    ll_waiting w = {{0, 0}, 0, false};
    while (!ll_look_at_words(from, now->stamp, value)) {
        if (ll_may_wait(c, s, &w, GPU_WAIT_MESSAGE, peer, *from, (uint64_t)now->stamp << 32) != LL_TURN_ON)
            return false;
        between_polls();
    }
    return true;
}

/* True if that many words from the offset on are here. A warp calls it. */
GPU_FUNC bool ll_words_are_here(const ll_gpu_call *c, const ll_now *now, uint64_t at, int64_t words)
{
    const uint64_t *first = (const uint64_t *)ll_own(c, at);
    bool here = true;
    for (int64_t i = threadIdx.x % 32; i < words; i += 32)
        here &= (uint32_t)(load_relaxed_64(first + i) >> 32) == now->stamp;
    return __all_sync(GPU_ALL, here);
}

#endif
