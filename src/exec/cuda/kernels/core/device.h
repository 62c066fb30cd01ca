/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of the kernels: places, who is last, verdicts, lookups in a routing. Waiting has a file of its own
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
#include "exec/cuda/kernels/core/ptx.h"
#include "exec/cuda/kernels/core/watch.h"

#define GPU_ALL 0xffffffffu

/* For benchmarks: when the warp came to the moment, of a dispatch or combine, or of a kernel of the benchmark. */
GPU_FUNC void stamp_warp(uint64_t *stamps, int32_t moment)
{
    if (!stamps || threadIdx.x % 32) return;
    stamps[(moment * gridDim.x + blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32] = clock_now();
}

/* What the shape macros fix is a constant to the compiler; without them it comes with the arguments. */
#ifdef EXPAR_RANKS
#define GPU_RANKS(world) EXPAR_RANKS
#else
#define GPU_RANKS(world) ((world)->shape.ranks)
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

GPU_FUNC uint8_t *heap_at(const gpu_world *world, int32_t pe, uint64_t offset)
{
    return (uint8_t *)(world->heaps[pe] + offset);
}
GPU_FUNC uint8_t *buffer_at(const gpu_world *world, int32_t pe, uint64_t offset)
{
    return heap_at(world, pe, world->buffer + offset);
}
GPU_FUNC ep_hello *hello_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return (ep_hello *)buffer_at(world, pe, ep_hello_at(&world->space, GPU_RANKS(world), epoch, source));
}
GPU_FUNC ep_reply *reply_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return (ep_reply *)buffer_at(world, pe, ep_reply_at(&world->space, GPU_RANKS(world), epoch, source));
}
GPU_FUNC uint64_t *done_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return (uint64_t *)buffer_at(world, pe, ep_done_at(&world->space, GPU_RANKS(world), epoch, source));
}

/* ---- dealing out ------------------------------------------------------------------------------------------------- */

/* The how-many-th one, from 0 on, of what warps come for in this call, which the last block of the grid sets back to 0.
   By one lane. An addition would not do: lanes that make the same one are compiled to make it together, and so to wait
   for the answer there and not where it is needed. */
GPU_FUNC uint32_t deal_next(const gpu_world *world)
{
    return atomicInc(&world->state->dealt, 0x7fffffffu);
}

/* ---- the end of a kernel ----------------------------------------------------------------------------------------- */

/* To be called by all threads of all blocks. True in the last block, for all its threads: whatever all blocks wrote is
   then ordered before its reads and its releases. for_peers: other GPUs, too, are to see what was written. The block
   learns it by the barrier itself: racecheck does not see that a shared word, written before this barrier and read
   behind it, would be as good. */
GPU_FUNC bool last_block(const gpu_world *world, bool for_peers)
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
        is_last = atomicAdd(&world->state->arrived, 1u) == gridDim.x - 1;
        if (is_last) {
            fence_gpu();
            world->state->arrived = 0;
        }
    }
    return __syncthreads_or(is_last);
}

/* Tells every rank that this one is through, and waits for all of them; but not when a block of this call, or of an
   earlier one, gave up a wait and so left rows where they were. By the last block. */
GPU_FUNC void exchange_dones(const gpu_world *world, uint32_t epoch)
{
    int32_t ranks = GPU_RANKS(world);
    if (__syncthreads_or(has_failed(world))) return;
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x)
        store_release(done_at(world, pe, epoch, world->rank), ep_word(epoch, 1));
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x)
        await_flag(world, done_at(world, world->rank, epoch, pe), epoch, GPU_WAIT_DONE, pe);
    __syncthreads();
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

/* Copies by one thread; records are small and this is rare. */
GPU_FUNC void copy_words(void *dest, const void *source, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes / 4; i++)
        ((uint32_t *)dest)[i] = ((const uint32_t *)source)[i];
}

GPU_FUNC bool same_form(const ep_form *a, const ep_form *b)
{
    bool same = true;
    for (uint32_t i = 0; i < sizeof *a / 4; i++)
        same &= ((const uint32_t *)a)[i] == ((const uint32_t *)b)[i];
    return same;
}

/* Who stands in the way of a call of which not all hellos agree, by one block: the lowest rank that refused, else the
   lowest whose form differs from rank 0's, else -1. All hellos must have come; *refused (may be NULL) says which of the
   two. */
GPU_FUNC int32_t judge_hellos(const gpu_world *world, uint32_t epoch, bool *refused)
{
    __shared__ int32_t worst[2];
    int32_t ranks = GPU_RANKS(world);
    if (threadIdx.x == 0) worst[0] = worst[1] = ranks;
    __syncthreads();
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x) {
        const ep_hello *hello = hello_at(world, world->rank, epoch, pe);
        if (hello->refusal.status) atomicMin(&worst[0], pe);
        if (!same_form(&hello->form, &hello_at(world, world->rank, epoch, 0)->form)) atomicMin(&worst[1], pe);
    }
    __syncthreads();
    if (refused) *refused = worst[0] < ranks;
    return worst[0] < ranks ? worst[0] : worst[1] < ranks ? worst[1] : -1;
}

/* Whether a hello, which must have come, stands in nobody's way: it does not refuse, and has this rank's own form. What
   the thread that has seen it come finds out at once, while it loads the rest; judge_hellos says who it was. */
GPU_FUNC bool hello_agrees(const ep_hello *hello, const ep_form *own)
{
    int32_t status = hello->refusal.status;
    return same_form(&hello->form, own) && !status;
}

/* Finds the first free slot from that of the ticket on, for a call that somebody will ask for. */
GPU_FUNC gpu_verdict *verdict_slot_of_ticket(const gpu_world *world)
{
    gpu_report *report = world->report;
    for (uint32_t i = 0; i < GPU_VERDICTS; i++) {
        gpu_verdict *slot = &report->verdicts[(world->ticket + i) % GPU_VERDICTS];
        if (!load_acquire(&slot->ticket)) return slot;
    }
    if (!report->lost_to) report->lost_from = world->ticket;
    store_release(&report->lost_to, world->ticket);
    return NULL;
}

/* Where this call's verdict goes; NULL: the host has not looked at earlier ones yet. By one thread. */
GPU_FUNC gpu_verdict *verdict_slot(const gpu_world *world)
{
    if (world->ticket) return verdict_slot_of_ticket(world);
    gpu_verdict *slot = &world->report->untold;
    return load_acquire(&slot->ticket) ? NULL : slot;
}

GPU_FUNC void publish_verdict(const gpu_world *world, gpu_verdict *slot)
{
    store_release(&slot->ticket, world->ticket ? world->ticket : 1);
}

/* By one thread: `rank` stands in the way, by its hello. */
GPU_FUNC void report_hello(const gpu_world *world, uint32_t epoch, int32_t rank, bool refused)
{
    gpu_verdict *slot = verdict_slot(world);
    const ep_hello *hello = hello_at(world, world->rank, epoch, rank);
    if (!slot) return;
    slot->rank = rank;
    slot->dropped = 0;
    copy_words(&slot->reason, &hello->refusal, sizeof slot->reason);
    slot->reason.status = refused ? hello->refusal.status : 0;
    copy_words(&slot->form, &hello->form, sizeof slot->form);
    copy_words(&slot->form0, &hello_at(world, world->rank, epoch, 0)->form, sizeof slot->form0);
    publish_verdict(world, slot);
}

GPU_FUNC void report_reply(const gpu_world *world, uint32_t epoch, int32_t rank)
{
    gpu_verdict *slot = verdict_slot(world);
    if (!slot) return;
    slot->rank = rank;
    slot->dropped = 0;
    copy_words(&slot->reason, &reply_at(world, world->rank, epoch, rank)->refusal, sizeof slot->reason);
    publish_verdict(world, slot);
}

GPU_FUNC void report_dropped(const gpu_world *world, int32_t rows)
{
    gpu_verdict *slot = verdict_slot(world);
    if (!slot) return;
    slot->rank = -1;
    slot->dropped = rows;
    publish_verdict(world, slot);
}

/* By block 0 once it knows whether the call goes on: the host may be waiting for that. */
GPU_FUNC void tell_opened(const gpu_world *world)
{
    if (threadIdx.x || !world->ticket) return;
    store_release(&world->report->opened, world->ticket);
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* Whether token t goes to rank r, and as the how-many-th of those that go there. */
typedef struct gpu_hop {
    bool goes;
    int32_t index;
} gpu_hop;

GPU_FUNC gpu_hop hop_of(const uint8_t *routing, const gpu_routing *at, int32_t ranks, int64_t token, int32_t rank)
{
    int64_t cell = (int64_t)((uint64_t)token / GPU_PIECE_TOKENS) * ranks + rank;
    uint32_t mask = ((const uint32_t *)(routing + at->masks))[cell];
    uint32_t bit = 1u << ((uint32_t)token % GPU_PIECE_TOKENS);
    gpu_hop hop;
    hold_back();
    hop.goes = (mask & bit) != 0;
    hop.index = ((const int32_t *)(routing + at->befores))[cell] + __popc(mask & (bit - 1));
    return hop;
}

/* Makes it one that sends nothing anywhere: of a dispatch that was refused, so that what stands behind it on the stream
   finds no rows. By one block. */
GPU_FUNC void empty_routing(uint8_t *routing, const gpu_routing *at)
{
    for (uint64_t i = threadIdx.x; routing && i < at->total_bytes / 4; i += blockDim.x)
        ((uint32_t *)routing)[i] = 0;
    __syncthreads();
}

GPU_FUNC int64_t expert_at(const gpu_route *route, int64_t token, int32_t k)
{
    int64_t i = token * route->idx_pitch + k;
    return route->idx_bytes == 8 ? ((const int64_t *)route->idx)[i] : ((const int32_t *)route->idx)[i];
}

#endif
