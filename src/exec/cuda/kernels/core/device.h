/* SPDX-License-Identifier: Apache-2.0 */
/* Basic functions of the kernels: addresses, the last block, results of votes. Waiting is in watch.h, ordered loads and
 * stores are in ptx.h.
 *
 * Order between GPUs. Blocks store the payload with plain or bulk stores. Then all threads of a block meet, and one of
 * them fences at system scope and counts its block in. The last block stores the flag with release at system scope. (A
 * block that is the only one needs neither fence nor counter.) A reader polls the flag with acquire at system scope. If
 * blocks leave data only for the last block of their own GPU (notify), the fence is at GPU scope.
 *
 * A release covers its thread's own writes. Through a barrier of the block or the warp it also covers those of the
 * threads that it has met (causality order is transitive). So no fence comes before it: each fence costs a round trip
 * to wherever the block has written last. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_DEVICE_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_DEVICE_H

#include "exec/cuda/kernels/core/args.h"
#include "exec/cuda/kernels/core/watch.h"
#include "link/device/ptx.h"

#define GPU_ALL 0xffffffffu

/* For benchmarks: stores the time at which the warp reached a moment of a dispatch or combine, or of a benchmark's
   kernel. */
GPU_FUNC void stamp_warp(uint64_t *stamps, int32_t moment)
{
    if (!stamps || threadIdx.x % 32) return;
    stamps[(moment * gridDim.x + blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32] = clock_now();
}

/* With the shape macros these are constants to the compiler; without them they come with the arguments. */
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

/* Returns the next number, from 0 on, of the items that warps share in this call. The last block of the grid resets it.
   One lane calls it. An addition would not do: the compiler joins equal additions of a warp's lanes, and then waits for
   the answer at that point and not where it is needed. */
GPU_FUNC uint32_t deal_next(const gpu_place *place)
{
    return atomicInc(&place->state->dealt, 0x7fffffffu);
}

/* ---- the end of a kernel ----------------------------------------------------------------------------------------- */

/* All threads of all blocks call it. It returns true to all threads of the last block. The writes of all blocks are
   then ordered before that block's reads and releases. for_peers: other GPUs shall see the writes, too. The block
   learns the answer by the barrier itself. A shared word, written before the barrier and read after it, would be as
   good, but racecheck does not see that. */
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

/* ---- results of votes -------------------------------------------------------------------------------------------- */

/* One thread copies; records are small and this is rare. */
GPU_FUNC void copy_words(void *dest, const void *source, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes / 4; i++)
        ((uint32_t *)dest)[i] = ((const uint32_t *)source)[i];
}

/* Finds the first free slot, from that of the ticket on, for a call with a ticket. */
GPU_FUNC gpu_vote *vote_slot_of_ticket(const gpu_place *place)
{
    gpu_report *report = place->report;
    for (uint32_t i = 0; i < GPU_VOTES; i++) {
        gpu_vote *slot = &report->votes[(place->ticket + i) % GPU_VOTES];
        if (!load_acquire(&slot->ticket)) return slot;
    }
    if (!report->lost_to) report->lost_from = place->ticket;
    store_release(&report->lost_to, place->ticket);
    return NULL;
}

/* Returns the slot for this call's result; NULL: the host has not read earlier ones yet. One thread calls it. */
GPU_FUNC gpu_vote *vote_slot(const gpu_place *place)
{
    if (place->ticket) return vote_slot_of_ticket(place);
    gpu_vote *slot = &place->report->untold;
    return load_acquire(&slot->ticket) ? NULL : slot;
}

GPU_FUNC void publish_vote(const gpu_place *place, gpu_vote *slot)
{
    store_release(&slot->ticket, place->ticket ? place->ticket : 1);
}

/* Block 0 calls it once it knows whether the call goes on: the host may be waiting for that. */
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
