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

/* Returns what the words say about the slot. A combine with masks needs its region as well, which they tell. */
GPU_FUNC ll_gpu_way ll_way_of(const ll_gpu_call *c, const ll_now *now, int32_t pe, const ll_slot_words *seen)
{
    const bool own = pe == c->place.rank, tells = LL_MASKS && now->kind == LL_COMBINE;
    const int32_t regions = ll_shape_here(c).regions;
    ll_gpu_way way = {LL_CREDIT_GIVEN, tells ? ll_region_told(seen->read, regions) : 0};
    if (!own && ll_read_opens(seen->read, now->before)) return way;
    const bool is_told = !tells || (uint32_t)(seen->messages >> 32) == now->stamp;
    way.credit = ll_header_opens(seen->status, now->stamp);
    way.region = tells ? ll_region_told(seen->messages, regions) : 0;
    if (way.credit == LL_CREDIT_GIVEN && !is_told) way.credit = LL_CREDIT_AWAITED;
    return way;
}

/* Waits until the peer's slot is free or the peer rejects the call. It reads the peer's acknowledgement of the call
   before the last, and the peer's header of this call. This rank reads only its own header about itself. Of a buffer in
   pinned memory it looks at the copies, and then reads the words themselves if no other thread does. A thread that is
   about to mask the peer reads them in any case. */
GPU_ASIDE ll_gpu_way ll_await_way(const ll_gpu_call *c, ll_now now, int32_t pe)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    ll_waiting w = {{0, 0}, 0, false};
    for (;;) {
        const bool near = LL_FAR && !(LL_MASKS && w.loses);
        ll_slot_words seen = near ? ll_near_slot_words(c, &now, pe) : ll_slot_words_of(c, &now, pe);
        ll_gpu_way way = ll_way_of(c, &now, pe, &seen);
        if (near && way.credit == LL_CREDIT_AWAITED && ll_read_slot_words(c, &now, pe, &seen))
            way = ll_way_of(c, &now, pe, &seen);
        if (way.credit != LL_CREDIT_AWAITED) return way;
        const ll_gpu_turn turn = ll_may_wait(c, s, &w, GPU_WAIT_CREDIT, pe, seen.read, ll_flag_of(&now, 0));
        if (turn == LL_TURN_ON) continue;
        way.credit = turn == LL_TURN_LOST ? LL_CREDIT_REJECTS : LL_CREDIT_AWAITED;
        return way;
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
