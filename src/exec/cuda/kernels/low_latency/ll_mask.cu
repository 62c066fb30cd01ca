/* SPDX-License-Identifier: Apache-2.0 */
/* ll_mask: the host's requests about a rank's masks, between calls (ll_gpu_task).
 *
 *   grid   one block of LL_GPU_THREADS; it follows the rank's calls, and does not wait
 *   bytes  some words for each rank, here and there; after a clean also the row flags of a region */
#define GPU_LOOK_ASIDE 1
#define LL_MASKS       1
#ifndef LL_MASK_KERNEL
#define LL_MASK_KERNEL ll_mask
#endif
#include "exec/cuda/kernels/low_latency/end.h"

/* Masks a rank for the caller. Thread 0 calls it alone. */
GPU_FUNC void ll_set_mask(const ll_mask_args *a, const ll_shared *s)
{
    const ll_gpu_call *c = &a->call;
    if (ll_is_masked(c, a->rank)) return;
    if (ll_mask_rank(c, s, a->rank) != LL_MASKING_DONE)
        a->answer->status = EXPAR_STATUS_PEER;
    else
        c->mask_of[a->rank].since = c->masks->steps;
}

GPU_FUNC void ll_unset_mask(const ll_mask_args *a, const ll_shared *s)
{
    const ll_gpu_call *c = &a->call;
    ll_gpu_mask *one = &c->mask_of[a->rank];
    if (!ll_is_masked(c, a->rank)) return;
    if (one->since != c->masks->steps || ll_is_masked_by(c, s, a->rank)) {
        a->answer->status = EXPAR_STATUS_STATE;
        return;
    }
    one->masked = 0;
    ll_tell_masker(c, s, a->rank, 0);
}

GPU_FUNC void ll_read_state(const ll_mask_args *a)
{
    for (int32_t kind = 0; kind < LL_KINDS; kind++) {
        const ll_gpu_line *line = ll_line_of(&a->call, kind);
        a->answer->epochs[kind] = line->epoch;
        a->answer->open[kind] = line->open[0] != 0 || line->open[1] != 0;
    }
    for (int32_t r = 0; r < LL_RANKS(&a->call); r++)
        if (ll_is_far(&a->call, r)) ll_sent_tell(&a->call, r);
}

/* Masks the ranks that are not in the view. A newly masked rank may still write to the slots' present regions. */
GPU_FUNC void ll_take_view(const ll_mask_args *a, const ll_shared *s)
{
    const ll_gpu_call *c = &a->call;
    for (int32_t r = 0; r < LL_RANKS(c); r++) {
        ll_gpu_mask *one = &c->mask_of[r];
        const bool masked = a->view[r] == 0;
        for (int32_t slot = 0; slot < LL_SLOTS && masked && !one->masked; slot++)
            one->knows[slot] = c->masks->region[slot];
        one->masked = masked ? LL_MASK_SET : 0;
        one->since = ~(uint64_t)0;
        if (masked)
            ll_tell_masker(c, s, r, 0);
        else
            one->with = a->view[r];
    }
}

/* Epochs go on from values above those in any word of these ranks. The slots stay the same. */
GPU_FUNC void ll_begin_anew(const ll_mask_args *a, const ll_shared *s)
{
    const ll_gpu_call *c = &a->call;
    for (int32_t i = 0; i < c->copies; i++)
        for (int32_t kind = 0; kind < LL_KINDS; kind++) {
            ll_gpu_line *line = &c->state[i].lines[kind];
            line->epoch = a->epochs[kind];
            for (int32_t slot = 0; slot < LL_SLOTS; slot++)
                line->open[slot] = line->unread[slot] = line->kept[slot] = 0;
        }
    for (int32_t r = 0; r < LL_RANKS(c); r++)
        if (ll_is_far(c, r)) ll_sent_begin_anew(c, r);
    for (int32_t r = 0; r < LL_RANKS(c); r++)
        if (ll_is_far(c, r)) ll_sent_tell(c, r);
    c->masks->attempt = a->attempt;
    ll_take_view(a, s);
    if (!ll_regions_suffice(c, s)) a->answer->status = EXPAR_STATUS_PEER;
}

GPU_FUNC void ll_part(const ll_mask_args *a, const ll_shared *s)
{
    for (int32_t r = 0; r < LL_RANKS(&a->call); r++)
        ll_tell_masker(&a->call, s, r, LL_MASKER_PARTED);
}

GPU_KERNEL(LL_GPU_THREADS) LL_MASK_KERNEL(GPU_ARGS ll_mask_args a)
{
    const ll_gpu_call *c = &a.call;
    const ll_shared s = ll_shared_here(c);
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x) {
        s.bases[r] = c->place.heaps[r] + c->place.buffer;
        if (a.what == LL_TASK_QUERY) a.status[r] = ll_is_masked(c, r);
    }
    __syncthreads();
    if (threadIdx.x == 0 && a.what == LL_TASK_SET) ll_set_mask(&a, &s);
    if (threadIdx.x == 0 && a.what == LL_TASK_UNSET) ll_unset_mask(&a, &s);
    if (threadIdx.x == 0 && a.what == LL_TASK_READ) ll_read_state(&a);
    if (threadIdx.x == 0 && a.what == LL_TASK_BEGIN) ll_begin_anew(&a, &s);
    if (threadIdx.x == 0 && a.what == LL_TASK_PART) ll_part(&a, &s);
    __syncthreads();
    for (int32_t slot = 0; slot < LL_SLOTS && a.what == LL_TASK_BEGIN; slot++)
        ll_settle(c, &s, slot);
    if (threadIdx.x == 0) c->masks->lost = 0;
}
