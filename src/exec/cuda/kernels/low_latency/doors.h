/* SPDX-License-Identifier: Apache-2.0 */
/* Doors: whether this rank's data of a call may go to another, whose half it has read, or which refuses. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DOORS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DOORS_H

#include "exec/cuda/kernels/low_latency/masks.h"

/* Whether this rank's data of the call may go to the peer. */
typedef enum ll_gpu_door { LL_GPU_LEAVES = -1, LL_GPU_REFUSES = 0, LL_GPU_OPEN = 1 } ll_gpu_door;

/* Of a combine with masks: where the half of the rank lies, as its unit or its read word says. */
GPU_FUNC int32_t ll_region_of(const ll_gpu_call *c, uint64_t word)
{
    return (uint32_t)word < (uint32_t)ll_shape_here(c).regions ? (int32_t)(uint32_t)word : 0;
}

/* Of a combine with masks: where it is open. */
typedef struct ll_gpu_way {
    ll_gpu_door door;
    int32_t region;
} ll_gpu_way;

/* Until the peer's half is free, or it refuses: its read word of the call before the last, or its unit of this one.
   This rank's own unit tells its own. */
GPU_ASIDE ll_gpu_way ll_await_way(const ll_gpu_call *c, ll_now now, int32_t pe)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_kind kind = (ll_kind)now.kind;
    const bool own = pe == c->place.rank, tells = LL_MASKS && kind == LL_COMBINE;
    const uint64_t *read = (const uint64_t *)ll_own(c, ll_read_place(c, kind, pe, now.epoch));
    const uint64_t *unit = (const uint64_t *)ll_own(c, ll_unit_place(c, kind, pe, now.epoch));
    ll_gpu_way way = {LL_GPU_OPEN, 0};
    ll_waiting w = {{0, 0}, 0, false};
    for (;;) {
        const uint64_t seen = load_acquire(read);
        if (tells && !own) way.region = ll_region_of(c, seen);
        if (!own && (uint32_t)(seen >> 32) == now.before) return way;
        const uint64_t status = load_acquire(unit + LL_UNIT_STATUS);
        const bool came = (uint32_t)(status >> 32) == now.stamp;
        way.door = came && !ll_status_goes_on((int32_t)(uint32_t)status) ? LL_GPU_REFUSES : LL_GPU_OPEN;
        if (came && (!tells || way.door == LL_GPU_REFUSES)) return way;
        const uint64_t told = tells && came ? load_acquire(unit + LL_UNIT_MESSAGES) : 0;
        way.region = ll_region_of(c, told);
        if (tells && came && (uint32_t)(told >> 32) == now.stamp) return way;
        const ll_gpu_turn turn = ll_may_wait(c, s, &w, GPU_WAIT_HALF, pe, seen, ll_flag_of(&now, 0));
        if (turn == LL_TURN_ON) continue;
        way.door = turn == LL_TURN_LOST ? LL_GPU_REFUSES : LL_GPU_LEAVES;
        return way;
    }
}

/* The same, of a half that is known to be free nearly always. */
GPU_FUNC ll_gpu_door ll_await_half(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe,
                                   int32_t *region)
{
    const bool own = pe == c->place.rank, tells = LL_MASKS && now->kind == LL_COMBINE;
    *region = 0;
    if (s->open[pe] && !ll_is_masked(c, pe)) return LL_GPU_OPEN;
    if (ll_is_masked(c, pe)) return LL_GPU_REFUSES;
    if (!(tells && own) && (own || now->before == 0)) return LL_GPU_OPEN;
    const ll_gpu_way way = ll_await_way(c, *now, pe);
    *region = way.region;
    return way.door;
}

#endif
