/* SPDX-License-Identifier: Apache-2.0 */
/* How far each rank had come when a wait of this kernel was given up; the host reports it with the error. The first
 * warp that leaves its call for that reason looks at all words that the call waits for. They are in this rank's own
 * memory. A call that goes well does none of this. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_PROGRESS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_PROGRESS_H

#include "exec/cuda/kernels/low_latency/outcome.h"

/* All lanes of a leaving warp call it. It returns what was awaited if this warp shall report the progress, else
   GPU_WAIT_NONE. A warp may also leave because of a rejection. */
GPU_FUNC int32_t ll_progress_begin(const ll_gpu_call *c)
{
    int32_t wait = GPU_WAIT_NONE;
    if (threadIdx.x % 32 == 0 && has_failed(&c->place) && !atomicCAS(c->told, 0u, 1u))
        wait = c->place.report->wait - c->kind * GPU_LL_WAITS;
    return __shfl_sync(GPU_ALL, wait, 0);
}

GPU_FUNC void ll_progress_tell(const ll_gpu_call *c, int32_t rank, int32_t came, int32_t all)
{
    if (threadIdx.x % 32 || rank == c->place.rank || ll_is_masked(c, rank)) return;
    store_relaxed_64(&c->progress[rank], ll_gpu_due(came, all));
}

GPU_FUNC bool ll_has_stamp(const uint64_t *word, uint32_t stamp)
{
    return (uint32_t)(load_acquire(word) >> 32) == stamp;
}

/* Counts the flags that have come, of that many consecutive ones from the offset on. A warp calls it. */
GPU_FUNC int32_t ll_count_flags(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, uint64_t at, int32_t flags)
{
    const uint64_t *first = (const uint64_t *)ll_own(c, at);
    int32_t came = 0;
    for (int32_t i = threadIdx.x % 32; i < flags; i += 32)
        came += ll_has_stamp(first + i, now->stamp);
    return __reduce_add_sync(GPU_ALL, came);
}

/* True if all words of the rank's header are here. The header is that of this call or, if that was awaited, of the call
   before. A warp calls it. */
GPU_FUNC bool ll_header_is_here(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t rank)
{
    const bool between = (uint32_t)(c->place.report->expected >> 32) != now->stamp;
    const uint64_t *unit = ll_message_header_of(c, s, now, rank);
    bool here = true;
    if (between) unit = (const uint64_t *)ll_own(c, ll_header_place(c, (ll_kind)now->kind, rank, now->epoch - 1));
    for (int32_t w = threadIdx.x % 32; w < ll_header_words(c, now->kind); w += 32)
        here &= ll_has_stamp(unit + w, between ? now->between : now->stamp);
    return __all_sync(GPU_ALL, here);
}

/* True if the rank's header says that the rank sends data in the call. */
GPU_FUNC bool ll_header_promises(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t rank)
{
    const uint64_t status = load_acquire(ll_message_header_of(c, s, now, rank) + LL_HEADER_STATUS);
    return (uint32_t)(status >> 32) == now->stamp && ll_status_goes_on((int32_t)(uint32_t)status);
}

/* True if the rank's slot is free, or its header of this call is here. */
GPU_FUNC bool ll_slot_is_known(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t rank)
{
    const ll_kind kind = (ll_kind)now->kind;
    const uint64_t *read = (const uint64_t *)ll_own(c, ll_read_place(c, kind, rank, now->epoch));
    const uint64_t *unit = (const uint64_t *)ll_own(c, ll_header_place(c, kind, rank, now->epoch));
    return ll_has_stamp(read, now->before) || ll_has_stamp(unit + LL_HEADER_STATUS, now->stamp);
}

/* Reports headers or slots, of which each rank has one. A warp calls it. */
GPU_FUNC void ll_progress_tell_one(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t wait,
                                   int32_t rank)
{
    const bool came =
        wait == GPU_WAIT_MESSAGE_HEADER ? ll_header_is_here(c, s, now, rank) : ll_slot_is_known(c, s, now, rank);
    ll_progress_tell(c, rank, came, 1);
}

#endif
