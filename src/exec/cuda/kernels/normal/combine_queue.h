/* SPDX-License-Identifier: Apache-2.0 */
/* Combine with rows that come through rings: those that their owners cannot reach, or by choice. One team of each block
 * puts this rank's rows into the owners' rings, in the owners' token order. The other team adds tokens, up to as many
 * at a time as a ring has slots, once all rows that they need from rings have come. Rows that ranks advertised in place
 * are read there. Only combine.cu uses it, after find_row and its like.
 *
 * For sums of each slot's row (combine_slots.cu), a slot of a ring has the same part of the rows of all of the token's
 * slots. Then such parts are counted, awaited and added instead of tokens; each takes one slot of the ring.
 *
 * The adding team waits for the rings of its channel from all ranks together. Each of these is filled by a team that
 * never waits for one ring alone, and channels ascend everywhere. So there is no cycle of waits. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_COMBINE_QUEUE_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_COMBINE_QUEUE_H

#include "exec/cuda/kernels/normal/rings.h"

/* ---- into the rings ---------------------------------------------------------------------------------------------- */

/* Counts the rows that came from each owner's channel and go back there. Dropped rows do not exist. */
GPU_FUNC void open_returns(const gpu_combine_args *a, const gpu_team *team)
{
    const int32_t *prefix = (const int32_t *)(a->routing + a->at.recv_channel_prefix);
    const int32_t *rank_prefix = (const int32_t *)(a->routing + a->at.rank_prefix);
    int32_t held = rows_held(a);
    for (int32_t pe = team_thread(team); pe < GPU_RANKS(&a->world.place); pe += team->threads) {
        gpu_ring *ring = &team->rings[pe];
        const int32_t *from = prefix + pe * a->channels;
        int32_t before = ep_rows_before_ring(from, a->joined, team->channel);
        int32_t came = ep_rows_of_ring(from, a->channels, a->joined, team->channel);
        int32_t first = ep_prefix_before(rank_prefix, pe) + before, spare = held - first;
        int32_t all = a->advert.mode != EP_MODE_QUEUE || spare < 0 ? 0 : came < spare ? came : spare;
        ring->first = first * ring_parts_of(a);
        ring->all = all * ring_parts_of(a);
        ring->moved = 0;
    }
}

/* Puts the same part of the row of each of a token's slots. */
GPU_FUNC void return_slots(const gpu_combine_args *a, const gpu_piece *p, uint8_t *slot, int64_t row, int32_t part)
{
    const int32_t topk = GPU_TOPK(a), *map = a->map + row * topk;
    int64_t at = part * a->ring_part_bytes, left = GPU_ROW_BYTES(a) - at;
    int32_t vectors = (int32_t)((left < a->ring_part_bytes ? left : a->ring_part_bytes) / 16);
    if (p->part == 0) copy_lanes(slot + a->world.space.slot_idx, map, topk);
    for (int32_t k = 0; k < topk; k++)
        if (map[k] >= 0)
            copy_part(slot + k * a->ring_part_bytes, a->x + map[k] * a->advert.x_pitch_bytes + at, vectors, p);
}

GPU_FUNC void return_channel(const gpu_combine_args *a, gpu_team *team, uint32_t epoch)
{
    int32_t warp = team_thread(team) / 32, warps = team->threads / 32, topk = GPU_TOPK(a);
    for (int32_t rows; (rows = turn_open(&a->world, team, epoch)) != 0; turn_close(&a->world, team, epoch)) {
        int32_t parts = team_parts(team, rows);
        for (int32_t i = warp; i < rows * parts; i += warps) {
            gpu_piece p = piece_of(team, i, parts);
            int32_t number = team->rings[p.peer].first + p.row, part = number % ring_parts_of(a);
            int64_t row = number / ring_parts_of(a);
            uint8_t *slot = ring_slot(&a->world, team, p.peer, p.row);
            if (GPU_BY_SLOT && a->map)
                return_slots(a, &p, slot, row, part);
            else
                copy_part(slot, a->x + row * a->advert.x_pitch_bytes, (int32_t)(GPU_ROW_BYTES(a) / 16), &p);
            if (p.part == 0 && part == 0 && a->form.weights)
                copy_lanes(slot + a->world.space.slot_weights,
                           (const uint8_t *)a->weights + row * a->advert.weights_pitch_bytes, topk);
        }
    }
}

/* ---- out of the rings -------------------------------------------------------------------------------------------- */

/* Counts the rows of this rank's channel that come back through each ring. */
GPU_FUNC void open_sums(const gpu_combine_args *a, const gpu_team *team, const gpu_source *sources)
{
    const int32_t *prefix = (const int32_t *)(a->routing + a->at.channel_prefix);
    for (int32_t pe = team_thread(team); pe < GPU_RANKS(&a->world.place); pe += team->threads) {
        gpu_ring *ring = &team->rings[pe];
        const int32_t *own = prefix + pe * a->channels;
        int32_t first = ep_rows_before_ring(own, a->joined, team->channel);
        int32_t sent = ep_rows_of_ring(own, a->channels, a->joined, team->channel);
        int32_t spare = sources[pe].rows - sources[pe].first_row - first;
        int32_t all = sources[pe].mode != EP_MODE_QUEUE || spare < 0 ? 0 : sent < spare ? sent : spare;
        ring->first = first * ring_parts_of(a);
        ring->all = all * ring_parts_of(a);
        ring->moved = 0;
    }
}

/* Returns the token and part of a number: parts of all tokens have consecutive numbers. */
GPU_FUNC gpu_token token_at(const gpu_combine_args *a, int64_t number)
{
    gpu_token token = {number / ring_parts_of(a), (int32_t)(number % ring_parts_of(a))};
    return token;
}

/* Returns the number of earlier parts of tokens that went to the rank. */
GPU_FUNC int32_t sent_before(const gpu_combine_args *a, int64_t number, int32_t rank)
{
    const int32_t *prefix = (const int32_t *)(a->routing + a->at.channel_prefix);
    const gpu_token token = token_at(a, number);
    if (token.number >= a->tokens) return prefix[(rank + 1) * a->channels - 1] * ring_parts_of(a);
    gpu_hop hop = hop_of(a->routing, &a->at, GPU_RANKS(&a->world.place), token.number, rank);
    return hop.index * ring_parts_of(a) + (hop.goes ? token.part : 0);
}

/* Waits until the rank's ring holds all that parts of tokens before `end` need of it. False: given up. */
GPU_FUNC bool await_rows(const gpu_combine_args *a, const gpu_team *team, int32_t rank, int64_t end, uint32_t epoch)
{
    gpu_ring *ring = &team->rings[rank];
    gpu_waiting p = {0, 0};
    int32_t sent = sent_before(a, end, rank) - ring->first, need = sent < ring->all ? sent : ring->all;
    ring->batch = need - ring->moved;
    if (ring->batch == 0) return true;
    for (;;) {
        uint64_t seen = load_acquire(ring_word_here(&a->world, team, rank));
        if ((int32_t)ep_word_value(seen, epoch) >= need) return true;
        if (!may_wait(&a->world.place, &p, GPU_WAIT_ROW, rank, seen, ep_word(epoch, (uint32_t)need))) return false;
    }
}

/* Adds parts of tokens [begin, end), whose rows are all there. */
GPU_FUNC void add_tokens(const gpu_combine_args *a, const gpu_source *sources, const gpu_team *team, int64_t begin,
                         int64_t end)
{
    int32_t warp = team_thread(team) / 32, warps = team->threads / 32;
    int32_t tokens = (int32_t)(end - begin), parts = team_parts(team, tokens);
    for (int32_t i = warp; i < tokens * parts; i += warps) {
        const gpu_token token = token_at(a, begin + i / parts);
        gpu_find found = find_rows(a, sources, team, &token, 0);
        add_row(a, sources, team, &token, &found, i % parts, parts);
        if (i % parts == 0 && token.part == 0 && a->out_weights) add_weights(a, sources, team, &token);
    }
}

GPU_FUNC void sum_channel(const gpu_combine_args *a, const gpu_source *sources, gpu_team *team, uint32_t epoch)
{
    const int64_t slots = a->world.shape.ring_slots, parts = ring_parts_of(a);
    int64_t end = ep_ring_begin(a->tokens, a->channels, a->joined, team->channel + 1) * parts;
    int64_t number = ep_ring_begin(a->tokens, a->channels, a->joined, team->channel) * parts;
    while (number < end) {
        int64_t next = number + slots < end ? number + slots : end;
        for (int32_t pe = team_thread(team); pe < GPU_RANKS(&a->world.place); pe += team->threads)
            if (!await_rows(a, team, pe, next, epoch)) team->stopped = 1;
        team_meet(team);
        if (team->stopped) return;
        add_tokens(a, sources, team, number, next);
        turn_close(&a->world, team, epoch);
        number = next;
    }
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* Every block calls it if rows of some rank come through rings. rings: [2][N] shared. */
GPU_FUNC void add_queued(const gpu_combine_args *a, const gpu_source *sources, gpu_ring *rings, uint32_t epoch)
{
    gpu_team *team = team_of(GPU_RANKS(&a->world.place), rings);
    for (int32_t c = (int32_t)blockIdx.x; c < a->rings; c += (int32_t)gridDim.x) {
        team_begin(team, c);
        if (team->end == GPU_PUT) {
            open_returns(a, team);
            return_channel(a, team, epoch);
        } else {
            open_sums(a, team, sources);
            sum_channel(a, sources, team, epoch);
        }
    }
}

#endif
