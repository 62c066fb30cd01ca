/* SPDX-License-Identifier: Apache-2.0 */
/* Of a dispatch: messages come in, and each row goes to the rows of its experts. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_RECEIVE_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_RECEIVE_H

#include "exec/cuda/kernels/low_latency/dispatch_open.h"
#include "exec/cuda/kernels/low_latency/outcome.h"
#include "exec/cuda/kernels/low_latency/split.h"

/* ---- what the counts say ----------------------------------------------------------------------------------------- */

/* From counts to first rows: ranks ascending. */
GPU_FUNC void ll_place_ranks(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t)
{
    const int32_t locals = a->call.shape.local_experts, n = LL_RANKS(&a->call);
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x) {
        int32_t row = 0;
        for (int32_t r = 0; r < n; r++) {
            const int32_t count = ll_sends_data(s, r) ? t->first[r * locals + l] : 0;
            t->first[r * locals + l] = row;
            row += count;
        }
        t->first[n * locals + l] = row;
    }
    __syncthreads();
}

/* What the host's caller and combines read of the counts; of a call that brings nothing zeros. By one block. */
GPU_FUNC void ll_tell_counts(const ll_dispatch_args *a, const ll_shared *s, const ll_tokens *t, const ll_now *now,
                             ll_outcome outcome)
{
    const int32_t locals = a->call.shape.local_experts, n = LL_RANKS(&a->call);
    for (int32_t i = threadIdx.x; i < locals * n; i += blockDim.x) {
        const int32_t l = i / n, r = i - l * n, begin = t->first[r * locals + l];
        a->routing.range[i] = outcome.mismatched ? 0 : ll_range(begin, t->first[(r + 1) * locals + l] - begin);
    }
    for (int32_t l = threadIdx.x; l < locals; l += blockDim.x) {
        const int32_t rows = outcome.mismatched ? 0 : t->first[n * locals + l];
        a->out_count[l] = rows;
        if (a->stats) a->stats[l] += rows;
    }
    for (int32_t r = threadIdx.x; r < n; r += blockDim.x)
        a->routing.messages[r] = outcome.mismatched || !ll_sends_data(s, r) ? 0 : s->messages[r];
    if (threadIdx.x == 0) *a->routing.stamp = outcome.odd ? 0 : now->stamp;
}

/* ---- where rows go ----------------------------------------------------------------------------------------------- */

/* Where a slot's row goes: of which expert, and the how-many-th of its rows; local -1: nowhere, whatever its source
   says. Each lane of a warp has one. */
typedef struct ll_target {
    int32_t local, row;
} ll_target;

GPU_FUNC ll_target ll_target_of(const ll_dispatch_args *a, const ll_tokens *t, int32_t source, int32_t local,
                                int32_t row)
{
    const int32_t locals = a->call.shape.local_experts;
    const ll_target none = {-1, -1};
    if (local < 0 || local >= locals || row < 0) return none;
    const int32_t begin = t->first[source * locals + local];
    if (row >= t->first[(source + 1) * locals + local] - begin) return none;
    const ll_target target = {local, begin + row};
    return target;
}
GPU_FUNC int64_t ll_row_of(const ll_dispatch_args *a, int32_t local, int32_t row)
{
    return (int64_t)local * LL_RANKS(&a->call) * a->call.shape.tokens + row;
}

/* A message on its way in: where it lies, and whether it does in words. */
typedef struct ll_incoming {
    const uint8_t *message;
    bool in_words;
    int32_t source, number;
} ll_incoming;

/* The team's part of one row to the rows in `to` of the lanes in `mask`. False: a wait was given up. */
GPU_FUNC bool ll_fan_out_row(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                             const ll_incoming *in, uint32_t mask, const ll_target *to)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const int64_t first = (int64_t)a->call.space.header_bytes;
    bool ok = true;
#pragma unroll 2
    for (int32_t base = team->at / 32 * 32; base < units; base += team->threads) {
        const int32_t u = base + threadIdx.x % 32;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (u < units && in->in_words)
            ok &= ll_await_row_words(&a->call, s, now, in->source, (const uint64_t *)(in->message + 2 * first) + 4 * u,
                                     &value);
        else if (u < units)
            value = load_row((const uint4 *)(in->message + first) + u);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int32_t lane = __ffs((int)rest) - 1;
            const int64_t row =
                ll_row_of(a, __shfl_sync(GPU_ALL, to->local, lane), __shfl_sync(GPU_ALL, to->row, lane));
            if (u < units) store_row((uint4 *)(a->out_x + row * GPU_ROW_BYTES(a)) + u, value);
        }
    }
    return ok;
}

/* Number i of a message's words. False: a wait was given up. */
GPU_FUNC bool ll_get(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_incoming *in, int64_t i,
                     uint32_t *value)
{
    uint64_t seen = 0;
    if (!in->in_words) {
        *value = load_relaxed((const uint32_t *)in->message + i);
        return true;
    }
    const bool came = ll_await_word(&a->call, s, (const uint64_t *)in->message + i, now->stamp, GPU_WAIT_MESSAGE,
                                    in->source, &seen) == LL_TURN_ON;
    *value = (uint32_t)seen;
    return came;
}

GPU_FUNC bool ll_fan_out_scales(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                                const ll_incoming *in, uint32_t mask, const ll_target *to)
{
    const int64_t rows = (int64_t)LL_RANKS(&a->call) * a->call.shape.tokens;
    const int64_t first = ((int64_t)a->call.space.header_bytes + a->row_bytes) / 4;
    bool ok = true;
    for (int32_t base = team->at / 32 * 32; base < a->scales; base += team->threads) {
        const int32_t w = base + threadIdx.x % 32;
        uint32_t value = 0;
        if (w < a->scales) ok &= ll_get(a, s, now, in, first + w, &value);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int32_t lane = __ffs((int)rest) - 1;
            const int32_t local = __shfl_sync(GPU_ALL, to->local, lane), row = __shfl_sync(GPU_ALL, to->row, lane);
            if (w < a->scales) a->out_scales[codec_scale_at(a->scales, rows, local, w, row)] = value;
        }
    }
    return ok;
}

/* A message's header, with the handle, and each slot's row among all of its expert's; -1: it has none. By one warp,
   whose lanes have the slots. False: a wait was given up. */
GPU_FUNC bool ll_keep_header(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_incoming *in,
                             const ll_target *to)
{
    const ll_gpu_call *c = &a->call;
    const int64_t place = (int64_t)in->source * c->shape.tokens + in->number;
    ll_header *keep = (ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes);
    const int32_t lane = threadIdx.x % 32, topk = LL_BUFFER_TOPK(c);
    uint32_t token = 0, order = 0, weight = 0;
    bool ok = ll_get(a, s, now, in, 0, &token) && ll_get(a, s, now, in, 1, &order);
    if (lane < a->routing.topk && c->form.weights)
        ok = ok && ll_get(a, s, now, in, (int64_t)sizeof(ll_header) / 4 + 2 * topk + lane, &weight);
    if (lane < topk) {
        ll_header_experts(keep)[lane] = to->local;
        ll_header_rows(keep, topk)[lane] = to->row;
        ll_header_weights(keep, topk)[lane] = __uint_as_float(weight);
    }
    if (lane == 0) {
        keep->token = (int32_t)token;
        keep->place = (int32_t)order;
    }
    if (to->local >= 0) a->routing.src_info[ll_row_of(a, to->local, to->row)] = (int32_t)token;
    return ok;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* With masks: whether the message is lost, as all warps of the block see it then. *ok: no wait was given up. */
GPU_FUNC bool ll_loses_message(const ll_dispatch_args *a, int32_t source, int32_t number, ll_gpu_turn turn, bool *ok)
{
    const int64_t place = (int64_t)source * a->call.shape.tokens + number;
    *ok = !__syncthreads_or(turn == LL_TURN_LEAVE);
    if (!__syncthreads_or(turn == LL_TURN_LOST)) return false;
    if (threadIdx.x == 0)
        ((ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes))->token = LL_NO_TOKEN;
    return true;
}

/* Until the message's flag is there; each warp by itself, but with masks. */
GPU_FUNC ll_gpu_turn ll_await_message(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now,
                                      const ll_incoming *in)
{
    const ll_gpu_call *c = &a->call;
    const uint64_t flag = ll_message_flag_at(&c->space, &c->shape, in->source, now->epoch, in->number);
    const bool clocked = c->wait_ns && threadIdx.x == 0;
    const uint64_t since_ns = ll_wait_begin(c), before = clocked ? s->waits[in->source] : 0;
    uint64_t seen;
    const ll_gpu_turn turn =
        ll_await(c, s, (const uint64_t *)ll_own(c, flag), now->stamp, GPU_WAIT_MESSAGE, in->source, &seen);
    bool ok = turn != LL_TURN_LEAVE;
    if (LL_MASKS && ll_loses_message(a, in->source, in->number, turn, &ok)) return ok ? LL_TURN_LOST : LL_TURN_LEAVE;
    if (!__all_sync(GPU_ALL, ok)) return LL_TURN_LEAVE;
    if (threadIdx.x == 0) ll_wait_end(c, s, in->source, before, since_ns);
    return LL_TURN_ON;
}

/* False: a wait was given up. */
GPU_FUNC bool ll_take_message(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                              const ll_team *team, const ll_incoming *in)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32, topk = a->routing.topk;
    const int64_t experts = sizeof(ll_header) / 4, rows = experts + LL_BUFFER_TOPK(c);
    const ll_gpu_turn turn = in->in_words ? LL_TURN_ON : ll_await_message(a, s, now, in);
    if (turn != LL_TURN_ON) return turn == LL_TURN_LOST;
    uint32_t expert = 0, row = 0;
    bool ok = true;
    if (lane < topk) {
        ok &= ll_get(a, s, now, in, experts + lane, &expert);
        ok &= ll_get(a, s, now, in, rows + lane, &row);
    }
    ll_stamp_time(c, LL_GPU_SEEN);
    if (!__all_sync(GPU_ALL, ok)) return false;
    const ll_target to = ll_target_of(a, t, in->source, lane < topk ? (int32_t)expert : -1, (int32_t)row);
    const uint32_t mask = __ballot_sync(GPU_ALL, to.local >= 0);
    ok &= ll_fan_out_row(a, s, now, team, in, mask, &to);
    ok &= ll_fan_out_scales(a, s, now, team, in, mask, &to);
    if (team->at / 32 == team->threads / 32 - 1) ok &= ll_keep_header(a, s, now, in, &to);
    return __all_sync(GPU_ALL, ok);
}

/* All messages of all ranks, in turn from the next rank on, this one last. */
GPU_FUNC bool ll_take_messages(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t)
{
    const ll_gpu_call *c = &a->call;
    const int32_t n = LL_RANKS(c), sending = c->phases & LL_GPU_SEND ? a->routing.tokens : 0;
    int32_t most = 0;
    for (int32_t r = 0; r < n; r++)
        if (ll_sends_data(s, r)) most = max(most, ll_messages_of(s, r));
    const ll_split split =
        ll_split_of(most * n, ll_sends_words(a) ? 2 * sending : sending, LL_MASKS ? 1 : 2, LL_MASKS ? 1 : 4);
    for (int32_t i = split.first; i < most * n; i += split.stride) {
        const int32_t number = i / n, source = (c->world.rank + 1 + i % n) % n;
        if (!ll_sends_data(s, source) || number >= ll_messages_of(s, source)) continue;
        const bool words = ll_in_words(s, source);
        const uint64_t at = words ? ll_word_message_at(&c->space, &c->shape, source, now->epoch, number)
                                  : ll_message_at(&c->space, &c->shape, source, now->half, number);
        const ll_incoming in = {ll_own(c, at), words, source, number};
        if (!ll_take_message(a, s, now, t, &split.team, &in)) return false;
    }
    return true;
}

#endif
