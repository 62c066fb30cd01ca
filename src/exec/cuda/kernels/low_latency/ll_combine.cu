/* SPDX-License-Identifier: Apache-2.0 */
/* ll_combine_impl: a low-latency combine, or one of its two phases.
 *
 *   grid     as many blocks as the call may use SMs, all resident with those of the other ranks; LL_GPU_THREADS each
 *   headers  the last N blocks open the call at one rank each, before they do anything else
 *   send     teams of several blocks, of one block, or of a part of its warps take messages of the dispatch, of all
 *            ranks in turn. Exact: they copy the rows of the message's slots to their places, and blocks that share a
 *            message each take some of its slots. Reduced: they add the rows and copy the sum to its place. Then they
 *            store a flag for each place. Rows of small batches go in words. Rows in LogFMT are divided one by one
 *            (combine_list.h)
 *   receive  teams take tokens, from the first block after those that send first. Each warp polls the flags of the
 *            token's places, or their words, and adds its part of these rows
 *   waits    the send waits for acknowledgements of the slot and, if weights are sent ahead, for those of the other
 *            ranks. The receive waits for all headers, then for each token's rows
 *   bytes    exact: each row of a slot is read once and written once to its place. Reduced: each row is read once, and
 *            one row for each rank is written. Then each place is read once */
#define GPU_LOOK_ASIDE 1
#include "exec/cuda/kernels/low_latency/begin.h"
#include "exec/cuda/kernels/low_latency/combine_handle.h"
#include "exec/cuda/kernels/low_latency/combine_receive.h"
#include "exec/cuda/kernels/low_latency/combine_send.h"
#include "exec/cuda/kernels/low_latency/end.h"
#include "exec/cuda/kernels/low_latency/progress.h"

#ifndef LL_COMBINE_KERNEL
#define LL_COMBINE_KERNEL ll_combine_impl
#endif

/* ---- progress of a wait that was given up ------------------------------------------------------------------------ */

/* Counts the lanes' rows of a token that have come whole. */
GPU_FUNC int32_t ll_count_word_rows(const ll_combine_args *a, const ll_now *now, int32_t token, uint32_t mask,
                                    int32_t place)
{
    const ll_gpu_call *c = &a->call;
    int32_t came = 0;
    for (; mask; mask &= mask - 1) {
        const int32_t one = __shfl_sync(GPU_ALL, place, __ffs((int)mask) - 1);
        came += ll_words_are_here(c, now, ll_word_row_place(c, now->epoch, token, one), a->row_bytes / 4);
    }
    return came;
}

/* Counts the rows of the rank that have come; *all: those that are to come. A warp calls it. */
GPU_FUNC int32_t ll_count_rows(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t rank,
                               int32_t *all)
{
    const ll_gpu_call *c = &a->call;
    const int32_t region = LL_MASKS ? c->masks->region[now->slot] : 0;
    int32_t came = 0;
    *all = 0;
    for (int32_t token = 0; token < a->routing.tokens && ll_header_promises(c, s, now, rank); token++) {
        ll_gpu_part part = ll_part_of_slot(a, token);
        if (c->form.sum == LL_GPU_REDUCED) part = ll_parts_by_rank(part);
        const bool due = part.rank == rank;
        const uint64_t number = ll_number_of(c, now->epoch, region, token, due ? part.place : 0);
        const uint64_t *flag = (const uint64_t *)ll_own(c, ll_row_flag_place(c, number));
        const uint32_t mask = __ballot_sync(GPU_ALL, due);
        *all += __popc(mask);
        if (ll_awaits_words(a))
            came += ll_count_word_rows(a, now, token, mask, part.place);
        else
            came += __popc(__ballot_sync(GPU_ALL, due && ll_has_stamp(flag, now->stamp)));
    }
    return came;
}

/* Reports what was missing from each rank when a wait was given up. Each leaving warp calls it. */
GPU_ASIDE void ll_combine_tell_progress(const ll_combine_args *a, ll_now call)
{
    const ll_gpu_call *c = &a->call;
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_now *now = &call;
    const int32_t wait = ll_progress_begin(c);
    for (int32_t r = 0; wait && r < LL_RANKS(c); r++) {
        if (wait != GPU_WAIT_MESSAGE && wait != GPU_WAIT_WEIGHTS) {
            ll_progress_tell_one(c, s, now, wait, r);
            continue;
        }
        const uint64_t first = ll_weight_flag_place(c, r, now->epoch, 0);
        int32_t all = wait == GPU_WAIT_WEIGHTS && ll_header_promises(c, s, now, r) ? ll_owed(s, r) : 0;
        const int32_t weights = ll_count_flags(c, s, now, first, all);
        const int32_t came = wait == GPU_WAIT_WEIGHTS ? weights : ll_count_rows(a, s, now, r, &all);
        ll_progress_tell(c, r, came, all);
    }
}

/* Ends calls that are not quick. All threads of all blocks call it. */
GPU_ASIDE void ll_combine_close(const ll_combine_args *a, ll_now now, bool goes, bool receives, bool mismatched)
{
    const ll_shared s = ll_shared_here(&a->call);
    if (!ll_ends_last(&a->call, &s, receives)) return;
    if (LL_MASKS && goes && receives && !mismatched) ll_combine_mend(a, &s, &now);
    ll_close(&a->call, &s, &now, receives, mismatched);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_KERNEL(LL_GPU_THREADS) LL_KERNEL(LL_COMBINE_KERNEL)(GPU_ARGS ll_combine_args a)
{
    const ll_shared s = ll_shared_here(&a.call);
    ll_now now;
    bool mismatched = false, doubt = false;
    int32_t sending = 0;
    ll_stamp_start(&a.call);
    const uint32_t route = a.call.rejection.status ? 0 : (uint32_t)*a.routing.stamp;
    ll_begin(&a.call, &s, LL_COMBINE, &now);
    if (!a.call.rejection.status) doubt = ll_doubts_handle(&a, &s, route);
    if (ll_is_coded(&a)) ll_log_fill_table(ll_log_table(&s));
    if (!ll_has_begun(&a.call, &now, &doubt)) return;
    if (a.call.phases & LL_GPU_SEND && !s.rejection->status && doubt) ll_reject_handle(&a);
    now.quick &= !s.rejection->status;
    bool goes = !(a.call.phases & LL_GPU_SEND) || ll_combine_send(&a, &s, &now, route, &mismatched, &sending);
    const bool receives = goes && a.call.phases & LL_GPU_RECEIVE;
    if (receives) goes = ll_combine_receive(&a, &s, &now, route, sending, &mismatched);
    if (!goes) ll_combine_tell_progress(&a, now);
    if (now.quick) {
        if (goes) ll_ends_quickly(&a.call, &now, mismatched);
        return;
    }
    ll_combine_close(&a, now, goes, receives, mismatched);
}
