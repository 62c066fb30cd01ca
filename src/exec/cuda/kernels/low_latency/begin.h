/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of a call: its epoch, the slots that are known to be free, and the errors that this rank itself
 * finds. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_BEGIN_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_BEGIN_H

#include "exec/cuda/kernels/core/rejection.h"
#include "exec/cuda/kernels/low_latency/near.h"

/* Reports an error that this rank's kernel has found. The call then has no results. One thread calls it. */
GPU_ASIDE void ll_report_own(const ll_gpu_call *c, const ep_rejection *rejection)
{
    gpu_vote *slot = vote_slot(&c->place);
    if (!slot) return;
    slot->rank = c->place.rank;
    slot->dropped = 0;
    copy_words(&slot->reason, rejection, sizeof slot->reason);
    publish_vote(&c->place, slot);
}

/* True if the rank's acknowledgement is there already, so that no thread has to look again. A combine with masks always
   looks, since it has to know where the slot is. */
GPU_FUNC bool ll_slot_is_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    if (LL_MASKS && now->kind == LL_COMBINE) return false;
    if (LL_FAR) return pe == c->place.rank || now->before == 0 || ll_read_opens(ll_near_read(c, now, pe), now->before);
    const uint64_t *reads = (const uint64_t *)ll_own(c, ll_read_place(c, (ll_kind)now->kind, pe, 0));
    uint64_t even, odd;
    load_acquire_both(reads, &even, &odd);
    return pe == c->place.rank || now->before == 0 || (uint32_t)((now->slot ? odd : even) >> 32) == now->before;
}

/* Keeps the host's rejection. One thread calls it. */
GPU_ASIDE void ll_keep_rejection(const ll_gpu_call *c)
{
    copy_words(ll_shared_here(c).rejection, &c->rejection, sizeof c->rejection);
}

/* Rejects a third open call of the kind. All threads call it. */
GPU_ASIDE void ll_reject_third(const ll_gpu_call *c)
{
    ep_rejection *rejection = ll_shared_here(c).rejection;
    if (threadIdx.x == 0) {
        rejection->status = EXPAR_STATUS_STATE;
        put_text(rejection->text, "the call before the last of this kind is still open; expected its hook to be called "
                                  "first: two are open at most");
    }
    __syncthreads();
}

/* Call this before the block meets. Each thread finds the epoch. Threads also fill in the bases, the slots that are
   free, and this rank's rejection. Whether the buffer has failed is read first, since the answer is not needed until
   then. */
GPU_FUNC void ll_begin(const ll_gpu_call *c, const ll_shared *s, int32_t kind, ll_now *now)
{
    const bool sends = (c->phases & LL_GPU_SEND) != 0, receives = (c->phases & LL_GPU_RECEIVE) != 0;
    const ll_gpu_line *line = ll_line_of(c, kind);
    now->failed = load_relaxed(&c->place.state->failed) != GPU_SOUND;
    now->kind = kind;
    now->epoch = sends ? line->epoch + 1 : c->record->epoch;
    now->slot = ll_slot_of_epoch(now->epoch);
    now->stamp = ll_stamp(now->epoch);
    now->between = now->epoch > 1 ? ll_stamp(now->epoch - 1) : 0;
    now->before = now->epoch > 2 ? ll_stamp(now->epoch - 2) : 0;
    now->kept = !sends && line->kept[now->slot];
    now->pending = sends && line->open[now->slot] != 0;
    now->after = sends && (now->pending || line->unread[now->slot]);
    now->quick = sends && receives && !LL_MASKS && !now->after && !c->wait_ns && !c->rejection.status &&
                 now->epoch - line->swept[now->slot] < LL_SWEEP_CALLS;
    /* The last warp does this, since the other warps load the call's data meanwhile. */
#pragma unroll 1
    for (int32_t pe = (int32_t)threadIdx.x - LL_GPU_THREADS + 32; pe >= 0 && pe < LL_RANKS(c); pe += 32) {
        s->bases[pe] = c->place.heaps[pe] + c->place.buffer;
        s->open[pe] = ll_slot_is_free(c, now, pe);
        s->credits[pe] = s->open[pe];
    }
    if (LL_LEADS && threadIdx.x < LL_GPU_TEAMS) s->left[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        *s->first_bad = ~0ull;
        s->rejection->status = c->rejection.status;
        if (c->rejection.status) ll_keep_rejection(c);
    }
}

/* All threads call it, and meet. *doubt: in, whether this thread has a doubt; out, whether any thread has. False: the
   call has nothing to receive, or the buffer has failed, so that blocks may have different copies. */
GPU_FUNC bool ll_has_begun(const ll_gpu_call *c, const ll_now *now, bool *doubt)
{
    const bool odd = __syncthreads_or(now->failed || *doubt);
    if (odd && __syncthreads_or(now->failed)) return false;
    *doubt = odd;
    if (now->pending && !c->rejection.status) ll_reject_third(c);
    if (now->epoch == 0 && blockIdx.x == 0 && threadIdx.x == 0) ll_report_own(c, &c->record->rejection);
    return now->epoch != 0;
}

#endif
