/* SPDX-License-Identifier: Apache-2.0 */
/* The records of a call in normal mode, as kernels see them: headers, replies and completion flags of all ranks
 * (proto/normal.h), their evaluation, and lookups in a routing. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_RECORDS_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_RECORDS_H

#include "exec/cuda/kernels/core/device.h"
#include "exec/cuda/kernels/normal/args.h"

/* ---- places ------------------------------------------------------------------------------------------------------ */

GPU_FUNC ep_header *header_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return (ep_header *)buffer_at(&world->place, pe,
                                  ep_header_at(&world->space, GPU_RANKS(&world->place), epoch, source));
}
GPU_FUNC ep_reply *reply_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return (ep_reply *)buffer_at(&world->place, pe,
                                 ep_reply_at(&world->space, GPU_RANKS(&world->place), epoch, source));
}
GPU_FUNC uint64_t *done_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return (uint64_t *)buffer_at(&world->place, pe,
                                 ep_completion_at(&world->space, GPU_RANKS(&world->place), epoch, source));
}

/* ---- the end of a kernel ----------------------------------------------------------------------------------------- */

/* Tells every rank that this one has finished, and waits for all of them. It does neither if a block of this call, or
   of an earlier one, gave up a wait and so left rows where they were. The last block calls it. */
GPU_FUNC void exchange_dones(const gpu_world *world, uint32_t epoch)
{
    int32_t ranks = GPU_RANKS(&world->place);
    if (__syncthreads_or(has_failed(&world->place))) return;
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x)
        store_release(done_at(world, pe, epoch, world->place.rank), ep_word(epoch, 1));
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x)
        await_flag(&world->place, done_at(world, world->place.rank, epoch, pe), epoch, GPU_WAIT_DONE, pe);
    __syncthreads();
}

/* ---- results of votes -------------------------------------------------------------------------------------------- */

/* Finds the rank because of which a call cannot go on, if not all headers agree; -1: there is none. All headers must
   have come. *refused (may be NULL): the rank rejects the call; else its form differs. One block calls it. */
GPU_FUNC int32_t judge_headers(const gpu_world *world, uint32_t epoch, bool *rejected)
{
    __shared__ int32_t least;
    const ep_form *form0 = &header_at(world, world->place.rank, epoch, 0)->form;
    if (threadIdx.x == 0) least = ep_ballot(EP_STAND_AGREES, 0);
    __syncthreads();
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&world->place); pe += blockDim.x) {
        const ep_header *header = header_at(world, world->place.rank, epoch, pe);
        atomicMin(&least, ep_ballot(ep_header_stands(header->rejection.status, &header->form, form0), pe));
    }
    __syncthreads();
    if (rejected) *rejected = ep_ballot_stand(least) < EP_STAND_DIFFERS;
    return ep_ballot_rank(least);
}

/* Says whether a header, which must have come, lets the call go on: it does not reject, and has this rank's own form.
   The thread that has seen it come finds that out at once, while it loads the rest. judge_headers then finds the
   rank. */
GPU_FUNC bool header_agrees(const ep_header *header, const ep_form *own)
{
    int32_t status = header->rejection.status;
    return ep_is_same_form(&header->form, own) && !status;
}

/* Says whether the host wants to know why the call cannot go on. `own` is what the host rejected it for. The caller of
   a rejected call has that error already. Without a ticket the report would take the only place for such calls, and a
   failure that nobody knows yet would be lost. */
GPU_FUNC bool is_news(const gpu_world *world, const ep_rejection *own)
{
    return world->place.ticket || !own->status;
}

/* Reports that the call cannot go on because of the header of `rank`. One thread calls it. */
GPU_FUNC void report_header(const gpu_world *world, uint32_t epoch, int32_t rank, bool rejected)
{
    gpu_vote *slot = vote_slot(&world->place);
    const ep_header *header = header_at(world, world->place.rank, epoch, rank);
    if (!slot) return;
    slot->rank = rank;
    slot->dropped = 0;
    copy_words(&slot->reason, &header->rejection, sizeof slot->reason);
    slot->reason.status = rejected ? header->rejection.status : 0;
    copy_words(&slot->form, &header->form, sizeof slot->form);
    copy_words(&slot->form0, &header_at(world, world->place.rank, epoch, 0)->form, sizeof slot->form0);
    publish_vote(&world->place, slot);
}

GPU_FUNC void report_reply(const gpu_world *world, uint32_t epoch, int32_t rank)
{
    gpu_vote *slot = vote_slot(&world->place);
    if (!slot) return;
    slot->rank = rank;
    slot->dropped = 0;
    copy_words(&slot->reason, &reply_at(world, world->place.rank, epoch, rank)->rejection, sizeof slot->reason);
    publish_vote(&world->place, slot);
}

GPU_FUNC void report_dropped(const gpu_world *world, int32_t rows)
{
    gpu_vote *slot = vote_slot(&world->place);
    if (!slot) return;
    slot->rank = -1;
    slot->dropped = rows;
    publish_vote(&world->place, slot);
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* Says whether token t goes to rank r, and its index among the tokens that go there. */
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

/* Clears a routing, so that it sends nothing anywhere. After a rejected dispatch, later work on the stream then finds
   no rows. One block calls it. */
GPU_FUNC void empty_routing(uint8_t *routing, const gpu_routing *at)
{
    for (uint64_t i = threadIdx.x; routing && i < at->total_bytes / 4; i += blockDim.x)
        ((uint32_t *)routing)[i] = 0;
    __syncthreads();
}

#endif
