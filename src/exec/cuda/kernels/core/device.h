/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of the kernels: places, who is last, verdicts. Waiting has a file of its own
 * (watch.h), and so have ordered loads and stores (ptx.h).
 *
 * Order between GPUs: payload with plain or bulk stores; then all of a block's threads meet, one of them fences at
 * system scope and arrives at the local counter; the last block, which does neither where it is the only one, stores
 * the flag with release at system scope. A reader polls the flag with acquire at system scope. What blocks leave for
 * the last one of their own GPU (notify) takes a fence at that scope.
 *
 * A release covers its thread's own writes and, through a barrier of the block or the warp, those of the threads that
 * it has met (causality order is transitive): no fence stands before it, since each costs a round trip to wherever the
 * block has written last. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_DEVICE_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_DEVICE_H

#include "exec/cuda/kernels/core/args.h"
#include "exec/cuda/kernels/core/watch.h"
#include "link/device/ptx.h"

#define GPU_ALL 0xffffffffu

/* For benchmarks: when the warp came to the moment, of a dispatch or combine, or of a kernel of the benchmark. */
GPU_FUNC void stamp_warp(uint64_t *stamps, int32_t moment)
{
    if (!stamps || threadIdx.x % 32) return;
    stamps[(moment * gridDim.x + blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32] = clock_now();
}

/* What the shape macros fix is a constant to the compiler; without them it comes with the arguments. */
#ifdef EXPAR_RANKS
#define GPU_RANKS(place) EXPAR_RANKS
#else
#define GPU_RANKS(place) ((place)->ranks)
#endif
#ifdef EXPAR_ROW_BYTES
#define GPU_ROW_BYTES(args) ((int64_t)EXPAR_ROW_BYTES)
#else
#define GPU_ROW_BYTES(args) ((args)->row_bytes)
#endif
#ifdef EXPAR_TOPK
#define GPU_TOPK(args) EXPAR_TOPK
#else
#define GPU_TOPK(args) ((args)->form.topk)
#endif
#ifdef EXPAR_DTYPE
#define GPU_DTYPE(dtype) EXPAR_DTYPE
#else
#define GPU_DTYPE(dtype) (dtype)
#endif

/* ---- places ------------------------------------------------------------------------------------------------------ */

GPU_FUNC uint8_t *heap_at(const gpu_place *place, int32_t pe, uint64_t offset)
{
    return (uint8_t *)(place->heaps[pe] + offset);
}
GPU_FUNC uint8_t *buffer_at(const gpu_place *place, int32_t pe, uint64_t offset)
{
    return heap_at(place, pe, place->buffer + offset);
}

/* ---- dealing out ------------------------------------------------------------------------------------------------- */

/* The how-many-th one, from 0 on, of what warps come for in this call, which the last block of the grid sets back to 0.
   By one lane. An addition would not do: lanes that make the same one are compiled to make it together, and so to wait
   for the answer there and not where it is needed. */
GPU_FUNC uint32_t deal_next(const gpu_place *place)
{
    return atomicInc(&place->state->dealt, 0x7fffffffu);
}

/* ---- the end of a kernel ----------------------------------------------------------------------------------------- */

/* To be called by all threads of all blocks. True in the last block, for all its threads: whatever all blocks wrote is
   then ordered before its reads and its releases. for_peers: other GPUs, too, are to see what was written. The block
   learns it by the barrier itself: racecheck does not see that a shared word, written before this barrier and read
   behind it, would be as good. */
GPU_FUNC bool last_block(const gpu_place *place, bool for_peers)
{
    bool is_last = false;
    __syncthreads();
    if (gridDim.x == 1) return true;
    if (threadIdx.x == 0) {
        hold_back();
        if (for_peers)
            fence_system();
        else
            fence_gpu();
        is_last = atomicAdd(&place->state->arrived, 1u) == gridDim.x - 1;
        if (is_last) {
            fence_gpu();
            place->state->arrived = 0;
        }
    }
    return __syncthreads_or(is_last);
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

/* Copies by one thread; records are small and this is rare. */
GPU_FUNC void copy_words(void *dest, const void *source, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes / 4; i++)
        ((uint32_t *)dest)[i] = ((const uint32_t *)source)[i];
}

/* Finds the first free slot from that of the ticket on, for a call that somebody will ask for. */
GPU_FUNC gpu_verdict *verdict_slot_of_ticket(const gpu_place *place)
{
    gpu_report *report = place->report;
    for (uint32_t i = 0; i < GPU_VERDICTS; i++) {
        gpu_verdict *slot = &report->verdicts[(place->ticket + i) % GPU_VERDICTS];
        if (!load_acquire(&slot->ticket)) return slot;
    }
    if (!report->lost_to) report->lost_from = place->ticket;
    store_release(&report->lost_to, place->ticket);
    return NULL;
}

/* Where this call's verdict goes; NULL: the host has not looked at earlier ones yet. By one thread. */
GPU_FUNC gpu_verdict *verdict_slot(const gpu_place *place)
{
    if (place->ticket) return verdict_slot_of_ticket(place);
    gpu_verdict *slot = &place->report->untold;
    return load_acquire(&slot->ticket) ? NULL : slot;
}

GPU_FUNC void publish_verdict(const gpu_place *place, gpu_verdict *slot)
{
    store_release(&slot->ticket, place->ticket ? place->ticket : 1);
}

/* By block 0 once it knows whether the call goes on: the host may be waiting for that. */
GPU_FUNC void tell_opened(const gpu_place *place)
{
    if (threadIdx.x || !place->ticket) return;
    store_release(&place->report->opened, place->ticket);
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

GPU_FUNC int64_t expert_at(const gpu_route *route, int64_t token, int32_t k)
{
    int64_t i = token * route->idx_pitch + k;
    return route->idx_bytes == 8 ? ((const int64_t *)route->idx)[i] : ((const int32_t *)route->idx)[i];
}

#endif
