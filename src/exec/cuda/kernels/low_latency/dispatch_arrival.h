/* SPDX-License-Identifier: Apache-2.0 */
/* Incoming messages of a dispatch, and what a thread sees of one. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_ARRIVAL_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_ARRIVAL_H

#include "exec/cuda/kernels/low_latency/dispatch_targets.h"

/* An incoming message: its address, and whether it comes in words. */
typedef struct ll_incoming {
    const uint8_t *message;
    bool in_words;
    int32_t source, number;
    uint32_t *head; /* LL_FAR: where the warp that waits for the message leaves its head, in shared memory */
} ll_incoming;

/* The parts of a message that a thread has seen: its lane's slot and header word, and its first part of row and
   scales. */
typedef struct ll_arrival {
    uint32_t first; /* lane 0: the token; lane 1: its place */
    uint32_t expert, row, weight, scale;
    uint4 units[LL_HELD_UNITS];
    uint4 more[LL_MORE_UNITS]; /* the next pieces, of a message that goes by a flag */
} ll_arrival;

/* For a message in words: reads word i. Clears *here if it does not have this call's stamp. */
GPU_FUNC uint32_t ll_see_word(const ll_now *now, const ll_incoming *in, int64_t i, bool *here)
{
    const uint64_t seen = load_relaxed_64((const uint64_t *)in->message + i);
    *here &= (uint32_t)(seen >> 32) == now->stamp;
    return (uint32_t)seen;
}

/* Looks at all that the thread needs at once, since each look takes one memory latency. Lanes that have no slot look at
   the token's word. False: some of it is not there. */
GPU_FUNC bool ll_see_words(const ll_dispatch_args *a, const ll_now *now, const ll_team *team, const ll_incoming *in,
                           ll_arrival *seen)
{
    const int32_t lane = threadIdx.x % 32, slots = LL_BUFFER_TOPK(&a->call), at = team->at;
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const int64_t experts = sizeof(ll_header) / 4, payload = (int64_t)ll_header_bytes(&a->call) / 4;
    const bool slot = lane < a->routing.topk, scale = at < ll_scales_of(a);
    bool here = true;
    seen->first = ll_see_word(now, in, lane < 2 ? lane : 0, &here);
    seen->expert = ll_see_word(now, in, slot ? experts + lane : 0, &here);
    seen->row = ll_see_word(now, in, slot ? experts + slots + lane : 0, &here);
    if (a->call.form.weights) seen->weight = ll_see_word(now, in, slot ? experts + 2 * slots + lane : 0, &here);
    if (ll_is_scaled(a)) seen->scale = ll_see_word(now, in, scale ? payload + a->row_bytes / 4 + at : 0, &here);
#pragma unroll
    for (int32_t i = 0; i < LL_HELD_UNITS; i++) {
        const int32_t u = at + i * team->threads;
        if (u < units)
            here &= ll_look_at_words((const uint64_t *)in->message + payload + 4 * u, now->stamp, &seen->units[i]);
    }
    return here;
}

/* Loads pieces from u on, a team's length apart, of a message whose flag has come. */
GPU_FUNC void ll_see_more(const ll_dispatch_args *a, const ll_team *team, const ll_incoming *in, int32_t u,
                          ll_arrival *seen)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const uint4 *payload = (const uint4 *)(in->message + ll_header_bytes(&a->call));
#pragma unroll
    for (int32_t i = 0; i < LL_MORE_UNITS; i++)
        if (u + i * team->threads < units) seen->more[i] = load_row(payload + u + i * team->threads);
}

/* Loads the head of a message whose flag has come: its token and place, and each slot's expert, row and weight. */
GPU_FUNC void ll_see_head(const ll_dispatch_args *a, const ll_incoming *in, ll_arrival *seen)
{
    const int32_t lane = threadIdx.x % 32, slots = LL_BUFFER_TOPK(&a->call);
    const uint32_t *words = (const uint32_t *)in->message;
    const uint32_t *experts = words + sizeof(ll_header) / 4;
    const int32_t slot = lane < a->routing.topk ? lane : 0;
    seen->first = load_relaxed(words + (lane & 1));
    seen->expert = load_relaxed(experts + slot);
    seen->row = load_relaxed(experts + slots + slot);
    if (a->call.form.weights) seen->weight = load_relaxed(experts + 2 * slots + slot);
}

/* For the warp that waits for a team's message (LL_FAR): leaves the head to the other warps. They would read the same
   words over the bus, one warp after the other. Out of line, since the registers of its callers are in use. */
GPU_ASIDE void ll_leave_head(const ll_dispatch_args *a, const uint8_t *message, uint32_t *head)
{
    const int32_t lane = threadIdx.x % 32;
    const ll_incoming in = {message, false, 0, 0, head};
    ll_arrival seen;
    seen.weight = 0;
    ll_see_head(a, &in, &seen);
    head[lane] = seen.first;
    head[LL_MOST_TOPK + lane] = seen.expert;
    head[2 * LL_MOST_TOPK + lane] = seen.row;
    head[3 * LL_MOST_TOPK + lane] = seen.weight;
}
GPU_FUNC void ll_find_head(const ll_incoming *in, ll_arrival *seen)
{
    const int32_t lane = threadIdx.x % 32;
    seen->first = in->head[lane];
    seen->expert = in->head[LL_MOST_TOPK + lane];
    seen->row = in->head[2 * LL_MOST_TOPK + lane];
    seen->weight = in->head[3 * LL_MOST_TOPK + lane];
}

/* Loads the same data of a message whose flag has come. */
GPU_FUNC void ll_see_message(const ll_dispatch_args *a, const ll_team *team, const ll_incoming *in, ll_arrival *seen)
{
    const int32_t at = team->at, units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const uint8_t *payload = in->message + ll_header_bytes(&a->call);
    if (LL_FAR)
        ll_find_head(in, seen);
    else
        ll_see_head(a, in, seen);
    if (at < ll_scales_of(a)) seen->scale = load_relaxed((const uint32_t *)(payload + a->row_bytes) + at);
#pragma unroll
    for (int32_t i = 0; i < LL_HELD_UNITS; i++) {
        const int32_t u = at + i * team->threads;
        if (u < units) seen->units[i] = load_row((const uint4 *)payload + u);
    }
    ll_see_more(a, team, in, at + LL_HELD_UNITS * team->threads, seen);
}

/* False: a wait was given up. */
GPU_FUNC bool ll_await_arrival(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                               const ll_incoming *in, ll_arrival *seen)
{
    ll_waiting w = {{0, 0}, 0, false};
    seen->weight = seen->scale = 0;
    if (!in->in_words) {
        ll_see_message(a, team, in, seen);
        return true;
    }
    while (!ll_see_words(a, now, team, in, seen)) {
        if (ll_may_wait(&a->call, s, &w, GPU_WAIT_MESSAGE, in->source, *(const uint64_t *)in->message,
                        (uint64_t)now->stamp << 32) != LL_TURN_ON)
            return false;
        between_polls();
    }
    return true;
}

#endif
