/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch: rows from their source to the outputs of their receivers.
 *
 * Grid: as many blocks as SMs were granted, each of as many warps as fit. Block 0 first writes this rank's offers into
 * every peer's memory (release). All blocks poll the peers' offers in local memory (acquire): no row is written before
 * its receiver has offered the place. Then each warp takes every n-th token: it looks up the ranks that the token goes
 * to, brings the row in once and sends it to each of them, with its indices, weights and scales. Where some rank
 * offered the queue, blocks then take channels: half of a block's warps put rows into rings, the other half takes rows
 * out of this rank's (dispatch_queue.h). The last block to finish posts the dones (release) and polls those of all
 * peers (acquire); the kernel ends when all rows are here.
 *
 * Launched before the host knows how many rows come, each block first lays out the room for them, or leaves at once
 * where they do not fit.
 *
 * Bytes a token: one row read, one row written a destination. The row goes by bulk copies through the warp's stage of
 * shared memory where the GPU has them (sm_90), else by 16-byte loads and stores, four in flight a lane.
 *
 * Who waits: block 0 … n for offers, ring teams for free slots and for rows, the last block for dones; each wait has
 * the deadline of the group. */
#include "exec/cuda/kernels/dispatch_queue.h"

static_assert(sizeof(gpu_target) + 2 * sizeof(gpu_ring) == GPU_DISPATCH_RANK_BYTES, "the host plans shared memory");

/* ---- where rows come to ---------------------------------------------------------------------------------------------
 */

GPU_FUNC int32_t rows_coming(const gpu_dispatch_args *a)
{
    return ((const int32_t *)(a->routing + a->at.rank_prefix))[GPU_RANKS(&a->world) - 1];
}

/* By one thread. False where the rows that come do not fit the room. */
GPU_FUNC bool settle_landing(const gpu_dispatch_args *a, gpu_landing *landing)
{
    ep_block_shape shape = a->room.shape;
    shape.rows = shape.x_rows = rows_coming(a);
    ep_block_map map = ep_block_map_of(&shape);
    *landing = a->landing;
    landing->offer.rows = (int32_t)shape.rows;
    landing->offer.x_offset += map.x;
    landing->offer.scales_offset += map.scales;
    landing->offer.idx_offset += map.idx;
    landing->offer.weights_offset += map.weights;
    landing->x += map.x;
    landing->scales += map.scales / sizeof *landing->scales;
    if (landing->idx) landing->idx += map.idx;
    landing->weights += map.weights / sizeof *landing->weights;
    return map.total_bytes <= a->room.bytes;
}

/* ---- offers ---------------------------------------------------------------------------------------------------------
 */

/* By block 0. With the hello of a cached dispatch, else as the reply to the receivers' notify. */
GPU_FUNC void post_offers(const gpu_dispatch_args *a, const gpu_landing *landing, uint32_t epoch)
{
    const gpu_world *world = &a->world;
    int32_t ranks = GPU_RANKS(world);
    bool cached = a->form.kind == EP_DISPATCH_CACHED;
    const int32_t *rank_prefix = (const int32_t *)(a->routing + a->at.rank_prefix);
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x) {
        ep_hello *hello = hello_at(world, pe, epoch, world->rank);
        ep_reply *reply = reply_at(world, pe, epoch, world->rank);
        ep_offer offer = landing->offer;
        offer.first_row = a->routing && pe > 0 ? rank_prefix[pe - 1] : 0;
        if (cached) hello->form = a->form;
        *(cached ? &hello->offer : &reply->offer) = offer;
        copy_words(cached ? &hello->refusal : &reply->refusal, &a->refusal,
                   a->refusal.status ? sizeof a->refusal : sizeof a->refusal.status);
        store_release((uint64_t *)(cached ? &hello->flag : &reply->flag), ep_word(epoch, 1));
    }
}

/* By every block: waits for the offers of all, and notes where this rank's rows go. False: no rows are to be moved. */
GPU_FUNC bool accept_offers(const gpu_dispatch_args *a, uint32_t epoch, gpu_target *targets)
{
    const gpu_world *world = &a->world;
    int32_t ranks = GPU_RANKS(world);
    bool cached = a->form.kind == EP_DISPATCH_CACHED, come = true;
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x) {
        const ep_hello *hello = hello_at(world, world->rank, epoch, pe);
        const ep_reply *reply = reply_at(world, world->rank, epoch, pe);
        come &= await_flag(world, (const uint64_t *)(cached ? &hello->flag : &reply->flag), epoch,
                           cached ? GPU_WAIT_HELLO : GPU_WAIT_REPLY, pe);
        const ep_offer *offer = cached ? &hello->offer : &reply->offer;
        targets[pe].x = heap_at(world, pe, offer->x_offset);
        targets[pe].scales = heap_at(world, pe, offer->scales_offset);
        targets[pe].idx = heap_at(world, pe, offer->idx_offset);
        targets[pe].weights = (float *)heap_at(world, pe, offer->weights_offset);
        targets[pe].first_row = offer->first_row;
        targets[pe].rows = offer->rows;
        targets[pe].mode = offer->mode;
    }
    if (!__syncthreads_and(come)) return false;
    bool refused = false;
    int32_t against = cached ? judge_hellos(world, epoch, &refused) : judge_replies(world, epoch);
    if (against >= 0 && blockIdx.x == 0 && threadIdx.x == 0) {
        if (cached)
            report_hello(world, epoch, against, refused);
        else
            report_reply(world, epoch, against);
    }
    return against < 0;
}

/* The handle keeps where this rank's rows went: the combine fetches them there. */
GPU_FUNC void keep_first_rows(const gpu_dispatch_args *a, const gpu_target *targets)
{
    int32_t *first_row = (int32_t *)(a->routing + a->at.first_row);
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&a->world); pe += blockDim.x)
        first_row[pe] = targets[pe].first_row;
}

/* ---- rows of this rank that nobody sends ----------------------------------------------------------------------------
 */

/* Worst-case outputs: rows beyond those that come have no experts. */
GPU_FUNC void blank_tail(const gpu_dispatch_args *a, const gpu_landing *landing)
{
    int32_t topk = GPU_TOPK(a);
    int64_t came = rows_coming(a);
    int64_t end = (int64_t)landing->offer.rows * topk, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = came * topk + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += stride)
        if (a->route.idx_bytes == 8)
            ((int64_t *)landing->idx)[i] = -1;
        else
            ((int32_t *)landing->idx)[i] = -1;
}

/* Rows that will find no room; by a dispatch with a handle, too. */
GPU_FUNC void tell_dropped(const gpu_dispatch_args *a, const gpu_landing *landing)
{
    if (blockIdx.x || threadIdx.x) return;
    int32_t over = rows_coming(a) - landing->offer.rows;
    if (over > 0) report_dropped(&a->world, over);
}

/* ---- all rows
 * --------------------------------------------------------------------------------------------------------
 */

/* rings: [2][N] shared; stages behind them. */
GPU_FUNC void move_rows(const gpu_dispatch_args *a, const gpu_landing *landing, const gpu_target *targets,
                        gpu_ring *rings, uint8_t *stages, uint32_t epoch)
{
    bool queued = false;
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&a->world); pe += blockDim.x)
        queued |= targets[pe].mode == EP_MODE_QUEUE;
    send_rows(a, targets, stages);
    if (__syncthreads_or(queued)) move_queued(a, landing, targets, rings, epoch);
}

/* ---- the kernel -----------------------------------------------------------------------------------------------------
 */

GPU_FUNC void stamp(const gpu_dispatch_args *a, int32_t which)
{
    if (a->stamps && threadIdx.x == 0) a->stamps[which * gridDim.x + blockIdx.x] = clock_now();
}

extern "C" __global__ void __launch_bounds__(32 * GPU_DISPATCH_WARPS, 1)
    ep_dispatch(const __grid_constant__ gpu_dispatch_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const gpu_world *world = &a.world;
    gpu_target *targets = (gpu_target *)shared;
    gpu_ring *rings = (gpu_ring *)(targets + GPU_RANKS(world));
    __shared__ gpu_landing settled;
    const gpu_landing *landing = &a.landing;
    bool cached = a.form.kind == EP_DISPATCH_CACHED, refused = !cached && world->state->refused;
    if (a.room.bytes) {
        if (!__syncthreads_and(threadIdx.x || settle_landing(&a, &settled))) return;
        landing = &settled;
    }
    if (refused) {
        /* As a dispatch that brought nothing: notify has emptied the routing. */
        if (landing->idx) blank_tail(&a, landing);
        return;
    }
    uint32_t epoch = world->state->epoch + cached;
    stamp(&a, 0);
    if (blockIdx.x == 0) post_offers(&a, landing, epoch);
    bool go = accept_offers(&a, epoch, targets);
    if (go) tell_dropped(&a, landing);
    if (blockIdx.x == 0) tell_opened(world);
    stamp(&a, 1);
    if (go) {
        if (!cached && blockIdx.x == 0) keep_first_rows(&a, targets);
        move_rows(&a, landing, targets, rings,
                  shared + ep_round(GPU_RANKS(world) * GPU_DISPATCH_RANK_BYTES, EP_ALIGN_BYTES), epoch);
        if (landing->idx) blank_tail(&a, landing);
    }
    stamp(&a, 2);
    if (!last_block(world)) return;
    if (go) exchange_dones(world, epoch);
    if (!go && !cached) empty_routing(a.routing, &a.at);
    if (threadIdx.x == 0) world->state->epoch = epoch;
    stamp(&a, 3);
}
