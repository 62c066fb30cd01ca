/* SPDX-License-Identifier: Apache-2.0 */
/* The receive of a dispatch: messages come in, and each row is copied to the rows of its experts. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_RECEIVE_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_RECEIVE_H

#include "exec/cuda/kernels/low_latency/dispatch_arrival.h"
#include "exec/cuda/kernels/low_latency/split.h"

/* ---- copies to the experts --------------------------------------------------------------------------------------- */

/* Copies the team's part of the row. False: a wait was given up. */
GPU_FUNC bool ll_fan_out_row(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                             const ll_incoming *in, uint32_t mask, const ll_target *to, ll_arrival *seen)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16), end = (units + 31) / 32 * 32;
    const uint8_t *words = in->message + 2 * ll_header_bytes(&a->call);
    const int32_t rest = team->at + LL_HELD_UNITS * team->threads;
    bool ok = true;
#pragma unroll
    for (int32_t i = 0; i < LL_HELD_UNITS; i++) {
        const int32_t u = team->at + i * team->threads;
        if (u < end) ll_fan_out_header(a, mask, to, u, u < units, seen->units[i]);
    }
    for (int32_t u = rest; u < end && in->in_words; u += team->threads) {
        uint4 value = make_uint4(0, 0, 0, 0);
        if (u < units) ok &= ll_await_row_words(&a->call, s, now, in->source, (const uint64_t *)words + 4 * u, &value);
        ll_fan_out_header(a, mask, to, u, u < units, value);
    }
    for (int32_t u = rest; u < end && !in->in_words;) {
        ll_fan_out_more(a, mask, to, team, u, seen->more);
        u += LL_MORE_UNITS * team->threads;
        if (u < end) ll_see_more(a, team, in, u, seen);
    }
    return ok;
}

/* Reads number i of a message's words. False: a wait was given up. */
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
                                const ll_incoming *in, uint32_t mask, const ll_target *to, const ll_arrival *seen)
{
    const int64_t rows = (int64_t)LL_RANKS(&a->call) * LL_TOKENS(&a->call);
    const int64_t first = ((int64_t)ll_header_bytes(&a->call) + a->row_bytes) / 4;
    const int32_t end = (ll_scales_of(a) + 31) / 32 * 32;
    bool ok = true;
    for (int32_t w = team->at; w < end; w += team->threads) {
        uint32_t value = seen->scale;
        if (w != team->at && w < ll_scales_of(a)) ok &= ll_get(a, s, now, in, first + w, &value);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int32_t lane = __ffs((int)rest) - 1;
            const int32_t local = __shfl_sync(GPU_ALL, to->local, lane), row = __shfl_sync(GPU_ALL, to->row, lane);
            if (w < ll_scales_of(a))
                a->out_scales[codec_scale_at(a->codec, ll_scales_of(a), rows, local, w, row)] = value;
        }
    }
    return ok;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* With masks: returns whether the message is lost. All warps of the block get the same answer. *ok: no wait was given
   up. */
GPU_FUNC bool ll_loses_message(const ll_dispatch_args *a, int32_t source, int32_t number, ll_gpu_turn turn, bool *ok)
{
    const int64_t place = (int64_t)source * LL_TOKENS(&a->call) + number;
    *ok = !__syncthreads_or(turn == LL_TURN_LEAVE);
    if (!__syncthreads_or(turn == LL_TURN_LOST)) return false;
    if (threadIdx.x == 0)
        ((ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes))->token = LL_NO_TOKEN;
    return true;
}

/* Waits until the message's flag is there. Each warp waits by itself, but with masks all warps of the block meet. For
   ranks that are not mapped one warp waits for its team. */
GPU_FUNC ll_gpu_turn ll_await_message(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now,
                                      const ll_split *split, const ll_incoming *in)
{
    const ll_gpu_call *c = &a->call;
    const uint64_t flag = ll_message_flag_place(c, in->source, now->epoch, in->number);
    const bool clocked = c->wait_ns && threadIdx.x == 0;
    const uint64_t since_ns = ll_wait_begin(c), before = clocked ? s->waits[in->source] : 0;
    uint64_t seen;
    ll_gpu_turn turn = LL_TURN_ON;
    if (ll_leads(split))
        turn = ll_await(c, s, (const uint64_t *)ll_own(c, flag), now->stamp, GPU_WAIT_MESSAGE, in->source, &seen);
    bool ok = turn != LL_TURN_LEAVE;
    if (LL_FAR && ll_leads(split) && __all_sync(GPU_ALL, turn == LL_TURN_ON)) ll_leave_head(a, in->message, in->head);
    if (LL_LEADS) ok = ll_group_goes_on(s, split, in->number * LL_RANKS(c) + in->source, !ok);
    if (LL_MASKS && ll_loses_message(a, in->source, in->number, turn, &ok)) return ok ? LL_TURN_LOST : LL_TURN_LEAVE;
    if (!__all_sync(GPU_ALL, ok)) return LL_TURN_LEAVE;
    if (threadIdx.x == 0) ll_wait_end(c, s, in->source, before, since_ns);
    return LL_TURN_ON;
}

/* False: a wait was given up. */
GPU_FUNC bool ll_take_message(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                              const ll_split *split, const ll_incoming *in)
{
    const int32_t lane = threadIdx.x % 32;
    const ll_team *team = &split->team;
    const ll_gpu_turn turn = in->in_words ? LL_TURN_ON : ll_await_message(a, s, now, split, in);
    if (turn != LL_TURN_ON) return turn == LL_TURN_LOST;
    ll_arrival seen;
    bool ok = ll_await_arrival(a, s, now, team, in, &seen);
    ll_stamp_time(&a->call, LL_GPU_SEEN);
    if (!__all_sync(GPU_ALL, ok)) return false;
    const int32_t local = lane < a->routing.topk ? (int32_t)seen.expert : -1;
    const ll_target to = ll_target_of(a, t, in->source, local, (int32_t)seen.row);
    const uint32_t mask = __ballot_sync(GPU_ALL, to.local >= 0);
    ok &= ll_fan_out_row(a, s, now, team, in, mask, &to, &seen);
    ok &= ll_fan_out_scales(a, s, now, team, in, mask, &to, &seen);
    if (team->at / 32 == team->threads / 32 - 1) {
        const int32_t token = __shfl_sync(GPU_ALL, (int32_t)seen.first, 0);
        const int32_t place = __shfl_sync(GPU_ALL, (int32_t)seen.first, 1);
        const ll_kept kept = {in->source, in->number, token, place, __uint_as_float(seen.weight)};
        ll_keep_header(a, &kept, &to);
    }
    return __all_sync(GPU_ALL, ok);
}

/* Which teams take messages, of those of all ranks in turn. `all` is the number of messages if each rank sent as many
   as the rank with the most. The first messages go to the blocks after those that send. */
typedef struct ll_intake {
    ll_split split;
    int32_t all;
} ll_intake;
GPU_FUNC ll_intake ll_intake_of(const ll_dispatch_args *a, const ll_shared *s)
{
    const ll_gpu_call *c = &a->call;
    const int32_t n = LL_RANKS(c), sending = c->phases & LL_GPU_SEND ? a->routing.tokens : 0;
    int32_t most = 0;
    for (int32_t r = 0; r < n; r++)
        if (ll_sends_data(s, r)) most = max(most, ll_messages_of(s, r));
    const ll_intake intake = {
        ll_split_of(most * n, ll_sends_words(a) ? 2 * sending : sending, LL_MASKS ? 1 : 2, LL_MASKS ? 1 : LL_GPU_TEAMS),
        most * n};
    return intake;
}

/* Returns number i of the messages of all ranks, in turn from the next rank on, this one last. Number -1: there is
   none. */
GPU_FUNC ll_incoming ll_incoming_of(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t i)
{
    const ll_gpu_call *c = &a->call;
    const int32_t n = LL_RANKS(c), number = i / n, source = (c->place.rank + 1 + i % n) % n;
    const bool words = !LL_FAR && ll_in_words(s, source);
    const bool sent = ll_sends_data(s, source) && number < ll_messages_of(s, source);
    const uint64_t at =
        words ? ll_word_message_place(c, source, now->epoch, number) : ll_message_place(c, source, now->slot, number);
    const ll_incoming in = {ll_own(c, at), words, source, sent ? number : -1, NULL};
    return in;
}

/* Takes the team's messages. early: as for ll_take_early. False: a wait was given up. */
GPU_FUNC bool ll_take_messages(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                               int32_t early)
{
    const ll_intake intake = ll_intake_of(a, s);
    int32_t turn = 0;
    for (int32_t i = early < 0 ? intake.split.first : early; i < intake.all; i += intake.split.stride) {
        ll_incoming in = ll_incoming_of(a, s, now, i);
        if (in.number < 0) continue;
        in.head = t->heads + (turn * LL_GPU_TEAMS + intake.split.group) * LL_GPU_HEAD;
        if (!ll_take_message(a, s, now, t, &intake.split, &in)) return false;
        turn = 1 - turn;
    }
    return true;
}

/* ---- while tokens are left to be sent ---------------------------------------------------------------------------- */

/* Says whether the flag is of this call; all lanes of the warp get the same answer. */
GPU_FUNC bool ll_has_come(const ll_gpu_call *c, const ll_now *now, uint64_t flag)
{
    const uint64_t seen = load_acquire((const uint64_t *)ll_own(c, flag));
    return __all_sync(GPU_ALL, (uint32_t)(seen >> 32) == now->stamp);
}

/* The most messages that a warp takes between two tokens. */
#define LL_EARLY_MESSAGES 2

/* Says whether all ranks' headers are there and belong to a call that goes well. All threads call it, and meet. */
GPU_FUNC bool ll_headers_are_here(const ll_gpu_call *c, const ll_shared *s, const ll_now *now)
{
    const int32_t words = ll_header_words(c, now->kind), all = words * LL_RANKS(c);
    bool here = true;
    for (int32_t i = threadIdx.x; i < all && here; i += blockDim.x) {
        const int32_t source = i / words, w = i - source * words;
        const uint64_t seen = load_relaxed_64(ll_message_header_of(c, s, now, source) + w);
        here = (uint32_t)(seen >> 32) == now->stamp && ll_is_usual(c, w, (uint32_t)seen, 0);
    }
    return !__syncthreads_or(!here);
}

/* In a quick call, between two tokens that the block sends: takes messages whose flags are there already. Each warp
   does so by itself and does not wait. early: the team's next message, or -1 while that is not known. Returns its new
   value. */
GPU_ASIDE int32_t ll_take_early(const ll_dispatch_args *a, ll_now call, int32_t early)
{
    const ll_gpu_call *c = &a->call;
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_tokens tokens = ll_tokens_of(a, s), *t = &tokens;
    const ll_now *now = &call;
    if (early < 0) {
        if (!ll_headers_are_here(c, s, now)) return -1;
        const ll_outcome outcome = ll_take_headers(c, s, now, 0, t->first);
        if (outcome.left || outcome.odd) return -1;
        if (ll_place_ranks(a, s, t)) return -1;
        early = ll_intake_of(a, s).split.first;
    }
    const ll_intake intake = ll_intake_of(a, s);
    for (int32_t taken = 0; early < intake.all && taken < LL_EARLY_MESSAGES; early += intake.split.stride) {
        const ll_incoming in = ll_incoming_of(a, s, now, early);
        if (in.number < 0) continue;
        const uint64_t flag = ll_message_flag_place(c, in.source, now->epoch, in.number);
        if (in.in_words || !ll_has_come(c, now, flag)) break;
        ll_take_message(a, s, now, t, &intake.split, &in);
        taken++;
    }
    return early;
}

#endif
