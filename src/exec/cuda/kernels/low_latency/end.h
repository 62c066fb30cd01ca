/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a call: acknowledgements, sweeps, and the state for the next kernel. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_END_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_END_H

#include "exec/cuda/kernels/low_latency/begin.h"
#include "exec/cuda/kernels/low_latency/headers.h"
#include "exec/cuda/kernels/low_latency/masks.h"
#include "exec/cuda/kernels/low_latency/times.h"

GPU_FUNC void ll_clear_words(const ll_gpu_call *c, uint64_t at, uint64_t bytes)
{
    uint64_t *words = (uint64_t *)ll_own(c, at);
    for (uint64_t i = threadIdx.x; i < bytes / 8; i += blockDim.x)
        words[i] = 0;
}

/* Clears the slot's words once in LL_SWEEP_CALLS calls, so that none is taken for that of a later call with the same
   stamp. All their data have been read, and nobody may write the next yet. True: they were cleared. */
GPU_FUNC bool ll_sweep(const ll_gpu_call *c, const ll_now *now)
{
    const ll_space space = ll_space_here(c);
    const uint64_t slot = (uint64_t)now->slot, share = (uint64_t)LL_RANKS(c) * space.flag_share_bytes;
    const uint64_t rows = (uint64_t)LL_TOKENS(c) * (uint64_t)space.places * 8;
    const uint64_t region = LL_MASKS ? (uint64_t)c->masks->region[now->slot] * LL_SLOTS : 0;
    const uint64_t small = 2 * (uint64_t)LL_SMALL(c);
    const uint64_t messages = small * (uint64_t)LL_RANKS(c) * space.message_bytes;
    const uint64_t places = small * (uint64_t)space.places * space.place_bytes;
    if (now->epoch - ll_line_of(c, now->kind)->swept[now->slot] < LL_SWEEP_CALLS) return false;
    for (int32_t r = threadIdx.x; LL_FAR && r < LL_RANKS(c); r += blockDim.x)
        c->far[r].read[now->kind][now->slot] = c->far[r].told[now->kind][now->slot] = 0;
    if (now->kind == LL_DISPATCH) {
        ll_clear_words(c, space.message_flags + slot * share, share);
        ll_clear_words(c, space.word_messages + slot * messages, messages);
    } else {
        ll_clear_words(c, space.row_flags + (region + slot) * rows, rows);
        ll_clear_words(c, space.word_rows + slot * places, places);
        if (ll_shape_here(c).reduced) ll_clear_words(c, space.weight_flags + slot * share, share);
    }
    __syncthreads();
    return true;
}

GPU_FUNC void ll_say_read(const ll_gpu_call *c, const ll_shared *s, const ll_now *now)
{
    const bool moves = LL_MASKS && now->kind == LL_COMBINE;
    if (moves) ll_settle(c, s, now->slot);
    const uint32_t region = moves ? (uint32_t)c->masks->region[now->slot] : 0;
    for (int32_t i = threadIdx.x; i + 1 < LL_RANKS(c); i += blockDim.x) {
        const int32_t pe = (c->place.rank + 1 + i) % LL_RANKS(c);
        if (ll_is_masked(c, pe)) continue;
        if (LL_FAR && ll_is_far(c, pe)) {
            ll_parcel_say_read(c, pe, now->kind, now->epoch, region);
            continue;
        }
        store_release((uint64_t *)ll_there(s, pe, ll_read_place(c, (ll_kind)now->kind, c->place.rank, now->epoch)),
                      ll_flag_of(now, region));
    }
}

/* Updates the line for the next kernel. */
GPU_FUNC void ll_move_on(const ll_gpu_call *c, const ll_now *now, ll_gpu_line *line, bool rejected, bool received,
                         bool mismatched)
{
    const int32_t slot = now->slot;
    if (c->phases & LL_GPU_SEND) {
        line->epoch = now->epoch;
        if (line->open[slot] && now->after) line->kept[slot] = 1;
        line->unread[slot] = rejected;
        if (!rejected) line->open[slot] = now->epoch;
    }
    if (received) {
        line->open[slot] = 0;
        line->kept[slot] = 0;
        if (mismatched) line->unread[slot] = 1;
    }
}

/* Updates all copies. All threads of the last block to end call it. */
GPU_FUNC void ll_move_all_on(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, bool received,
                             bool mismatched, bool swept)
{
    const bool rejected = !ll_status_goes_on(s->rejection->status);
    for (int32_t i = threadIdx.x; i < c->copies; i += blockDim.x) {
        ll_gpu_line *line = &c->state[i].lines[now->kind];
        ll_move_on(c, now, line, rejected, received, mismatched);
        if (swept) line->swept[now->slot] = now->epoch;
        line->untold = c->state[i].lines[1 - now->kind].untold = 0;
    }
    if (threadIdx.x || !(c->phases & LL_GPU_SEND)) return;
    if (c->record) c->record->epoch = rejected ? 0 : now->epoch;
    if (c->record && rejected) copy_words(&c->record->rejection, s->rejection, sizeof *s->rejection);
    if (!c->record && rejected && !c->rejection.status) ll_report_own(c, s->rejection);
}

/* Updates the state after a quick call that was received. Each block updates its own copy and some of those without a
   block. Before the call nothing was open, kept or unread in the slot. */
GPU_FUNC void ll_move_on_quickly(const ll_gpu_call *c, const ll_now *now, bool mismatched)
{
    for (int32_t i = (int32_t)blockIdx.x; i < c->copies && threadIdx.x == 0; i += (int32_t)gridDim.x) {
        ll_gpu_line *line = &c->state[i].lines[now->kind];
        line->epoch = now->epoch;
        line->untold = mismatched ? 0 : now->epoch;
        if (mismatched) line->unread[now->slot] = 1;
        c->state[i].lines[1 - now->kind].untold = 0;
    }
}

GPU_FUNC void ll_ends_quickly(const ll_gpu_call *c, const ll_now *now, bool mismatched)
{
    ll_move_on_quickly(c, now, mismatched);
    ll_stamp_time(c, LL_GPU_DONE);
    ll_stamp_time(c, LL_GPU_ENDED);
}

/* All threads of all blocks call it. It returns true in the last block to end. */
GPU_FUNC bool ll_ends_last(const ll_gpu_call *c, const ll_shared *s, bool received)
{
    ll_stamp_time(c, LL_GPU_DONE);
    if (received) ll_keep_waits(c, s);
    return last_block(&c->place, false);
}

/* Ends a call that is not quick. The last block to end calls it. */
GPU_FUNC void ll_close(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, bool received, bool mismatched)
{
    bool swept = false;
    for (int32_t pe = 0; pe < LL_RANKS(c) && !(c->phases & LL_GPU_SEND); pe++)
        ll_tell_read(c, s, pe);
    if (received) ll_tell_waits(c);
    if (received && !mismatched && !__syncthreads_or(has_failed(&c->place))) {
        swept = ll_sweep(c, now);
        ll_say_read(c, s, now);
    }
    ll_move_all_on(c, s, now, received, mismatched, swept);
    if (threadIdx.x == 0 && LL_MASKS) {
        c->masks->steps++;
        c->masks->lost = 0;
    }
    ll_stamp_time(c, LL_GPU_ENDED);
}

#endif
