/* SPDX-License-Identifier: Apache-2.0 */
/* link/device, by gda: warps write the requests of a network device themselves and ring its doorbell (net/gda/queue.h).
 *
 * In each call all 32 lanes of a warp take part, with the same queue. One lane reserves, commits and waits; each lane
 * writes requests. A lane's payload is written before the call, by this warp or by threads that it has met.
 *
 * Each call returns the same on all lanes: 0 if the queue has failed or memory is not registered, else 1. Order is
 * promised within a queue only, so data and its signal share one. gda_pick and gda_pick_here choose among several. */
#ifndef EXPAR_LINK_DEVICE_GDA_H
#define EXPAR_LINK_DEVICE_GDA_H

#include "link/device/ptx.h"

#define GDA_BETWEEN_POLLS() between_polls()
#ifndef GDA_BETWEEN_STEPS
#define GDA_BETWEEN_STEPS(queue) ((void)(queue), hold_back())
#endif
#include "net/gda/view.h"

#define GDA_ALL_LANES 0xffffffffu

/* ---- which queue ------------------------------------------------------------------------------------------------- */

/* Calls that name no expert or channel share the queues by the place of the thread. */
typedef enum gda_map { GDA_BY_BLOCK, GDA_BY_WARP, GDA_BY_THREAD } gda_map;

/* Low latency: by the number of the local expert. Normal mode: by the channel. */
GPU_FUNC uint32_t gda_pick(uint32_t number, uint32_t num_queues)
{
    return number % num_queues;
}
/* A warp form may use GDA_BY_BLOCK and GDA_BY_WARP only, because its lanes share a queue. */
GPU_FUNC uint32_t gda_pick_here(gda_map map, uint32_t num_queues)
{
    const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    return gda_pick(map == GDA_BY_BLOCK ? blockIdx.x : map == GDA_BY_WARP ? thread / 32 : thread, num_queues);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

GPU_FUNC uint32_t gda_lane(void)
{
    return threadIdx.x % 32;
}

/* Gives lane 0's word to all. The lanes meet first, because a shuffle orders no accesses: what lane 0 has seen, as a
   completion, comes before the later accesses of all lanes. */
GPU_FUNC int gda_agree(int good)
{
    __syncwarp();
    return __shfl_sync(GDA_ALL_LANES, good, 0);
}

/* Lane 0 reserves for all. */
GPU_FUNC int gda_reserve_warp(gda_queue *queue, uint32_t blocks, uint64_t *base)
{
    uint64_t first = 0;
    int good = 1;
    if (gda_lane() == 0) good = gda_reserve(queue, blocks, &first);
    *base = __shfl_sync(GDA_ALL_LANES, first, 0);
    return gda_agree(good);
}

/* All lanes have written their requests. Lane 0's fence orders them, too, after the lanes have met. */
GPU_FUNC int gda_commit_warp(gda_queue *queue, uint64_t base, uint32_t blocks)
{
    int good = 1;
    __syncwarp();
    if (gda_lane() == 0) good = gda_commit(queue, base, blocks);
    return gda_agree(good);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* As gda_transfer: each lane writes the requests of some pieces. *end is set on all lanes. */
GPU_FUNC int gda_transfer_warp(gda_queue *queue, const gda_keys *keys, gda_form form, uint64_t offset, uint64_t address,
                               uint64_t bytes, const gda_request *signal, uint64_t *end)
{
    uint32_t left = gda_count_pieces(keys, queue->pe, offset, address, bytes);
    const int reads = form == GDA_READ && bytes;
    gda_walk walk = {offset, address, bytes};
    if (bytes && !left) return 0;
    while (left || signal) {
        const gda_submission next = gda_next_submission(queue, left, signal);
        uint64_t base;
        if (!gda_reserve_warp(queue, next.blocks, &base)) return 0;
        gda_write_pieces(queue, keys, form, base, &next, &walk, gda_lane(), 32);
        if (next.is_last && signal && gda_lane() == 0) gda_write_last(queue, base + next.pieces, signal);
        if (!gda_commit_warp(queue, base, next.blocks)) return 0;
        *end = base + next.blocks;
        left -= next.pieces;
        if (next.is_last) break;
    }
    if (reads && gda_lane() == 0) gda_note_get(queue, *end);
    __syncwarp();
    return 1;
}

/* Returns the sum of the words of the lanes before this one; *total is that of all. */
GPU_FUNC uint32_t gda_sum_before(uint32_t word, uint32_t *total)
{
    uint32_t sum = word;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const uint32_t other = __shfl_up_sync(GDA_ALL_LANES, sum, by);
        if (gda_lane() >= by) sum += other;
    }
    *total = __shfl_sync(GDA_ALL_LANES, sum, 31);
    return sum - word;
}

/* Posts the requests of the lanes with `wants`, in the order of lanes. *end is set on all lanes if there are some. The
   last request of a submission asks for a CQE. */
GPU_FUNC int gda_post_warp(gda_queue *queue, int wants, const gda_request *request, uint64_t *end)
{
    const uint32_t blocks = wants ? gda_blocks_of(request->form) : 0;
    uint32_t total, done = 0;
    const uint32_t before = gda_sum_before(blocks, &total);
    while (done < total) {
        /* the lanes of this submission: as many as the largest reservation holds */
        const int takes_part = wants && before >= done && before + blocks <= done + queue->most;
        uint32_t stop = __reduce_max_sync(GDA_ALL_LANES, takes_part ? before + blocks : 0);
        uint64_t base;
        if (!gda_reserve_warp(queue, stop - done, &base)) return 0;
        if (takes_part) {
            gda_request own = *request;
            if (before + blocks == stop) own.flags |= GDA_REPORT;
            gda_write(queue, base + before - done, &own);
        }
        if (!gda_commit_warp(queue, base, stop - done)) return 0;
        *end = base + stop - done;
        done = stop;
    }
    return 1;
}

/* Waits until all blocks before `end` are complete. */
GPU_FUNC int gda_poll_warp(gda_queue *queue, uint64_t end)
{
    int good = 1;
    if (gda_lane() == 0) good = gda_poll(queue, end);
    return gda_agree(good);
}

/* Waits for all requests that the lanes, or threads that they have met, committed before. */
GPU_FUNC int gda_quiet_warp(gda_queue *queue)
{
    int good = 1;
    __syncwarp();
    if (gda_lane() == 0) good = gda_quiet(queue);
    return gda_agree(good);
}

/* Posts the atomics of the lanes with `wants` and waits for them; each gets its old word. The queue must have 32 result
   slots. */
GPU_FUNC int gda_fetch_warp(gda_queue *queue, int wants, const gda_request *request, uint64_t *old)
{
    const uint32_t wanting = __ballot_sync(GDA_ALL_LANES, wants);
    const uint32_t count = (uint32_t)__popc(wanting), before = (uint32_t)__popc(wanting & ((1u << gda_lane()) - 1));
    gda_request own = *request;
    uint64_t first = 0, end = 0;
    int good = 1;
    if (!wanting) return 1;
    if (gda_lane() == 0) good = gda_take_results(queue, count, &first);
    first = __shfl_sync(GDA_ALL_LANES, first, 0);
    if (!gda_agree(good)) return 0;
    own.local = gda_result_address(queue, first + before);
    own.lkey = queue->results_lkey;
    if (!gda_post_warp(queue, wants, &own, &end) || !gda_poll_warp(queue, end)) return 0;
    if (wants) *old = gda_result(queue, first + before, gda_word_bytes(own.form));
    __syncwarp();
    if (gda_lane() == 0) good = gda_give_results(queue, first, count);
    return gda_agree(good);
}

#endif
