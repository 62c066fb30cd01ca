/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch: rows from their source to the outputs of their receivers.
 *
 * Grid: as many blocks as SMs were granted, each with as many warps as fit. A warp writes a row only after the row's
 * receiver has advertised the place (ep_advert). In a fresh dispatch the previous kernel (ep_notify) has waited for the
 * headers of all ranks. A receiver's header may contain an early advertisement (ep_free_space). It holds if the rows
 * fit and no pools grow; every block then computes the place from it (standing_advert). Otherwise block 0 of the
 * receiver writes advertisements into every peer's memory (release). All blocks poll those of the peers in their own
 * rank's memory (acquire).
 *
 * Then warps take tokens: first the token of the warp's number, later the next one by a counter (deal_token). A warp
 * looks up the ranks that the token goes to. It loads the row once and stores it at each of them, with its indices,
 * weights and scales. If some rank advertised rings, each block then takes channels. Half of the block's warps put rows
 * into the rings of other ranks, and the others take rows out of this rank's rings (dispatch_queue.h). The last block
 * to finish posts the completion flags (release) and polls those of all peers (acquire). The kernel ends when all rows
 * are here.
 *
 * The kernel may be launched before the host knows how many rows come. Then each block first computes where the rows
 * lie in this rank's free space. If they do not fit, or if pools grow before rows move, all blocks exit without moving
 * a row.
 *
 * Bytes of a token: one row is read, and one row is written to each destination. If the GPU has bulk copies (sm_90),
 * the row goes through the warp's stage of shared memory. Otherwise it goes by 16-byte loads and stores, four at once
 * in each lane.
 *
 * Waits: all blocks wait for the advertisements that did not come with the headers. The warps at a ring wait for free
 * slots or for rows. The last block waits for completion flags. */
#include "exec/cuda/kernels/core/rejection.h"
#include "exec/cuda/kernels/normal/dispatch_queue.h"

static_assert(sizeof(gpu_target) + 2 * sizeof(gpu_ring) == GPU_DISPATCH_RANK_BYTES, "the host plans shared memory");

/* ---- where rows come to ------------------------------------------------------------------------------------------ */

GPU_FUNC int32_t rows_coming(const gpu_dispatch_args *a)
{
    return ((const int32_t *)(a->routing + a->at.rank_prefix))[GPU_RANKS(&a->world.place) - 1];
}

/* Computes the buffer advertisement for `rows` rows at the start of `spare`. Returns false if they do not fit. */
GPU_FUNC bool advert_of_space(const gpu_dispatch_args *a, const ep_free_space *spare, int64_t rows, ep_advert *advert)
{
    int32_t idx_bytes = a->form.idx_dtype ? a->route.idx_bytes : 0;
    const ep_block_shape shape = ep_block_shape_of(&a->form, GPU_ROW_BYTES(a), idx_bytes, rows);
    ep_block_map map = ep_block_map_of(&shape);
    advert->x_offset = spare->offset + map.x;
    advert->scales_offset = spare->offset + map.scales;
    advert->idx_offset = spare->offset + map.idx;
    advert->weights_offset = spare->offset + map.weights;
    advert->src_offset = spare->offset + map.src;
    advert->rows = (int32_t)rows;
    advert->mode = spare->mode;
    return map.total_bytes <= spare->bytes;
}

/* Computes where the rows that come lie in this rank's free space. Returns false if they do not fit. One thread calls
   it. */
GPU_FUNC bool settle_arrival(const gpu_dispatch_args *a, gpu_arrival *arrival)
{
    const gpu_world *world = &a->world;
    bool fits = advert_of_space(a, &a->spare, rows_coming(a), &arrival->advert);
    const ep_advert *advert = &arrival->advert;
    arrival->x = heap_at(&world->place, world->place.rank, advert->x_offset);
    arrival->scales = (uint32_t *)heap_at(&world->place, world->place.rank, advert->scales_offset);
    arrival->idx = a->form.idx_dtype ? heap_at(&world->place, world->place.rank, advert->idx_offset) : NULL;
    arrival->weights = (float *)heap_at(&world->place, world->place.rank, advert->weights_offset);
    bool src = a->form.options & EP_OPTION_SRC_TOKENS;
    arrival->src = src ? (int32_t *)heap_at(&world->place, world->place.rank, advert->src_offset) : NULL;
    return fits;
}

/* ---- indices beside a handle ------------------------------------------------------------------------------------- */

/* Does what ep_check_topk does, for few indices. Block 0 calls it. The result may be read after a barrier of the block.
   It is not inlined, because the kernel has no registers to spare. */
GPU_ASIDE void check_few(const gpu_dispatch_args *a)
{
    gpu_state *state = a->world.place.state;
    const int32_t topk = GPU_TOPK(a), slots = (int32_t)a->tokens * topk;
    bool bad = false;
    for (int32_t i = threadIdx.x; i < slots; i += blockDim.x) {
        const int32_t token = i / topk, k = i % topk;
        const int64_t expert = expert_at(&a->route, token, k);
        if (expert >= -1 && expert < a->form.experts) continue;
        atomicMin(&state->bad_slot, (unsigned long long)token << GPU_SLOT_BITS | (unsigned long long)k);
        bad = true;
    }
    bad = __syncthreads_or(bad);
    if (threadIdx.x) return;
    state->checked.status = 0;
    if (!bad) return;
    /* An atomic load: this SM may have an older value in its cache. */
    reject_index(&a->route, a->form.experts, &state->checked, atomicMin(&state->bad_slot, ~0ull));
    state->bad_slot = ~0ull;
}

/* ---- buffer advertisements --------------------------------------------------------------------------------------- */

/* Sends this rank's advertisement, or its rejection, to all ranks. A cached dispatch sends it in the header, a fresh
   one in the reply to the sender's header. Block 0 calls it. */
GPU_FUNC void post_adverts(const gpu_dispatch_args *a, const gpu_arrival *arrival, uint32_t epoch)
{
    const gpu_world *world = &a->world;
    int32_t ranks = GPU_RANKS(&world->place);
    bool cached = a->form.kind == EP_DISPATCH_CACHED;
    /* The host passes its status in the arguments; the status of a check is in gpu_state. Reading either of them
       through one pointer would be slower. */
    const int32_t status = a->checker ? world->place.state->checked.status : a->rejection.status;
    const int32_t *rank_prefix = (const int32_t *)(a->routing + a->at.rank_prefix);
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x) {
        ep_header *header = header_at(world, pe, epoch, world->place.rank);
        ep_reply *reply = reply_at(world, pe, epoch, world->place.rank);
        ep_rejection *rejection = cached ? &header->rejection : &reply->rejection;
        ep_advert advert = arrival->advert;
        advert.first_row = a->routing && pe > 0 ? rank_prefix[pe - 1] : 0;
        if (cached) header->form = a->form;
        *(cached ? &header->advert : &reply->advert) = advert;
        rejection->status = status;
        if (status) copy_words(rejection, a->checker ? &world->place.state->checked : &a->rejection, sizeof *rejection);
        store_release((uint64_t *)(cached ? &header->flag : &reply->flag), ep_word(epoch, 1));
    }
}

/* Computes rank pe's advertisement from the free space in its header. Returns false if the header has none, if the rows
   do not fit, or if pools grow. ep_notify has waited for all headers. */
GPU_FUNC bool standing_advert(const gpu_dispatch_args *a, uint32_t epoch, int32_t pe, ep_advert *advert)
{
    const gpu_world *world = &a->world;
    int32_t ranks = GPU_RANKS(&world->place), before = 0, all = 0;
    if (!ep_tells_space(ranks)) return false;
    /* This word is used last, so its load overlaps with the other loads. */
    const uint32_t grows = world->place.state->grows;
    const ep_free_space spare = header_at(world, world->place.rank, epoch, pe)->spare;
    for (int32_t s = 0; s < ranks; s++) {
        const uint8_t *header = (const uint8_t *)header_at(world, world->place.rank, epoch, s);
        int32_t sent = ((const int32_t *)(header + world->space.header_sent))[pe];
        before += s < world->place.rank ? sent : 0;
        all += sent;
    }
    advert->first_row = before;
    return !grows && spare.bytes && advert_of_space(a, &spare, all, advert);
}

/* Finds the place of this rank's rows at rank pe. Returns false if the wait for the advertisement was given up. Sets
   *against if rank pe rejects the call, or if the form in its header differs from this rank's. */
GPU_FUNC bool find_target(const gpu_dispatch_args *a, uint32_t epoch, int32_t pe, gpu_target *target, bool *against)
{
    const gpu_world *world = &a->world;
    bool cached = a->form.kind == EP_DISPATCH_CACHED, come = true;
    ep_advert advert;
    if (cached) {
        const ep_header *header = header_at(world, world->place.rank, epoch, pe);
        come = await_flag(&world->place, (const uint64_t *)&header->flag, epoch, GPU_WAIT_HEADER, pe);
        *against = !header_agrees(header, &a->form);
        advert = header->advert;
    } else if (!standing_advert(a, epoch, pe, &advert)) {
        const ep_reply *reply = reply_at(world, world->place.rank, epoch, pe);
        come = await_flag(&world->place, (const uint64_t *)&reply->flag, epoch, GPU_WAIT_REPLY, pe);
        *against = come && reply->rejection.status;
        advert = reply->advert;
    }
    uint8_t *heap = heap_at(&world->place, pe, 0);
    target->x = heap + advert.x_offset;
    target->scales = heap + advert.scales_offset;
    target->idx = heap + advert.idx_offset;
    target->weights = (float *)(heap + advert.weights_offset);
    target->src = (int32_t *)(heap + advert.src_offset);
    target->first_row = advert.first_row;
    target->rows = advert.rows;
    target->mode = advert.mode;
    return come;
}

/* Waits for the advertisements of all ranks, and fills targets[N] with the places of this rank's rows. Returns false if
   no rows may move: a wait was given up, or some rank prevents the call. Every block calls it. */
GPU_FUNC bool accept_adverts(const gpu_dispatch_args *a, uint32_t epoch, gpu_target *targets)
{
    const gpu_world *world = &a->world;
    __shared__ int32_t first_against;
    int32_t ranks = GPU_RANKS(&world->place);
    bool cached = a->form.kind == EP_DISPATCH_CACHED, come = true, rejected = false;
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
    if (cached) against = judge_headers(world, epoch, &rejected);
    if (blockIdx.x == 0 && threadIdx.x == 0 && is_news(world, &a->rejection)) {
        if (cached)
            report_header(world, epoch, against, rejected);
        else
            report_reply(world, epoch, against);
    }
    return false;
}

/* Stores in the handle the number of this rank's first row at each receiver. The combine fetches the rows from
   there. */
GPU_FUNC void keep_first_rows(const gpu_dispatch_args *a, const gpu_target *targets)
{
    int32_t *first_row = (int32_t *)(a->routing + a->at.first_row);
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&a->world.place); pe += blockDim.x)
        first_row[pe] = targets[pe].first_row;
}

/* ---- rows of this rank that nobody sends ------------------------------------------------------------------------- */

/* Sets the expert indices and source tokens of all rows from `came` on to -1. A worst-case output has such rows after
   those that come. If none come, all its rows are of this kind. */
GPU_FUNC void blank_tail(const gpu_dispatch_args *a, const gpu_arrival *arrival, int64_t came)
{
    int32_t topk = GPU_TOPK(a);
    int64_t end = (int64_t)arrival->advert.rows * topk, stride = (int64_t)gridDim.x * blockDim.x;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = came + first; arrival->src && i < arrival->advert.rows; i += stride)
        arrival->src[i] = -1;
    for (int64_t i = came * topk + first; arrival->idx && i < end; i += stride)
        if (a->route.idx_bytes == 8)
            ((int64_t *)arrival->idx)[i] = -1;
        else
            ((int32_t *)arrival->idx)[i] = -1;
}

/* Reports rows that will be dropped because the output is too small, also in a dispatch with a handle. One thread calls
   it. It is not inlined, because the kernel has no registers to spare. Its arguments are then read through a pointer,
   which takes 0.7 us. So only calls that may drop rows call it. */
GPU_ASIDE void tell_dropped(const gpu_dispatch_args *a, const gpu_arrival *arrival)
{
    int32_t over = rows_coming(a) - arrival->advert.rows;
    if (over > 0) report_dropped(&a->world, over);
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/* Sends this rank's rows to the targets that take them directly. If some target takes its rows through rings, then
   moves rows through rings. Shared memory: rings [2][N], and the stages of the warps after them. */
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
    bool cached = a.form.kind == EP_DISPATCH_CACHED, rejected = !cached && world->place.state->rejected;
    bool stands = a.spare.bytes && ep_tells_space(GPU_RANKS(&world->place)); /* the header has advertised `spare` */
    if (a.spare.bytes) {
        /* `grows` is loaded together with the words of settle_arrival. A block that waits for one load and then for the
           other starts later. */
        const bool grows = world->place.state->grows;
        if (!__syncthreads_and(threadIdx.x || (settle_arrival(&a, &settled) && !grows))) return;
        arrival = &settled;
    }
    if (rejected) {
        /* The kernel then ends like one without rows: ep_notify has emptied the routing. */
        if (arrival->idx || arrival->src) blank_tail(&a, arrival, rows_coming(&a));
        return;
    }
    uint32_t epoch = world->place.state->epoch + cached;
    stamp_warp(a.stamps, GPU_STARTED);
    if (a.checker == GPU_CHECKS_ITSELF && blockIdx.x == 0) {
        check_few(&a);
        __syncthreads();
    }
    if (blockIdx.x == 0 && !stands) post_adverts(&a, arrival, epoch);
    bool go = accept_adverts(&a, epoch, targets);
    if (a.may_drop && go && !blockIdx.x && !threadIdx.x) tell_dropped(&a, arrival);
    if (blockIdx.x == 0) tell_opened(&world->place);
    stamp_warp(a.stamps, GPU_OPENED);
    if (go) {
        if (!cached && blockIdx.x == 0) keep_first_rows(&a, targets);
        move_rows(&a, arrival, targets, rings,
                  shared + ep_round(GPU_RANKS(&world->place) * GPU_DISPATCH_RANK_BYTES, EP_ALIGN_BYTES), epoch);
        if (arrival->idx || arrival->src) blank_tail(&a, arrival, rows_coming(&a));
    } else if (cached && (arrival->idx || arrival->src))
        /* The handle's routing stays as it is, so later work on the stream reads these rows. */
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
