/* SPDX-License-Identifier: Apache-2.0 */
/* The receive of a combine. Each token is summed from the rows at its places. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_RECEIVE_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_RECEIVE_H

#include "exec/cuda/kernels/low_latency/combine_sums.h"
#include "exec/cuda/kernels/low_latency/credits.h"
#include "exec/cuda/kernels/low_latency/log_receive.h"
#include "exec/cuda/kernels/low_latency/outcome.h"

/* This lane's part of what a token awaits: the rank and the place. With sums by rank, lanes are in the order of
   ranks. */
typedef struct ll_gpu_part {
    int32_t rank, place; /* rank -1: the lane has none */
    float weight;
} ll_gpu_part;

/* Returns this lane's part of the token. A token beyond the last has no parts. */
GPU_FUNC ll_gpu_part ll_part_of_slot(const ll_combine_args *a, int32_t token)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32;
    ll_gpu_part part = {-1, lane, 0.0f};
    if (lane >= a->routing.topk || token >= a->routing.tokens) return part;
    const int32_t expert = a->routing.idx[(int64_t)token * LL_BUFFER_TOPK(c) + lane];
    if (expert < 0) return part;
    part.rank = expert / LL_LOCALS(c);
    if (c->form.sum != LL_GPU_REDUCED) part.weight = a->route.weights[token * a->route.weights_pitch + lane];
    return part;
}

/* Makes one part for each rank. Places are numbered in the order in which ranks first come in the token's slots. Lanes
   have their parts in the order of ranks. */
GPU_FUNC ll_gpu_part ll_parts_by_rank(ll_gpu_part slot)
{
    const int32_t lane = threadIdx.x % 32;
    const uint32_t same = __match_any_sync(GPU_ALL, slot.rank < 0 ? -1 - lane : slot.rank);
    const bool first = slot.rank >= 0 && __ffs((int)same) - 1 == lane;
    const uint32_t firsts = __ballot_sync(GPU_ALL, first);
    const int32_t place = __popc(firsts & ((1u << lane) - 1));
    ll_gpu_part part = {-1, 0, 0.0f};
    int32_t below = 0;
    for (uint32_t rest = firsts; rest; rest &= rest - 1)
        below += __shfl_sync(GPU_ALL, slot.rank, __ffs((int)rest) - 1) < slot.rank;
    for (uint32_t rest = firsts; rest; rest &= rest - 1) {
        const int32_t from = __ffs((int)rest) - 1;
        const int32_t order = __shfl_sync(GPU_ALL, below, from), rank = __shfl_sync(GPU_ALL, slot.rank, from);
        const int32_t where = __shfl_sync(GPU_ALL, place, from);
        if (order == lane) {
            part.rank = rank;
            part.place = where;
        }
    }
    return part;
}

/* Waits until the flag of this lane's row is there, if the lane has one, and its warp waits for the team. */
GPU_FUNC ll_gpu_turn ll_await_row(const ll_combine_args *a, const ll_shared *s, const ll_now *now,
                                  const ll_split *split, int32_t rank, uint64_t number)
{
    const ll_gpu_call *c = &a->call;
    const bool clocked = c->wait_ns && threadIdx.x < 32 && rank >= 0;
    const uint64_t since_ns = ll_wait_begin(c), before = clocked ? s->waits[rank] : 0;
    const uint64_t *flag = (const uint64_t *)ll_own(c, ll_row_flag_place(c, number));
    ll_gpu_turn turn = LL_TURN_ON;
    uint64_t seen;
    __syncwarp();
    if (rank >= 0 && (!LL_LEADS || ll_leads(split)))
        turn = ll_await(c, s, flag, now->stamp, GPU_WAIT_MESSAGE, rank, &seen);
    if (clocked && turn == LL_TURN_ON) ll_wait_end(c, s, rank, before, since_ns);
    return turn;
}

/* Adds a token; each warp works by itself, or the team's warps meet (LL_LEADS). part: ll_part_of_slot. False: a wait
   was given up. */
GPU_FUNC bool ll_add_token(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                           int32_t token, ll_gpu_part part)
{
    const ll_gpu_call *c = &a->call;
    const ll_team *team = &split->team;
    const bool reduced = c->form.sum == LL_GPU_REDUCED, words = ll_awaits_words(a);
    if (reduced) part = ll_parts_by_rank(part);
    if (part.rank >= 0 && !ll_sends_data(s, part.rank)) part.rank = -1;
    const int32_t region =
        LL_MASKS ? ll_region_told((uint32_t)s->messages[c->place.rank], ll_shape_here(c).regions) : 0;
    const int32_t place = part.rank < 0 ? 0 : part.place;
    const uint64_t number = ll_number_of(c, now->epoch, region, token, place);
    const ll_gpu_turn turn = words ? LL_TURN_ON : ll_await_row(a, s, now, split, part.rank, number);
    const bool left = __any_sync(GPU_ALL, turn == LL_TURN_LEAVE);
    if (LL_LEADS ? !ll_group_goes_on(s, split, token, left) : left) return false;
    if (LL_MASKS && turn == LL_TURN_LOST) part.rank = -1;
    ll_stamp_time(c, LL_GPU_SEEN);
    __syncwarp();
    const uint32_t mask = __ballot_sync(GPU_ALL, part.rank >= 0);
    const uint64_t at = words ? ll_word_row_place(c, now->epoch, token, place) : ll_row_place(c, number);
    uint8_t *y = a->y + token * a->y_pitch_bytes;
    const ll_addend mine = {ll_own(c, at), part.weight, !reduced, part.rank};
    if (ll_is_coded(a)) {
        ll_log_add_rows(c, team, mask, mine.row, part.weight, y);
        return true;
    }
    return __all_sync(GPU_ALL, ll_add_rows(a, s, now, team, mask, &mine, words, y, 0));
}

/* Receives the call. False: it was not received. */
GPU_FUNC bool ll_combine_receive(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route,
                                 int32_t sending, bool *mismatched)
{
    const int32_t tokens = a->routing.tokens, parts = ll_is_coded(a) ? 4 : 2;
    const ll_split split = ll_split_of(tokens, sending, LL_MASKS ? 1 : parts, LL_MASKS ? 1 : LL_GPU_TEAMS);
    ll_gpu_part part = ll_part_of_slot(a, split.first);
    if (LL_MASKS || a->call.wait_ns || a->call.form.weights) ll_clear_waits(&a->call, s);
    const ll_outcome outcome = ll_take_headers(&a->call, s, now, route, NULL);
    if (outcome.left) return false;
    *mismatched = outcome.mismatched;
    if (blockIdx.x == 0 && threadIdx.x == 0 && outcome.odd) ll_report(&a->call, *now, route);
    for (int32_t token = split.first; token < tokens && !outcome.mismatched; token += split.stride) {
        if (!ll_add_token(a, s, now, &split, token, part)) return false;
        part = ll_part_of_slot(a, token + split.stride);
    }
    return true;
}

/* With masks: sums the tokens again without ranks that have been masked meanwhile. The last block to end calls it. */
GPU_FUNC void ll_combine_mend(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    const ll_split block = {0, 1, 0, 1, {(int32_t)threadIdx.x, LL_GPU_THREADS}, 0, 1};
    bool ok = true;
    while (ok && __syncthreads_or(threadIdx.x == 0 && atomicExch(&c->masks->lost, 0u)))
        for (int32_t token = 0; token < a->routing.tokens && ok; token++)
            ok = !__syncthreads_or(!ll_add_token(a, s, now, &block, token, ll_part_of_slot(a, token)));
}

#endif
