/* SPDX-License-Identifier: Apache-2.0 */
/* The send of a dispatch. Each token finds its messages, and its header and row go there. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_SEND_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_SEND_H

#include "exec/cuda/kernels/low_latency/credits.h"
#include "exec/cuda/kernels/low_latency/dispatch_receive.h"
#include "exec/cuda/kernels/low_latency/times.h"

/* ---- one token --------------------------------------------------------------------------------------------------- */

/* A token's slots in s->notes: the number of each slot's row among this rank's rows for the expert. For the token's
   j-th rank: the number of its message, and the rank itself. s->places[j] is where the row goes; 0: it goes nowhere. */
#define LL_NOTE_ROW     0
#define LL_NOTE_MESSAGE 1
#define LL_NOTE_RANK    2

GPU_FUNC int32_t *ll_notes(const ll_shared *s, int32_t which)
{
    return s->notes + which * LL_MOST_TOPK;
}

/* Finds the place of the token's slot k. One warp calls it. False: a wait was given up. */
GPU_FUNC bool ll_place_slot(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                            int32_t token, int32_t k)
{
    const ll_gpu_call *c = &a->call;
    const int32_t slots = LL_BUFFER_TOPK(c), locals = LL_LOCALS(c), lane = threadIdx.x % 32;
    const int32_t expert = t->idx[k * t->pitch + token];
    if (expert < 0) return true;
    const int32_t rank = expert / locals;
    const uint32_t before = ll_count_before(t, slots, token, expert, locals);
    const int32_t mine = lane < slots ? t->idx[lane * t->pitch + token] : -1;
    const uint32_t named = __ballot_sync(GPU_ALL, mine == expert) & ((1u << k) - 1);
    if (lane == 0) ll_notes(s, LL_NOTE_ROW)[k] = (int32_t)(before & 0xffffu) + __popc(named);
    const int32_t to = mine < 0 ? -1 - lane : mine / locals;
    const uint32_t same = __match_any_sync(GPU_ALL, to);
    const uint32_t firsts = __ballot_sync(GPU_ALL, mine >= 0 && __ffs((int)same) - 1 == lane);
    if (!(firsts >> k & 1)) return true;
    const int32_t message = (int32_t)(before >> 16);
    ll_credit credit = LL_CREDIT_GIVEN;
    if (lane == 0) {
        const int32_t place = __popc(firsts & ((1u << k) - 1));
        int32_t region;
        credit = ll_await_slot(c, s, now, rank, &region);
        const uint64_t at = ll_sends_words(a) ? ll_word_message_place(c, c->place.rank, now->epoch, message)
                                              : ll_message_place(c, c->place.rank, now->slot, message);
        ll_notes(s, LL_NOTE_MESSAGE)[place] = message;
        ll_notes(s, LL_NOTE_RANK)[place] = rank;
        s->places[place] = credit == LL_CREDIT_GIVEN ? (uint64_t)ll_there(s, rank, at) : 0;
        if (LL_FAR && s->places[place] && ll_is_far(c, rank))
            s->places[place] = (uint64_t)ll_parcel_message(c, rank, now->epoch, message);
    }
    return credit != LL_CREDIT_AWAITED;
}

/* Returns the number of ranks that the token goes to. */
GPU_FUNC int32_t ll_count_ranks(const ll_dispatch_args *a, const ll_tokens *t, int32_t token)
{
    const int32_t slots = LL_BUFFER_TOPK(&a->call), lane = threadIdx.x % 32;
    const int32_t mine = lane < slots ? t->idx[lane * t->pitch + token] : -1;
    const int32_t to = mine < 0 ? -1 - lane : mine / LL_LOCALS(&a->call);
    const uint32_t same = __match_any_sync(GPU_ALL, to);
    return __popc(__ballot_sync(GPU_ALL, mine >= 0 && __ffs((int)same) - 1 == lane));
}

/* Writes the header for the j-th of the token's ranks. One warp calls it. */
GPU_FUNC void ll_write_header(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                              int32_t token, int32_t j)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32, locals = LL_LOCALS(c), topk = LL_BUFFER_TOPK(c);
    const uint64_t message = s->places[j];
    const int64_t first = sizeof(ll_header) / 4;
    if (!message) return;
    if (lane < a->routing.topk) {
        const int32_t expert = t->idx[lane * t->pitch + token];
        const int32_t local = expert - ll_notes(s, LL_NOTE_RANK)[j] * locals;
        const bool here = expert >= 0 && local >= 0 && local < locals;
        ll_put(a, now, message, first + lane, (uint32_t)(here ? local : -1));
        ll_put(a, now, message, first + topk + lane, here ? (uint32_t)ll_notes(s, LL_NOTE_ROW)[lane] : 0);
        if (a->route.weights)
            ll_put(a, now, message, first + 2 * topk + lane,
                   __float_as_uint(a->route.weights[token * a->route.weights_pitch + lane]));
    }
    if (lane < 2) ll_put(a, now, message, lane, (uint32_t)(lane ? j : token));
}

/* ---- send -------------------------------------------------------------------------------------------------------- */

/* Divides the tokens among blocks. A row that goes by flags belongs to one block, which stores its flag. */
GPU_FUNC ll_split ll_sending(const ll_dispatch_args *a)
{
    return ll_split_of(a->routing.tokens, 0, ll_sends_words(a) ? 2 : 1, 1);
}

/* Prefetches rows, so that they are near when their indices are there. */
GPU_FUNC void ll_fetch_row(const ll_dispatch_args *a)
{
    const ll_split split = ll_sending(a);
    const int64_t bytes = (int64_t)LL_HIDDEN(&a->call) * (a->call.form.dtype == CODEC_F32 ? 4 : 2);
    if (split.first >= a->routing.tokens) return;
    const uint8_t *row = a->x + split.first * a->x_pitch_bytes;
    for (int64_t at = (int64_t)threadIdx.x * 128; at < bytes; at += LL_GPU_THREADS * 128)
        prefetch(row + at);
}

/* Stores the flags after all that the block has stored. The last warp calls it: it has the least of a row, and others
   load the next token's row meanwhile. */
GPU_FUNC void ll_flag_token(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks)
{
    const ll_gpu_call *c = &a->call;
    __syncthreads();
    for (int32_t j = (int32_t)threadIdx.x - LL_GPU_THREADS + 32; j >= 0 && j < ranks; j += 32) {
        const int32_t own = c->place.rank, message = ll_notes(s, LL_NOTE_MESSAGE)[j];
        const ll_parcel parcel = {(const uint8_t *)s->places[j], ll_message_place(c, own, now->slot, message),
                                  ll_header_bytes(c) + (uint64_t)a->row_bytes + 4 * (uint64_t)ll_scales_of(a),
                                  ll_message_flag_place(c, own, now->epoch, message), ll_flag_of(now, 1)};
        if (s->places[j]) ll_send_parcel(c, s, now, ll_notes(s, LL_NOTE_RANK)[j], &parcel);
    }
}

/* Finds the places of the token's slots. All threads of the block call it, and meet. doubt: whether this thread doubts
   the indices, which nobody has checked yet. If any thread of the block does, the block checks them and begins again.
   False: a wait was given up. */
GPU_FUNC bool ll_place_token(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                             int32_t token, bool *doubt)
{
    for (;;) {
        bool ok = true;
        for (int32_t k = threadIdx.x / 32; k < LL_BUFFER_TOPK(&a->call); k += LL_BLOCK_WARPS)
            ok &= ll_place_slot(a, s, now, t, token, k);
        if (!__syncthreads_or(!ok || *doubt)) return true;
        if (!__syncthreads_or(*doubt)) return false;
        ll_take_out_bad(a);
        *doubt = false;
    }
}

/* All threads of the block call it; they hold the first part of the row. False: a wait was given up. */
GPU_FUNC bool ll_send_token(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                            const ll_split *split, int32_t token, ll_held *hand, bool *doubt)
{
    const ll_gpu_call *c = &a->call;
    const uint8_t *row = a->x + token * a->x_pitch_bytes;
    if (!ll_place_token(a, s, now, t, token, doubt)) return false;
    const int32_t ranks = ll_count_ranks(a, t, token);
    for (int32_t j = threadIdx.x / 32; j < ranks && split->part == 0; j += LL_BLOCK_WARPS)
        ll_write_header(a, s, now, t, token, j);
    ll_send_row(a, s, now, &split->team, row, ranks, hand);
    ll_stamp_time(c, LL_GPU_SENT);
    if (!ll_sends_words(a)) ll_flag_token(a, s, now, ranks);
    for (int32_t k = threadIdx.x; k < a->routing.topk && split->part == 0; k += blockDim.x)
        a->routing.idx[(int64_t)token * LL_BUFFER_TOPK(c) + k] = t->idx[k * t->pitch + token];
    return true;
}

GPU_FUNC void ll_take_token(const ll_dispatch_args *a, const ll_split *split, int32_t token, ll_held *hand)
{
    ll_take_in_hand(a, &split->team, a->x + token * a->x_pitch_bytes, split->team.at, hand);
}

/* Sends all of the block's tokens. False: there is nothing to receive, since this rank rejected the call or a wait was
   given up. *early: as for ll_take_early. */
GPU_FUNC bool ll_dispatch_send(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                               int32_t *early)
{
    const ll_split split = ll_sending(a);
    bool doubt = ll_status_goes_on(s->rejection->status) && ll_doubts_tokens(a, t);
    if (ll_first_opened(now) < LL_RANKS(&a->call)) {
        if (__syncthreads_or(doubt)) ll_take_out_bad(a);
        doubt = false;
        if (!ll_open_ranks(a, s, now, t)) return false;
    }
    if (!ll_status_goes_on(s->rejection->status)) return false;
    ll_held hand;
    if (split.first < a->routing.tokens) ll_take_token(a, &split, split.first, &hand);
    for (int32_t token = split.first; token < a->routing.tokens;) {
        if (!ll_send_token(a, s, now, t, &split, token, &hand, &doubt)) return false;
        token += split.stride;
        if (token >= a->routing.tokens) break;
        /* Warps that lead others do not go ahead of them. */
        if (now->quick && !ll_sends_words(a) && !LL_LEADS) *early = ll_take_early(a, *now, *early);
        ll_take_token(a, &split, token, &hand);
        __syncthreads(); /* the previous token's s->notes are read */
    }
    return true;
}

#endif
