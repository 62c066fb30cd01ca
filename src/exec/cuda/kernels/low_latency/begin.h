/* SPDX-License-Identifier: Apache-2.0 */
/* A call begins: its epoch, which halves are known to be free, and what this rank itself finds wrong. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_BEGIN_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_BEGIN_H

#include "exec/cuda/kernels/low_latency/call.h"
#include "exec/cuda/kernels/refusal.h"

/* What this rank's kernel has found wrong with the call, which brings nothing then. By one thread. */
GPU_FUNC void ll_report_own(const ll_gpu_call *c, const ep_refusal *refusal)
{
    gpu_verdict *slot = verdict_slot(&c->world);
    if (!slot) return;
    slot->rank = c->world.rank;
    slot->dropped = 0;
    copy_words(&slot->reason, refusal, sizeof slot->reason);
    publish_verdict(&c->world, slot);
}

/* A half of a rank whose read word is there already, so that nobody has to look again. A combine with masks has to know
   where it lies. */
GPU_FUNC bool ll_half_is_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    if (LL_MASKS && now->kind == LL_COMBINE) return false;
    const uint64_t *reads = (const uint64_t *)ll_own(c, ll_read_at(&c->space, (ll_kind)now->kind, pe, 0));
    uint64_t even, odd;
    load_acquire_both(reads, &even, &odd);
    return pe == c->world.rank || now->before == 0 || (uint32_t)((now->half ? odd : even) >> 32) == now->before;
}

/* Before the block meets: the epoch, by each thread; the bases, which halves are free, this rank's refusal. */
GPU_FUNC void ll_begin(const ll_gpu_call *c, const ll_shared *s, int32_t kind, ll_now *now)
{
    const bool sends = (c->phases & LL_GPU_SEND) != 0, receives = (c->phases & LL_GPU_RECEIVE) != 0;
    const ll_gpu_line *line = ll_line_of(c, kind);
    now->kind = kind;
    now->epoch = sends ? line->epoch + 1 : c->record->epoch;
    now->half = ll_half(now->epoch);
    now->stamp = ll_stamp(now->epoch);
    now->between = now->epoch > 1 ? ll_stamp(now->epoch - 1) : 0;
    now->before = now->epoch > 2 ? ll_stamp(now->epoch - 2) : 0;
    now->kept = !sends && line->kept[now->half];
    now->pending = sends && line->open[now->half] != 0;
    now->behind = sends && (now->pending || line->unread[now->half]);
    now->quick = sends && receives && !LL_MASKS && !now->behind && !c->wait_ns && !c->refusal.status &&
                 now->epoch - line->swept[now->half] < LL_SWEEP_CALLS;
    /* By the last warp, since others load meanwhile what the call is of. */
    for (int32_t pe = (int32_t)threadIdx.x - LL_GPU_THREADS + 32; pe >= 0 && pe < LL_RANKS(c); pe += 32) {
        s->bases[pe] = c->world.heaps[pe] + c->world.buffer;
        s->open[pe] = ll_half_is_free(c, now, pe);
    }
    if (threadIdx.x == 0) {
        *s->first_bad = ~0ull;
        s->refusal->status = c->refusal.status;
        if (c->refusal.status) copy_words(s->refusal, &c->refusal, sizeof *s->refusal);
    }
}

/* By all threads, which meet. False: the call has nothing to receive, or the buffer has failed, so that blocks may have
   different copies. */
GPU_FUNC bool ll_has_begun(const ll_gpu_call *c, const ll_shared *s, const ll_now *now)
{
    if (__syncthreads_or(load_relaxed(&c->world.state->failed) != GPU_SOUND)) return false;
    if (now->pending && !c->refusal.status) {
        if (threadIdx.x == 0) {
            s->refusal->status = EXPAR_STATUS_STATE;
            put_text(s->refusal->text, "the call before the last of this kind is still open; expected its hook to be "
                                       "called first: two are open at most");
        }
        __syncthreads();
    }
    if (now->epoch == 0 && blockIdx.x == 0 && threadIdx.x == 0) ll_report_own(c, &c->record->refusal);
    return now->epoch != 0;
}

#endif
