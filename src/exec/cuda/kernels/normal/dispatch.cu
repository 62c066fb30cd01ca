/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch: rows from their source to the outputs of their receivers.
 *
 * Grid: as many blocks as SMs were granted, each with as many warps as fit. No row is written before its receiver has
 * advertised the place. In a fresh dispatch the headers that notify has seen may have done so. Then every block
 * computes the valid advertisement (standing_offer). Otherwise block 0 writes this rank's advertisements into every
 * peer's memory (release), and all blocks poll those of the peers in local memory (acquire).
 *
 * Then each warp takes every n-th token. It looks up the ranks that the token goes to, brings the row in once and sends
 * it to each of them, with its indices, weights and scales. If some rank advertised rings, blocks then take channels.
 * Half of a block's warps put rows into rings, and the others take rows out of this rank's (dispatch_queue.h). The last
 * block to finish posts the completion flags (release) and polls those of all peers (acquire). The kernel ends when all
 * rows are here.
 *
 * The kernel may be launched before the host knows how many rows come. Then each block first lays out this rank's space
 * for them. It leaves at once if they do not fit, or if pools grow before rows move.
 *
 * Bytes of a token: one row is read, and one row is written to each destination. If the GPU has bulk copies (sm_90),
 * the row goes through the warp's stage of shared memory. Otherwise it goes by 16-byte loads and stores, four at once
 * in each lane.
 *
 * Waits: blocks 0 … n wait for advertisements that notify did not bring, ring teams for free slots and for rows, the
 * last block for completion flags. */
#include "exec/cuda/kernels/normal/dispatch_queue.h"

static_assert(sizeof(gpu_target) + 2 * sizeof(gpu_ring) == GPU_DISPATCH_RANK_BYTES, "the host plans shared memory");

/* ---- where rows come to ------------------------------------------------------------------------------------------ */

GPU_FUNC int32_t rows_coming(const gpu_dispatch_args *a)
{
    return ((const int32_t *)(a->routing + a->at.rank_prefix))[GPU_RANKS(&a->world.place) - 1];
}

/* Computes the buffer advertisement of a pool's space for that many rows. False: they do not fit. */
GPU_FUNC bool offer_of_room(const gpu_dispatch_args *a, const ep_room *room, int64_t rows, ep_offer *offer)
{
    int32_t idx_bytes = a->form.idx_dtype ? a->route.idx_bytes : 0;
    const ep_block_shape shape = ep_block_shape_of(&a->form, GPU_ROW_BYTES(a), idx_bytes, rows);
    ep_block_map map = ep_block_map_of(&shape);
    offer->x_offset = room->offset + map.x;
    offer->scales_offset = room->offset + map.scales;
    offer->idx_offset = room->offset + map.idx;
    offer->weights_offset = room->offset + map.weights;
    offer->src_offset = room->offset + map.src;
    offer->rows = (int32_t)rows;
    offer->mode = room->mode;
    return map.total_bytes <= room->bytes;
}

/* Computes the place of the rows in this rank's own space. False: they do not fit. One thread calls it. */
GPU_FUNC bool settle_arrival(const gpu_dispatch_args *a, gpu_arrival *arrival)
{
    const gpu_world *world = &a->world;
    bool fits = offer_of_room(a, &a->room, rows_coming(a), &arrival->offer);
    const ep_offer *offer = &arrival->offer;
    arrival->x = heap_at(&world->place, world->place.rank, offer->x_offset);
    arrival->scales = (uint32_t *)heap_at(&world->place, world->place.rank, offer->scales_offset);
    arrival->idx = a->form.idx_dtype ? heap_at(&world->place, world->place.rank, offer->idx_offset) : NULL;
    arrival->weights = (float *)heap_at(&world->place, world->place.rank, offer->weights_offset);
    bool src = a->form.options & EP_OPTION_SRC_TOKENS;
    arrival->src = src ? (int32_t *)heap_at(&world->place, world->place.rank, offer->src_offset) : NULL;
    return fits;
}

/* ---- buffer advertisements --------------------------------------------------------------------------------------- */

/* Block 0 calls it. The advertisement goes with the header of a cached dispatch, else as the reply to the receivers'
   notify. */
GPU_FUNC void post_offers(const gpu_dispatch_args *a, const gpu_arrival *arrival, uint32_t epoch)
{
    const gpu_world *world = &a->world;
    int32_t ranks = GPU_RANKS(&world->place);
    bool cached = a->form.kind == EP_DISPATCH_CACHED;
    /* The call's own status is among the arguments. One pointer to either status would be slower. */
    const int32_t status = a->checked ? world->place.state->checked.status : a->refusal.status;
    const int32_t *rank_prefix = (const int32_t *)(a->routing + a->at.rank_prefix);
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x) {
        ep_hello *hello = hello_at(world, pe, epoch, world->place.rank);
        ep_reply *reply = reply_at(world, pe, epoch, world->place.rank);
        ep_refusal *refusal = cached ? &hello->refusal : &reply->refusal;
        ep_offer offer = arrival->offer;
        offer.first_row = a->routing && pe > 0 ? rank_prefix[pe - 1] : 0;
        if (cached) hello->form = a->form;
        *(cached ? &hello->offer : &reply->offer) = offer;
        refusal->status = status;
        if (status) copy_words(refusal, a->checked ? &world->place.state->checked : &a->refusal, sizeof *refusal);
        store_release((uint64_t *)(cached ? &hello->flag : &reply->flag), ep_word(epoch, 1));
    }
}

/* Computes the advertisement that rank pe made with its header. False: it made none, or it is not valid. notify has
   seen all headers. */
GPU_FUNC bool standing_offer(const gpu_dispatch_args *a, uint32_t epoch, int32_t pe, ep_offer *offer)
{
    const gpu_world *world = &a->world;
    int32_t ranks = GPU_RANKS(&world->place), before = 0, all = 0;
    if (!ep_tells_room(ranks)) return false;
    /* It is used last, so that it is loaded together with the rest. */
    const uint32_t grows = world->place.state->grows;
    const ep_room room = hello_at(world, world->place.rank, epoch, pe)->room;
    for (int32_t s = 0; s < ranks; s++) {
        const uint8_t *hello = (const uint8_t *)hello_at(world, world->place.rank, epoch, s);
        int32_t sent = ((const int32_t *)(hello + world->space.hello_sent))[pe];
        before += s < world->place.rank ? sent : 0;
        all += sent;
    }
    offer->first_row = before;
    return !grows && room.bytes && offer_of_room(a, &room, all, offer);
}

/* Finds the place of this rank's rows at rank pe. False: the wait for the advertisement was given up. *against: the
   rank rejects the call, or the header that brought the advertisement does not agree. */
GPU_FUNC bool find_target(const gpu_dispatch_args *a, uint32_t epoch, int32_t pe, gpu_target *target, bool *against)
{
    const gpu_world *world = &a->world;
    bool cached = a->form.kind == EP_DISPATCH_CACHED, come = true;
    ep_offer offer;
    if (cached) {
        const ep_hello *hello = hello_at(world, world->place.rank, epoch, pe);
        come = await_flag(&world->place, (const uint64_t *)&hello->flag, epoch, GPU_WAIT_HELLO, pe);
        *against = !hello_agrees(hello, &a->form);
        offer = hello->offer;
    } else if (!standing_offer(a, epoch, pe, &offer)) {
        const ep_reply *reply = reply_at(world, world->place.rank, epoch, pe);
        come = await_flag(&world->place, (const uint64_t *)&reply->flag, epoch, GPU_WAIT_REPLY, pe);
        *against = come && reply->refusal.status;
        offer = reply->offer;
    }
    uint8_t *heap = heap_at(&world->place, pe, 0);
    target->x = heap + offer.x_offset;
    target->scales = heap + offer.scales_offset;
    target->idx = heap + offer.idx_offset;
    target->weights = (float *)(heap + offer.weights_offset);
    target->src = (int32_t *)(heap + offer.src_offset);
    target->first_row = offer.first_row;
    target->rows = offer.rows;
    target->mode = offer.mode;
    return come;
}

/* Every block calls it. It waits for the advertisements of all ranks, and keeps the places of this rank's rows. False:
   no rows are to be moved. */
GPU_FUNC bool accept_offers(const gpu_dispatch_args *a, uint32_t epoch, gpu_target *targets)
{
    const gpu_world *world = &a->world;
    __shared__ int32_t first_against;
    int32_t ranks = GPU_RANKS(&world->place);
    bool cached = a->form.kind == EP_DISPATCH_CACHED, come = true, refused = false;
    if (threadIdx.x == 0) first_against = ranks;
    __syncthreads();
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x) {
        bool against = false;
        come &= find_target(a, epoch, pe, &targets[pe], &against);
        if (against) atomicMin(&first_against, pe);
    }
    if (!__syncthreads_and(come)) return false;
    int32_t against = first_against;
    if (against == ranks) return true;
    if (cached) against = judge_hellos(world, epoch, &refused);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (cached)
            report_hello(world, epoch, against, refused);
        else
            report_reply(world, epoch, against);
    }
    return false;
}

/* Keeps the places of this rank's rows in the handle: the combine fetches them there. */
GPU_FUNC void keep_first_rows(const gpu_dispatch_args *a, const gpu_target *targets)
{
    int32_t *first_row = (int32_t *)(a->routing + a->at.first_row);
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&a->world.place); pe += blockDim.x)
        first_row[pe] = targets[pe].first_row;
}

/* ---- rows of this rank that nobody sends ------------------------------------------------------------------------- */

/* Gives rows from `came` on no experts and no source. Those are rows of worst-case outputs beyond the rows that come,
   or all rows if none come. */
GPU_FUNC void blank_tail(const gpu_dispatch_args *a, const gpu_arrival *arrival, int64_t came)
{
    int32_t topk = GPU_TOPK(a);
    int64_t end = (int64_t)arrival->offer.rows * topk, stride = (int64_t)gridDim.x * blockDim.x;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = came + first; arrival->src && i < arrival->offer.rows; i += stride)
        arrival->src[i] = -1;
    for (int64_t i = came * topk + first; arrival->idx && i < end; i += stride)
        if (a->route.idx_bytes == 8)
            ((int64_t *)arrival->idx)[i] = -1;
        else
            ((int32_t *)arrival->idx)[i] = -1;
}

/* Reports rows that will find no space, also in a dispatch with a handle. One thread calls it. It is out of line, since
   registers are short. It takes 0.7 us to read the arguments by a pointer, so calls that cannot drop any leave it
   out. */
GPU_ASIDE void tell_dropped(const gpu_dispatch_args *a, const gpu_arrival *arrival)
{
    int32_t over = rows_coming(a) - arrival->offer.rows;
    if (over > 0) report_dropped(&a->world, over);
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/* rings: [2][N] shared; stages follow them. */
GPU_FUNC void move_rows(const gpu_dispatch_args *a, const gpu_arrival *arrival, const gpu_target *targets,
                        gpu_ring *rings, uint8_t *stages, uint32_t epoch)
{
    bool queued = false;
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&a->world.place); pe += blockDim.x)
        queued |= targets[pe].mode == EP_MODE_QUEUE;
    send_rows(a, targets, stages);
    stamp_warp(a->stamps, GPU_SENT);
    if (!__syncthreads_or(queued)) return;
    move_queued(a, arrival, targets, rings, epoch);
    stamp_warp(a->stamps, GPU_SENT);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_KERNEL(32 * GPU_DISPATCH_WARPS) ep_dispatch_impl(GPU_ARGS gpu_dispatch_args a)
{
    GPU_LAUNCH_SHARED(uint8_t, shared);
    const gpu_world *world = &a.world;
    gpu_target *targets = (gpu_target *)shared;
    gpu_ring *rings = (gpu_ring *)(targets + GPU_RANKS(&world->place));
    __shared__ gpu_arrival settled;
    const gpu_arrival *arrival = &a.arrival;
    bool cached = a.form.kind == EP_DISPATCH_CACHED, refused = !cached && world->place.state->refused;
    bool stands = a.room.bytes && ep_tells_room(GPU_RANKS(&world->place)); /* notify has made the advertisement */
    if (a.room.bytes) {
        /* Both are loaded at once: blocks that wait for one and then for the other begin later. */
        const bool grows = world->place.state->grows;
        if (!__syncthreads_and(threadIdx.x || (settle_arrival(&a, &settled) && !grows))) return;
        arrival = &settled;
    }
    if (refused) {
        /* Ends as a dispatch without rows does: notify has emptied the routing. */
        if (arrival->idx || arrival->src) blank_tail(&a, arrival, rows_coming(&a));
        return;
    }
    uint32_t epoch = world->place.state->epoch + cached;
    stamp_warp(a.stamps, GPU_STARTED);
    if (blockIdx.x == 0 && !stands) post_offers(&a, arrival, epoch);
    bool go = accept_offers(&a, epoch, targets);
    if (a.may_drop && go && !blockIdx.x && !threadIdx.x) tell_dropped(&a, arrival);
    if (blockIdx.x == 0) tell_opened(&world->place);
    stamp_warp(a.stamps, GPU_OPENED);
    if (go) {
        if (!cached && blockIdx.x == 0) keep_first_rows(&a, targets);
        move_rows(&a, arrival, targets, rings,
                  shared + ep_round(GPU_RANKS(&world->place) * GPU_DISPATCH_RANK_BYTES, EP_ALIGN_BYTES), epoch);
        if (arrival->idx || arrival->src) blank_tail(&a, arrival, rows_coming(&a));
    } else if (cached && (arrival->idx || arrival->src))
        /* The handle's routing stays: later work on the stream looks at these rows. */
        blank_tail(&a, arrival, 0);
    if (!last_block(&world->place, true)) return;
    if (go) exchange_dones(world, epoch);
    if (!go && !cached) empty_routing(a.routing, &a.at);
    if (threadIdx.x == 0) {
        world->place.state->epoch = epoch;
        world->place.state->brought = go;
        world->place.state->dealt = 0;
    }
    stamp_warp(a.stamps, GPU_ENDED);
}
