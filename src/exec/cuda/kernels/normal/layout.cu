/* SPDX-License-Identifier: Apache-2.0 */
/* Layout and notify: where tokens go, and what comes here.
 *
 * Grid: a block for every 16 pieces of 32 tokens, at least one and at most num_sms. All blocks make the layout: a warp
 * takes a piece, and a lane a token. For each rank the warp's ballot is the piece's mask. Experts are counted in shared
 * memory first. The layout reads topk_idx for the counts and again, from the cache, for each 32 ranks and for a copy of
 * it. It writes 4 bytes for each piece and rank, and the copy. Then all blocks but the last to finish leave. They do
 * not wait for it, so the grid need not fit on the GPU.
 *
 * The last block goes on by itself. (1) A warp for each rank sums the masks' bits over the pieces. (2) A warp for each
 * peer writes the header and its flag (release) into the peer's memory. (3) A thread for each source polls the source's
 * flag here (acquire). This is the only wait, for every rank's notify. (4) Counts go to the handle and, if the call has
 * a ticket, to the host's pinned memory, the ticket last. Then they go to the caller's memory, if it wants them.
 *
 * Registers: under 100; shared memory, dynamic: [2][N] counts and, if there is space for them, [E] counters.
 *
 * ep_check_topk: a thread for each slot, for a dispatch with a handle that carries many indices; it reads them once. A
 * dispatch checks few indices itself (dispatch.cu). */
#include "exec/cuda/kernels/core/rejection.h"
#include "exec/cuda/kernels/normal/slots.h"
#include "exec/cuda/kernels/normal/tell.h"

/* ---- layout ------------------------------------------------------------------------------------------------------ */

GPU_FUNC uint32_t ranks_by_hand(const gpu_notify_args *a, int64_t token, int32_t word, int32_t ranks)
{
    uint32_t bits = 0;
    const uint8_t *in_rank = a->route.token_in_rank + token * a->route.token_in_rank_pitch + word * 32;
    for (int32_t r = 0; r < 32 && word * 32 + r < ranks; r++)
        bits |= (uint32_t)(in_rank[r] != 0) << r;
    return bits;
}

/* If the caller says which ranks get a token, an expert gets it only if its rank does. */
GPU_FUNC bool reaches(const gpu_notify_args *a, int64_t token, int64_t expert)
{
    if (!a->route.token_in_rank) return true;
    int64_t rank = expert / (a->experts / GPU_RANKS(&a->world.place));
    return a->route.token_in_rank[token * a->route.token_in_rank_pitch + rank] != 0;
}

/* Counts one entry of topk_idx; the smallest bad one is kept. */
GPU_FUNC void count_slot(const gpu_notify_args *a, int64_t token, int32_t k, int64_t expert, int32_t *counts)
{
    if (expert >= 0 && expert < a->experts) {
        if (reaches(a, token, expert)) atomicAdd(&counts[expert], 1);
    } else if (expert != -1)
        atomicMin(&a->world.place.state->bad_slot, (unsigned long long)token << GPU_SLOT_BITS | (unsigned long long)k);
}

GPU_FUNC void count_experts(const gpu_notify_args *a, int64_t token, int32_t *counts)
{
    for (int32_t first = 0; first < a->topk; first += GPU_LANE_SLOTS) {
        int64_t experts[GPU_LANE_SLOTS];
        load_slots(&a->route, a->topk, token, first, experts);
#pragma unroll
        for (int32_t i = 0; i < GPU_LANE_SLOTS; i++)
            count_slot(a, token, first + i, experts[i], counts);
    }
}

/* Keeps the owners of a token's slots, for sums that go by slots. Indices out of range are rejected later. */
GPU_FUNC void keep_owners(const gpu_notify_args *a, int64_t token, int32_t locals)
{
    uint16_t *owners = (uint16_t *)(a->routing + a->at.owners) + token * a->topk;
    for (int32_t k = 0; k < a->topk; k++) {
        int64_t expert = expert_at(&a->route, token, k);
        bool is = expert >= 0 && expert < a->experts;
        owners[k] = (uint16_t)(is ? (uint32_t)((int32_t)expert / locals) : EP_NO_OWNER);
    }
}

/* Copies a token's slots, for a caller that may write to its own array after this call. */
GPU_FUNC void copy_slots(const gpu_notify_args *a, int64_t token)
{
    for (int32_t k = 0; k < a->topk; k++) {
        int64_t expert = expert_at(&a->route, token, k), to = token * a->topk + k;
        if (a->route.idx_bytes == 8)
            ((int64_t *)a->idx_copy)[to] = expert;
        else
            ((int32_t *)a->idx_copy)[to] = (int32_t)expert;
    }
}

GPU_FUNC void layout_piece(const gpu_notify_args *a, int64_t piece, int32_t *counts)
{
    uint32_t *masks = (uint32_t *)(a->routing + a->at.masks);
    int32_t ranks = GPU_RANKS(&a->world.place), lane = threadIdx.x % 32, locals = a->experts / ranks;
    const gpu_teams by_rank = {a->topk, a->experts, locals};
    int64_t token = piece * GPU_PIECE_TOKENS + lane;
    bool here = token < a->tokens;
    if (here && a->route.idx) count_experts(a, token, counts);
    if (here && a->keeps_slots) keep_owners(a, token, locals);
    if (here && a->idx_copy) copy_slots(a, token);
    for (int32_t word = 0; word * 32 < ranks; word++) {
        uint32_t bits = 0, mine = 0;
        if (here && a->route.token_in_rank)
            bits = ranks_by_hand(a, token, word, ranks);
        else if (here)
            bits = teams_of(&a->route, &by_rank, token, word);
        for (int32_t r = 0; r < 32 && word * 32 + r < ranks; r++) {
            uint32_t mask = __ballot_sync(GPU_ALL, bits >> r & 1);
            if (lane == r) mine = mask;
        }
        if (word * 32 + lane < ranks) masks[piece * ranks + word * 32 + lane] = mine;
    }
}

/* The whole grid calls it. block_counts: [E] shared, if the host has found space for them. */
GPU_FUNC void lay_out(const gpu_notify_args *a, int32_t *block_counts)
{
    int32_t *counts = a->shared_counts ? block_counts : a->expert_counts;
    block_counts_open(block_counts, a->shared_counts ? a->experts : 0);
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32), pieces = gpu_pieces(a->tokens);
    for (int64_t p = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; p < pieces; p += warps)
        layout_piece(a, p, counts);
    block_counts_close(block_counts, a->shared_counts ? a->experts : 0, a->expert_counts);
}

GPU_FUNC void stamp(const gpu_notify_args *a, int32_t moment)
{
    if (a->stamps && threadIdx.x == 0) a->stamps[moment] = clock_now();
}

/* ---- notify: what this rank sends -------------------------------------------------------------------------------- */

/* The number of pieces whose masks a lane loads at once. */
#define GPU_LANE_PIECES 4

/* Computes the number of tokens that go to `rank` before each piece. Returns the sum. One warp calls it. */
GPU_FUNC int32_t sum_pieces(const gpu_notify_args *a, int32_t rank)
{
    const uint32_t *masks = (const uint32_t *)(a->routing + a->at.masks);
    int32_t *befores = (int32_t *)(a->routing + a->at.befores);
    int32_t ranks = GPU_RANKS(&a->world.place), lane = threadIdx.x % 32, total = 0;
    int64_t pieces = gpu_pieces(a->tokens);
    for (int64_t first = 0; first < pieces; first += 32 * GPU_LANE_PIECES) {
        int64_t p = first + lane * GPU_LANE_PIECES;
        int32_t own[GPU_LANE_PIECES], all = 0;
#pragma unroll
        for (int32_t i = 0; i < GPU_LANE_PIECES; i++)
            own[i] = p + i < pieces ? __popc(masks[(p + i) * ranks + rank]) : 0;
#pragma unroll
        for (int32_t i = 0; i < GPU_LANE_PIECES; i++)
            all += own[i];
        int32_t sum = all;
        for (int32_t step = 1; step < 32; step *= 2) {
            int32_t below = __shfl_up_sync(GPU_ALL, sum, step);
            if (lane >= step) sum += below;
        }
        int32_t before = total + sum - all;
#pragma unroll
        for (int32_t i = 0; i < GPU_LANE_PIECES; i++) {
            if (p + i < pieces) befores[(p + i) * ranks + rank] = before;
            before += own[i];
        }
        total += __shfl_sync(GPU_ALL, sum, 31);
    }
    return total;
}

/* Returns the number of tokens before `token` that go to `rank`. */
GPU_FUNC int32_t count_before(const gpu_notify_args *a, int64_t token, int32_t rank, int32_t total)
{
    if (token >= a->tokens) return total;
    return hop_of(a->routing, &a->at, GPU_RANKS(&a->world.place), token, rank).index;
}

/* Fills the layout part of the handle. sent: [N] shared. */
GPU_FUNC void close_layout(const gpu_notify_args *a, int32_t *sent)
{
    int32_t ranks = GPU_RANKS(&a->world.place), channels = a->channels;
    for (int32_t r = threadIdx.x / 32; r < ranks; r += blockDim.x / 32) {
        int32_t total = sum_pieces(a, r);
        if (threadIdx.x % 32 == 0) sent[r] = total;
    }
    __syncthreads();
    int32_t *prefix = (int32_t *)(a->routing + a->at.channel_prefix);
    for (int32_t i = threadIdx.x; i < ranks * channels; i += blockDim.x) {
        int64_t end = a->channel_tokens * (i % channels + 1);
        prefix[i] = count_before(a, end, i / channels, sent[i / channels]);
    }
    __syncthreads();
}

/* ---- notify: headers --------------------------------------------------------------------------------------------- */

/* One warp calls it. sent: [N] shared. */
GPU_FUNC void post_header(const gpu_notify_args *a, uint32_t epoch, int32_t pe, const ep_rejection *rejection,
                          const int32_t *sent)
{
    const gpu_world *world = &a->world;
    ep_header *header = header_at(world, pe, epoch, world->place.rank);
    int32_t lane = threadIdx.x % 32, channels = a->channels, locals = a->local_experts;
    uint32_t *form = (uint32_t *)&header->form, *reason = (uint32_t *)&header->rejection;
    for (uint32_t i = lane; i < sizeof(ep_form) / 4; i += 32)
        form[i] = ((const uint32_t *)&a->form)[i];
    uint32_t words = rejection->status ? sizeof(ep_rejection) / 4 : 1;
    for (uint32_t i = lane; i < words; i += 32)
        reason[i] = ((const uint32_t *)rejection)[i];
    int32_t *counts = (int32_t *)(header + 1);
    const int32_t *prefix = (const int32_t *)(a->routing + a->at.channel_prefix);
    for (int32_t c = lane; a->routing && c < channels; c += 32)
        counts[c] = prefix[pe * channels + c];
    for (int32_t e = lane; a->routing && e < locals; e += 32)
        counts[channels + e] = a->expert_counts[pe * locals + e];
    int32_t ranks = GPU_RANKS(&world->place);
    int32_t *all = (int32_t *)((uint8_t *)header + world->space.header_sent);
    bool to_all = ep_tells_space(ranks) || a->form.kind == EP_ROUTE;
    for (int32_t r = lane; a->routing && to_all && r < ranks; r += 32)
        all[r] = sent[r];
    if (lane == 0) {
        header->spare = a->spare;
        if (!ep_tells_space(ranks)) header->spare.bytes = 0;
    }
    __syncwarp();
    if (lane == 0) store_release((uint64_t *)&header->flag, ep_word(epoch, 1));
}

/* The result of the exchange. */
typedef struct gpu_exchange {
    bool come;       /* all headers have come */
    int32_t against; /* the rank that rejects or differs, or -1 */
    bool rejected;   /* it rejects; else its form differs from rank 0's */
    bool grows;      /* all go on, and pools grow before rows move (ep_growth) */
    bool in_vain;    /* pools would grow, but not all hosts wait */
} gpu_exchange;

GPU_FUNC const int32_t *counts_from(const gpu_notify_args *a, uint32_t epoch, int32_t source)
{
    return (const int32_t *)(header_at(&a->world, a->world.place.rank, epoch, source) + 1);
}

/* Posts to all ranks, and waits for all. sent, received: [N] shared, tokens to and from each rank. */
GPU_FUNC gpu_exchange exchange_headers(const gpu_notify_args *a, uint32_t epoch, const ep_rejection *rejection,
                                       const int32_t *sent, int32_t *received)
{
    const gpu_world *world = &a->world;
    gpu_exchange end = {true, -1, false, false, false};
    int32_t ranks = GPU_RANKS(&world->place), warp = threadIdx.x / 32, warps = blockDim.x / 32;
    bool come = true, agree = true, can = true, requested = false;
    for (int32_t i = warp; i < ranks; i += warps)
        post_header(a, epoch, (world->place.rank + 1 + i) % ranks, rejection, sent);
    stamp(a, 2);
    for (int32_t pe = threadIdx.x; pe < ranks; pe += blockDim.x) {
        const ep_header *header = header_at(world, world->place.rank, epoch, pe);
        come &= await_flag(&world->place, (const uint64_t *)&header->flag, epoch, GPU_WAIT_HEADER, pe);
        /* Loaded together with the form: after the store, the load would be awaited separately. */
        const int32_t growth = header->spare.growth;
        agree &= header_agrees(header, &a->form);
        received[pe] = counts_from(a, epoch, pe)[a->channels - 1];
        can &= growth != EP_GROWTH_NONE;
        requested |= growth == EP_GROWTH_REQUESTED;
    }
    if (__syncthreads_and(come && agree && !requested)) return end;
    end.come = __syncthreads_and(come);
    if (end.come && !__syncthreads_and(agree)) end.against = judge_headers(world, epoch, &end.rejected);
    end.grows = __syncthreads_and(come && agree && can);
    end.in_vain = __syncthreads_or(requested) && !end.grows;
    return end;
}

/* ---- notify: what comes here ------------------------------------------------------------------------------------- */

/* Fills the notify part of the handle. Copies all counts for the host, but only if it asks for this call: else it may
   still be reading those of another one. received: [N] shared. */
GPU_FUNC void collect(const gpu_notify_args *a, uint32_t epoch, const int32_t *received)
{
    int32_t ranks = GPU_RANKS(&a->world.place), channels = a->channels, locals = a->local_experts;
    int32_t *rank_prefix = (int32_t *)(a->routing + a->at.rank_prefix);
    int32_t *recv_prefix = (int32_t *)(a->routing + a->at.recv_channel_prefix);
    int32_t *recv_experts = (int32_t *)(a->routing + a->at.recv_expert_counts);
    const int32_t *sent_prefix = (const int32_t *)(a->routing + a->at.channel_prefix);
    int32_t *host = a->world.place.ticket ? a->told : NULL;
    for (int32_t s = threadIdx.x; s < ranks; s += blockDim.x) {
        int32_t total = 0;
        for (int32_t i = 0; i <= s; i++)
            total += received[i];
        rank_prefix[s] = total;
        if (host) host[s] = total;
    }
    for (int32_t i = threadIdx.x; i < ranks * channels; i += blockDim.x) {
        recv_prefix[i] = counts_from(a, epoch, i / channels)[i % channels];
        if (host) host[ranks + i] = sent_prefix[i];
    }
    for (int32_t e = threadIdx.x; e < locals; e += blockDim.x) {
        int32_t sum = 0;
        for (int32_t s = 0; s < ranks; s++)
            sum += counts_from(a, epoch, s)[channels + e];
        recv_experts[e] = sum;
        if (host) host[ranks + ranks * channels + e] = sum;
    }
}

/* Finds where this rank's rows begin at each rank, for a route: after those of the ranks before it. A dispatch learns
   it from the buffer advertisements. */
GPU_FUNC void find_first_rows(const gpu_notify_args *a, uint32_t epoch)
{
    const gpu_world *world = &a->world;
    int32_t *first_row = (int32_t *)(a->routing + a->at.first_row);
    for (int32_t pe = threadIdx.x; pe < GPU_RANKS(&world->place); pe += blockDim.x) {
        int32_t before = 0;
        for (int32_t s = 0; s < world->place.rank; s++) {
            const uint8_t *header = (const uint8_t *)header_at(world, world->place.rank, epoch, s);
            before += ((const int32_t *)(header + world->space.header_sent))[pe];
        }
        first_row[pe] = before;
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* The last block calls it if the caller's counts are here. The first bad count is stored as bad_slot, since there are
   no slots then. */
GPU_FUNC void check_counts(const gpu_notify_args *a)
{
    const int32_t most = ep_most_of_expert(GPU_RANKS(&a->world.place));
    for (int32_t e = threadIdx.x; e < a->experts; e += blockDim.x)
        if (a->expert_counts[e] < 0 || a->expert_counts[e] > most)
            atomicMin(&a->world.place.state->bad_slot, (unsigned long long)e);
    __syncthreads();
}

/* Finds what this rank tells the others: the rejection that came with the call, or the first bad index. The last warp
   does it, since it has the least to sum. */
GPU_FUNC void find_rejection(const gpu_notify_args *a, ep_rejection *rejection)
{
    if (threadIdx.x != blockDim.x - 1) return;
    unsigned long long bad_slot = a->world.place.state->bad_slot;
    rejection->status = a->rejection.status;
    if (a->rejection.status)
        copy_words(rejection, &a->rejection, sizeof *rejection);
    else if (a->check_counts && bad_slot != ~0ull)
        reject_count(rejection, (int32_t)bad_slot, a->expert_counts[bad_slot],
                     ep_most_of_expert(GPU_RANKS(&a->world.place)));
    else if (bad_slot != ~0ull)
        reject_index(&a->route, a->form.experts, rejection, bad_slot);
}

/* Writes the state for the next call, and the report for the host, which may be waiting. One thread calls it, after the
   block has met. */
GPU_FUNC void tell_host(const gpu_notify_args *a, uint32_t epoch, const gpu_exchange *end)
{
    const gpu_world *world = &a->world;
    world->place.state->epoch = epoch;
    world->place.state->rejected = !end->come || end->against >= 0;
    world->place.state->grows = end->grows;
    world->place.state->bad_slot = ~0ull;
    if (end->against >= 0 && is_news(world, &a->rejection)) report_header(world, epoch, end->against, end->rejected);
    if (end->in_vain) world->place.report->requested = (uint64_t)epoch + 1;
    if (!world->place.ticket) return;
    if (end->against >= 0) world->place.report->counts_rejected = world->place.ticket;
    if (end->grows) world->place.report->counts_grow = world->place.ticket;
    store_release(&world->place.report->counts_ready, world->place.ticket);
}

/* The host waits for its counts alone, so they come before the counters are cleared for the next call. */
GPU_FUNC void close_notify(const gpu_notify_args *a, uint32_t epoch, const gpu_exchange *end)
{
    const gpu_world *world = &a->world;
    __syncthreads();
    if (threadIdx.x == 0) tell_host(a, epoch, end);
    for (int32_t e = threadIdx.x; e < world->shape.local_experts * GPU_RANKS(&world->place); e += blockDim.x)
        a->expert_counts[e] = 0;
}

GPU_KERNEL(512) ep_notify(GPU_ARGS gpu_notify_args a)
{
    GPU_LAUNCH_SHARED(int32_t, per_rank);
    __shared__ ep_rejection rejection;
    const gpu_world *world = &a.world;
    int32_t *sent = per_rank, *received = per_rank + GPU_RANKS(&world->place);
    if (blockIdx.x == 0) stamp(&a, 0);
    if (a.routing) lay_out(&a, per_rank + GPU_NOTIFY_RANK_WORDS * GPU_RANKS(&world->place));
    if (!last_block(&world->place, false)) return;
    stamp(&a, 1);
    uint32_t epoch = world->place.state->epoch + 1;
    if (a.check_counts) check_counts(&a);
    find_rejection(&a, &rejection);
    if (a.routing) close_layout(&a, sent);
    __syncthreads();
    gpu_exchange end = exchange_headers(&a, epoch, &rejection, sent, received);
    stamp(&a, 3);
    const bool goes_on = end.come && end.against < 0 && a.routing;
    if (goes_on) {
        collect(&a, epoch, received);
        if (a.form.kind == EP_ROUTE) find_first_rows(&a, epoch);
    } else
        empty_routing(a.routing, &a.at);
    close_notify(&a, epoch, &end);
    if (goes_on && a.tell.ranks && threadIdx.x < 32) tell_counts(&a.tell);
    stamp(&a, 4);
}

/* ---- beside a handle --------------------------------------------------------------------------------------------- */

/* All blocks look; the last one to finish reports the result. No block waits. */
GPU_KERNEL(512) ep_check_topk(GPU_ARGS gpu_check_args a)
{
    gpu_state *state = a.world.place.state;
    int64_t slots = a.tokens * a.topk, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < slots; i += stride) {
        int64_t token = i / a.topk, expert = expert_at(&a.route, token, (int32_t)(i % a.topk));
        if (expert < -1 || expert >= a.experts)
            atomicMin(&state->bad_slot, (unsigned long long)token << GPU_SLOT_BITS | (unsigned long long)(i % a.topk));
    }
    if (!last_block(&a.world.place, false) || threadIdx.x) return;
    state->checked.status = 0;
    if (state->bad_slot != ~0ull) reject_index(&a.route, a.experts, &state->checked, state->bad_slot);
    state->bad_slot = ~0ull;
}
