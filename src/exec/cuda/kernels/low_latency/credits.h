/* SPDX-License-Identifier: Apache-2.0 */
/* Credit checks: this rank's data of a call may go to another rank if that has acknowledged the slot or rejects the
 * call. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_CREDITS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_CREDITS_H

#include "exec/cuda/kernels/low_latency/far.h"
#include "exec/cuda/kernels/low_latency/near.h"

/* The result of a credit check (ll_credit) after a wait. In a combine with masks it includes the region of the slot. */
typedef struct ll_gpu_way {
    ll_credit credit; /* shut: the wait was given up */
    int32_t region;
} ll_gpu_way;

/* Waits until the peer's slot is free or the peer rejects the call. It reads the peer's acknowledgement of the call
   before the last, and the peer's header of this call. This rank reads only its own header about itself. */
GPU_ASIDE ll_gpu_way ll_await_way(const ll_gpu_call *c, ll_now now, int32_t pe)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_kind kind = (ll_kind)now.kind;
    const bool own = pe == c->place.rank, tells = LL_MASKS && kind == LL_COMBINE;
    const uint64_t *read = (const uint64_t *)ll_own(c, ll_read_place(c, kind, pe, now.epoch));
    const uint64_t *unit = (const uint64_t *)ll_own(c, ll_header_place(c, kind, pe, now.epoch));
    const int32_t regions = ll_shape_here(c).regions;
    ll_gpu_way way = {LL_CREDIT_AWAITED, 0};
    ll_waiting w = {{0, 0}, 0, false};
    for (;;) {
        const uint64_t seen = load_acquire(read);
        if (tells && !own) way.region = ll_region_told(seen, regions);
        if (!own && ll_read_opens(seen, now.before)) {
            way.credit = LL_CREDIT_GIVEN;
            return way;
        }
        way.credit = ll_header_opens(load_acquire(unit + LL_HEADER_STATUS), now.stamp);
        if (way.credit != LL_CREDIT_AWAITED && (!tells || way.credit == LL_CREDIT_REJECTS)) return way;
        const uint64_t told = way.credit != LL_CREDIT_AWAITED ? load_acquire(unit + LL_HEADER_MESSAGES) : 0;
        way.region = ll_region_told(told, regions);
        if (way.credit != LL_CREDIT_AWAITED && (uint32_t)(told >> 32) == now.stamp) return way;
        const ll_gpu_turn turn = ll_may_wait(c, s, &w, GPU_WAIT_CREDIT, pe, seen, ll_flag_of(&now, 0));
        if (turn == LL_TURN_ON) continue;
        way.credit = turn == LL_TURN_LOST ? LL_CREDIT_REJECTS : LL_CREDIT_AWAITED;
        return way;
    }
}

/* The same for a buffer in pinned memory, of which one thread at a time reads these words. */
GPU_ASIDE ll_credit ll_await_near_way(const ll_gpu_call *c, ll_now now, int32_t pe)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    ll_waiting w = {{0, 0}, 0, false};
    for (;;) {
        uint64_t status = 0, seen = ll_near_read(c, &now, pe);
        if (ll_read_opens(seen, now.before)) return LL_CREDIT_GIVEN;
        if (ll_read_read(c, &now, pe, &seen, &status)) {
            if (ll_read_opens(seen, now.before)) return LL_CREDIT_GIVEN;
            const ll_credit credit = ll_header_opens(status, now.stamp);
            if (credit != LL_CREDIT_AWAITED) return credit;
        }
        if (ll_may_wait(c, s, &w, GPU_WAIT_CREDIT, pe, seen, ll_flag_of(&now, 0)) != LL_TURN_ON)
            return LL_CREDIT_AWAITED;
    }
}

/* Makes the same check, with a fast path: the slot is nearly always known to be free. Shut: the wait was given up. */
GPU_FUNC ll_credit ll_await_credit(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe,
                                   int32_t *region)
{
    const bool own = pe == c->place.rank, tells = LL_MASKS && now->kind == LL_COMBINE;
    *region = 0;
    if (s->open[pe] && !ll_is_masked(c, pe)) return LL_CREDIT_GIVEN;
    if (ll_is_masked(c, pe)) return LL_CREDIT_REJECTS;
    if (!(tells && own) && (own || now->before == 0)) return LL_CREDIT_GIVEN;
    if (LL_LEADS) return ll_await_near_way(c, *now, pe);
    const ll_gpu_way way = ll_await_way(c, *now, pe);
    *region = way.region;
    return way.credit;
}

/* Makes the same check. For a rank that is not mapped it also waits for free places of the send buffer. */
GPU_FUNC ll_credit ll_await_slot(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe,
                                 int32_t *region)
{
    const ll_credit credit = ll_await_credit(c, s, now, pe, region);
    if (!LL_FAR || credit != LL_CREDIT_GIVEN) return credit;
    const ll_gpu_turn turn = ll_parcel_await_free(c, now, pe);
    return turn == LL_TURN_ON ? credit : turn == LL_TURN_LOST ? LL_CREDIT_REJECTS : LL_CREDIT_AWAITED;
}

#endif
