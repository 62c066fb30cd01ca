/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch through rings: for receivers whose output their senders cannot reach, or by choice. One team of each block
 * puts rows into the receivers' rings. The other takes rows out of this rank's rings to their final places. A row costs
 * two writes and two reads for each destination. Only dispatch.cu uses it. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_DISPATCH_QUEUE_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_DISPATCH_QUEUE_H

#include "exec/cuda/kernels/normal/dispatch.h"
#include "exec/cuda/kernels/normal/rings.h"

/* Finds the token with that index among this rank's tokens that go to `rank`. One warp calls it: it finds the piece by
   a search 32 wide, then the bit. */
GPU_FUNC int64_t token_at(const gpu_dispatch_args *a, int32_t rank, int32_t index)
{
    const int32_t *befores = (const int32_t *)(a->routing + a->at.befores);
    int32_t ranks = GPU_RANKS(&a->world.place), lane = threadIdx.x % 32;
    int64_t low = 0, high = gpu_pieces(a->tokens);
    while (high - low > 1) {
        int64_t step = (high - low + 31) / 32, p = low + lane * step;
        bool reached = p < high && befores[p * ranks + rank] <= index;
        low += (__popc(__ballot_sync(GPU_ALL, reached)) - 1) * step;
        high = low + step < high ? low + step : high;
    }
    uint32_t mask = ((const uint32_t *)(a->routing + a->at.masks))[low * ranks + rank];
    int32_t before = befores[low * ranks + rank] + __popc(mask & ((1u << lane) - 1));
    uint32_t hit = __ballot_sync(GPU_ALL, (mask >> lane & 1) && before == index);
    return low * GPU_PIECE_TOKENS + __ffs(hit) - 1;
}

/* ---- into the rings ---------------------------------------------------------------------------------------------- */

/* Counts the rows of this rank's channel for each receiver that uses rings. */
GPU_FUNC void open_puts(const gpu_dispatch_args *a, const gpu_team *team, const gpu_target *targets)
{
    const int32_t *prefix = (const int32_t *)(a->routing + a->at.channel_prefix);
    for (int32_t pe = team_thread(team); pe < GPU_RANKS(&a->world.place); pe += team->threads) {
        gpu_ring *ring = &team->rings[pe];
        const int32_t *own = prefix + pe * a->channels;
        ring->first = ep_rows_before_ring(own, a->joined, team->channel);
        ring->all = targets[pe].mode == EP_MODE_QUEUE ? ep_rows_of_ring(own, a->channels, a->joined, team->channel) : 0;
        ring->moved = 0;
    }
}

/* Puts the data that go with the row into its slot. One warp calls it. */
GPU_FUNC void put_rest(const gpu_dispatch_args *a, int64_t token, int32_t rank, uint8_t *slot)
{
    const ep_space *space = &a->world.space;
    int32_t topk = GPU_TOPK(a), lane = threadIdx.x % 32;
    for (int32_t s = lane; s < a->form.scales; s += 32)
        ((uint32_t *)(slot + space->slot_scales))[s] =
            a->scales[token * a->scales_row_pitch + s * a->scales_column_pitch];
    for (int32_t k = lane; a->form.idx_dtype && k < topk; k += 32) {
        gpu_choice choice = choice_at(a, token, k);
        put_choice(a, &choice, rank, slot + space->slot_idx, (float *)(slot + space->slot_weights), k);
    }
    if (lane == 0 && a->form.options & EP_OPTION_SRC_TOKENS) *(int32_t *)(slot + space->slot_src) = (int32_t)token;
}

/* Puts a channel's rows. Rows that the receiver will drop are sent, too, since it counts them. */
GPU_FUNC void put_channel(const gpu_dispatch_args *a, gpu_team *team, uint32_t epoch)
{
    int32_t warp = team_thread(team) / 32, warps = team->threads / 32;
    for (int32_t rows; (rows = turn_open(&a->world, team, epoch)) != 0; turn_close(&a->world, team, epoch)) {
        int32_t parts = team_parts(team, rows);
        for (int32_t i = warp; i < rows * parts; i += warps) {
            gpu_piece p = piece_of(team, i, parts);
            int64_t token = token_at(a, p.peer, team->rings[p.peer].first + p.row);
            uint8_t *slot = ring_slot(&a->world, team, p.peer, p.row);
            copy_part(slot, a->x + token * a->x_pitch_bytes, (int32_t)(GPU_ROW_BYTES(a) / 16), &p);
            if (p.part == 0) put_rest(a, token, p.peer, slot);
        }
    }
}

/* ---- out of the rings -------------------------------------------------------------------------------------------- */

/* Counts the rows that come here from each source's channel, and finds the place of the first of them. */
GPU_FUNC void open_takes(const gpu_dispatch_args *a, const gpu_arrival *arrival, const gpu_team *team)
{
    const int32_t *prefix = (const int32_t *)(a->routing + a->at.recv_channel_prefix);
    const int32_t *rank_prefix = (const int32_t *)(a->routing + a->at.rank_prefix);
    for (int32_t pe = team_thread(team); pe < GPU_RANKS(&a->world.place); pe += team->threads) {
        gpu_ring *ring = &team->rings[pe];
        const int32_t *from = prefix + pe * a->channels;
        int32_t coming = ep_rows_of_ring(from, a->channels, a->joined, team->channel);
        ring->first = ep_prefix_before(rank_prefix, pe) + ep_rows_before_ring(from, a->joined, team->channel);
        ring->all = arrival->advert.mode == EP_MODE_QUEUE ? coming : 0;
        ring->moved = 0;
    }
}

GPU_FUNC void place_piece(const gpu_dispatch_args *a, const gpu_arrival *arrival, const gpu_team *team,
                          const gpu_piece *p)
{
    const ep_space *space = &a->world.space;
    int32_t topk = GPU_TOPK(a), scales = a->form.scales;
    int64_t row = team->rings[p->peer].first + (int64_t)p->row, entry = row * topk;
    if (row >= arrival->advert.rows) return;
    const uint8_t *slot = ring_slot(&a->world, team, p->peer, p->row);
    copy_part(arrival->x + row * GPU_ROW_BYTES(a), slot, (int32_t)(GPU_ROW_BYTES(a) / 16), p);
    if (p->part) return;
    if (scales) copy_lanes(arrival->scales + row * scales, slot + space->slot_scales, scales);
    if (a->form.options & EP_OPTION_SRC_TOKENS) copy_lanes(arrival->src + row, slot + space->slot_src, 1);
    if (!a->form.idx_dtype) return;
    copy_lanes(arrival->idx + entry * a->route.idx_bytes, slot + space->slot_idx, topk * (a->route.idx_bytes / 4));
    if (a->form.weights) copy_lanes(arrival->weights + entry, slot + space->slot_weights, topk);
}

GPU_FUNC void take_channel(const gpu_dispatch_args *a, const gpu_arrival *arrival, gpu_team *team, uint32_t epoch)
{
    int32_t warp = team_thread(team) / 32, warps = team->threads / 32;
    for (int32_t rows; (rows = turn_open(&a->world, team, epoch)) != 0; turn_close(&a->world, team, epoch)) {
        int32_t parts = team_parts(team, rows);
        for (int32_t i = warp; i < rows * parts; i += warps) {
            gpu_piece p = piece_of(team, i, parts);
            place_piece(a, arrival, team, &p);
        }
    }
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* Every block calls it if some rank gets its rows through rings. rings: [2][N] shared. */
GPU_FUNC void move_queued(const gpu_dispatch_args *a, const gpu_arrival *arrival, const gpu_target *targets,
                          gpu_ring *rings, uint32_t epoch)
{
    gpu_team *team = team_of(GPU_RANKS(&a->world.place), rings);
    for (int32_t c = (int32_t)blockIdx.x; c < a->rings; c += (int32_t)gridDim.x) {
        team_begin(team, c);
        if (team->end == GPU_PUT) {
            open_puts(a, team, targets);
            put_channel(a, team, epoch);
        } else {
            open_takes(a, arrival, team);
            take_channel(a, arrival, team, epoch);
        }
    }
}

#endif
