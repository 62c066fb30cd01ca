/* SPDX-License-Identifier: Apache-2.0 */
/* ll_dispatch_impl: a low-latency dispatch, or one of its two phases.
 *
 *   grid     as many blocks as the call may use SMs, all resident with those of the other ranks; LL_GPU_THREADS each
 *   headers  the last N blocks count the experts of one rank each (a histogram in shared memory) and open the call
 *            there, before they do anything else
 *   send     block b has tokens b, b + blocks, …. Its warps find each slot's message and row by looking at all earlier
 *            tokens; the indices of all tokens are in shared memory. Then all threads load the row once, quantise it
 *            if the format says so, and store it to the messages of all its ranks. Then they store a flag for each
 *            message. Small batches go in words, each row by two blocks. Between two tokens each warp takes messages
 *            that have come already (below), without waiting
 *   receive  teams of two blocks, of one block, or of a part of its warps take messages of all ranks in turn, from the
 *            first block after those that send first. Each warp polls the message's flag, or its words, and copies its
 *            part of the row to all rows of the message's experts
 *   waits    the send waits for acknowledgements of the slot, which are there already unless a rank lags behind. The
 *            receive waits for all headers, then for each message
 *   bytes    each token's row is read once, and written once to each of its ranks. There it is read once from the
 *            message, and written once to each expert's row */
#define GPU_LOOK_ASIDE 1
#include "exec/cuda/kernels/low_latency/begin.h"
#include "exec/cuda/kernels/low_latency/dispatch_missing.h"
#include "exec/cuda/kernels/low_latency/dispatch_receive.h"
#include "exec/cuda/kernels/low_latency/dispatch_send.h"
#include "exec/cuda/kernels/low_latency/end.h"
#include "exec/cuda/kernels/low_latency/progress.h"

#ifndef LL_DISPATCH_KERNEL
#define LL_DISPATCH_KERNEL ll_dispatch_impl
#endif

/* early: as for ll_take_early. False: the call was not received. */
GPU_FUNC bool ll_dispatch_receive(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_tokens *t,
                                  int32_t early, bool *mismatched)
{
    ll_outcome outcome = {false, false, false};
    bool exceeds = false;
    if (a->call.wait_ns) ll_clear_waits(&a->call, s);
    if (early < 0) {
        outcome = ll_take_headers(&a->call, s, now, 0, t->first);
        if (outcome.left) return false;
        *mismatched = outcome.mismatched;
        exceeds = ll_place_ranks(a, s, t);
    }
    if (!outcome.mismatched && !ll_take_messages(a, s, now, t, early)) return false;
    if (blockIdx.x == gridDim.x - 1) {
        const bool told = outcome.odd;
        outcome.odd |= exceeds;
        ll_tell_counts(a, s, t, now, outcome);
        if (told && threadIdx.x == 0) ll_report(&a->call, *now, 0);
        if (exceeds && !told && threadIdx.x == 0) ll_report_excess(&a->call, *now);
    }
    return true;
}

/* ---- progress of a wait that was given up ------------------------------------------------------------------------ */

/* Counts the messages of the rank that have come. A warp calls it. */
GPU_FUNC int32_t ll_count_messages(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t rank,
                                   uint32_t told)
{
    const ll_gpu_call *c = &a->call;
    const int32_t all = (int32_t)(told & ~LL_HEADER_MARKS);
    int32_t came = 0;
    if (!(told & LL_HEADER_IN_WORDS))
        return ll_count_flags(c, s, now, ll_message_flag_place(c, rank, now->epoch, 0), all);
    const int64_t first = (int64_t)ll_header_bytes(c) / 4, words = a->row_bytes / 4 + ll_scales_of(a);
    for (int32_t m = 0; m < all; m++) {
        const uint64_t at = ll_word_message_place(c, rank, now->epoch, m);
        came += ll_words_are_here(c, now, at + 8 * (uint64_t)first, words) && ll_words_are_here(c, now, at, 2);
    }
    return came;
}

/* Reports what was missing from each rank when a wait was given up. Each leaving warp calls it. */
GPU_ASIDE void ll_dispatch_tell_progress(const ll_dispatch_args *a, ll_now call)
{
    const ll_gpu_call *c = &a->call;
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_now *now = &call;
    const int32_t wait = ll_progress_begin(c);
    for (int32_t r = 0; wait && r < LL_RANKS(c); r++) {
        if (wait != GPU_WAIT_MESSAGE) {
            ll_progress_tell_one(c, s, now, wait, r);
            continue;
        }
        const uint32_t told = (uint32_t)load_acquire(ll_message_header_of(c, s, now, r) + LL_HEADER_MESSAGES);
        const bool sends = ll_header_promises(c, s, now, r) && ll_is_usual(c, LL_HEADER_MESSAGES, told, 0);
        const int32_t all = sends ? (int32_t)(told & ~LL_HEADER_MARKS) : 0;
        ll_progress_tell(c, r, sends ? ll_count_messages(a, s, now, r, told) : 0, all);
    }
}

/* Ends calls that are not quick. All threads of all blocks call it. */
GPU_ASIDE void ll_dispatch_close(const ll_dispatch_args *a, ll_now now, bool goes, bool receives, bool mismatched)
{
    const ll_shared s = ll_shared_here(&a->call);
    const ll_tokens t = ll_tokens_of(a, &s);
    if (!ll_ends_last(&a->call, &s, receives)) return;
    if (LL_MASKS && goes && receives && !mismatched) ll_dispatch_mend(a, &s, &t);
    ll_close(&a->call, &s, &now, receives, mismatched);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

GPU_KERNEL(LL_GPU_THREADS) LL_KERNEL(LL_DISPATCH_KERNEL)(GPU_ARGS ll_dispatch_args a)
{
    const ll_shared s = ll_shared_here(&a.call);
    const ll_tokens t = ll_tokens_of(&a, &s);
    ll_now now;
    bool mismatched = false, doubt = false;
    int32_t early = -1;
    ll_stamp_start(&a.call);
    ll_begin(&a.call, &s, LL_DISPATCH, &now);
    if (a.call.phases & LL_GPU_SEND && ll_status_goes_on(a.call.rejection.status)) {
        ll_fetch_row(&a);
        ll_load_idx(&a, &t);
    }
    if (!ll_has_begun(&a.call, &now, &doubt)) return;
    bool goes = !(a.call.phases & LL_GPU_SEND) || ll_dispatch_send(&a, &s, &now, &t, &early);
    const bool receives = goes && a.call.phases & LL_GPU_RECEIVE;
    if (receives) goes = ll_dispatch_receive(&a, &s, &now, &t, early, &mismatched);
    if (!goes) ll_dispatch_tell_progress(&a, now);
    if (now.quick) {
        if (goes) ll_ends_quickly(&a.call, &now, mismatched);
        return;
    }
    ll_dispatch_close(&a, now, goes, receives, mismatched);
}
