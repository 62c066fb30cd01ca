/* SPDX-License-Identifier: Apache-2.0 */
/* Message headers. This rank opens a call at each rank by one, and counts what it sends. Acknowledgements of earlier
 * quick calls go with them. Here is also where the others' headers are. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_HEADERS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_HEADERS_H

#include "exec/cuda/kernels/low_latency/far.h"
#include "exec/cuda/kernels/low_latency/near.h"

GPU_FUNC int32_t ll_header_words(const ll_gpu_call *c, int32_t kind)
{
    return LL_HEADER_COUNTS + (kind == LL_DISPATCH ? LL_LOCALS(c) : 0);
}

/* Says whether the rank is told of the call; all threads of the block get the same answer. */
GPU_FUNC bool ll_is_told(const ll_gpu_call *c, int32_t pe)
{
    return !LL_MASKS || !__syncthreads_or(ll_is_masked(c, pe));
}

GPU_FUNC uint8_t *ll_kept_header(const ll_gpu_call *c, int32_t kind, int32_t slot, int32_t source)
{
    const int64_t number = ((int64_t)kind * LL_SLOTS + slot) * LL_RANKS(c) + source;
    return c->kept + number * (int64_t)ll_space_here(c).unit_bytes[LL_DISPATCH];
}

/* For a slot whose last call was not read here: waits until all ranks have made the call between. If that last call is
   still open, this call's headers could let others overwrite its headers, so block 0 keeps them. It calls this before
   its headers leave. In a combine all blocks call it before their rows leave. Rows of that last call may still be on
   their way here, to places that this rank's own rows get now. They come before the headers of the call between. */
GPU_ASIDE bool ll_await_between(const ll_gpu_call *c, ll_now call)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_now *now = &call;
    const ll_kind kind = (ll_kind)now->kind;
    const int32_t words = (int32_t)(ll_space_here(c).unit_bytes[kind] / 8);
    const ll_gpu_line *line = ll_line_of(c, kind);
    const uint64_t open = line->open[now->slot];
    bool ok = true;
    for (int32_t pe = threadIdx.x; pe < LL_RANKS(c) && now->between; pe += blockDim.x) {
        uint64_t seen;
        const uint8_t *unit = ll_own(c, ll_header_place(c, kind, pe, now->epoch - 1));
        ok &= ll_await(c, s, (const uint64_t *)unit + LL_HEADER_STATUS, now->between, GPU_WAIT_MESSAGE_HEADER, pe,
                       &seen) != LL_TURN_LEAVE;
    }
    if (__syncthreads_or(!ok)) return false;
    for (int32_t pe = 0; pe < LL_RANKS(c) && open && !line->kept[now->slot] && blockIdx.x == 0; pe++) {
        const uint64_t *unit = (const uint64_t *)ll_own(c, ll_header_place(c, kind, pe, open));
        uint64_t *keep = (uint64_t *)ll_kept_header(c, kind, now->slot, pe);
        for (int32_t w = threadIdx.x; w < words; w += blockDim.x)
            keep[w] = load_relaxed_64(unit + w);
    }
    __syncthreads();
    return true;
}

/* Returns the first rank at which this block opens the call, if any. The last blocks open it at one rank each, since
   they have less other work. */
GPU_FUNC int32_t ll_first_opened(const ll_now *now)
{
    return now->after && blockIdx.x ? 1 << 30 : now->after ? 0 : (int32_t)(gridDim.x - 1 - blockIdx.x);
}
GPU_FUNC int32_t ll_opened_stride(const ll_now *now)
{
    return now->after ? 1 : (int32_t)gridDim.x;
}

/* Acknowledges quick calls that have been read here. The kernels that have read them have ended. The blocks that open a
   call of any kind, or the last block of a receive, call it. */
GPU_FUNC void ll_tell_read(const ll_gpu_call *c, const ll_shared *s, int32_t pe)
{
    for (int32_t kind = threadIdx.x; kind < LL_KINDS && pe != c->place.rank; kind += blockDim.x) {
        const uint64_t epoch = ll_line_of(c, kind)->untold;
        if (!epoch) continue;
        if (LL_FAR && ll_is_far(c, pe)) {
            ll_parcel_say_read(c, pe, kind, epoch, 0);
            continue;
        }
        uint64_t *word = (uint64_t *)ll_there(s, pe, ll_read_place(c, (ll_kind)kind, c->place.rank, epoch));
        store_release(word, ll_word(epoch, 0));
    }
}

/* Stores the reason and after it the status. */
GPU_ASIDE void ll_post_rejection(const ll_gpu_call *c, uint64_t *unit, ll_kind kind, uint64_t status)
{
    const uint32_t *text = (const uint32_t *)ll_shared_here(c).rejection->text;
    uint32_t *to = (uint32_t *)((uint8_t *)unit + ll_header_text_place(c, kind));
    for (int32_t i = threadIdx.x; i < EP_REJECTION_TEXT / 4; i += blockDim.x)
        to[i] = text[i];
    __syncthreads();
    if (threadIdx.x == 0) store_release(unit + LL_HEADER_STATUS, status);
}

#if LL_FAR
/* Says whether this rank's header may go there. Its place must be free: the last one there is four calls old. A header
   of a combine comes after the rows of the combine before. A rank that has not read those may let others write to their
   places once it has this header from all. */
GPU_FUNC bool ll_parcel_takes_header(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    const uint64_t rows = now->kind == LL_COMBINE ? ll_parcel_sent(c, now, pe, 1) : 0;
    return ll_parcel_await(c, pe, max(rows, ll_parcel_sent(c, now, pe, LL_HEADER_COPIES))) == LL_TURN_ON;
}

/* Posts one rank's header by a command. */
GPU_ASIDE void ll_post_far_header(const ll_gpu_call *c, ll_now call, int32_t pe, uint32_t route, int32_t messages,
                                  const int32_t *counts)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_now *now = &call;
    const ll_kind kind = (ll_kind)now->kind;
    const int32_t status = s->rejection->status, words = ll_header_words(c, kind);
    const uint64_t at = ll_header_place(c, kind, c->place.rank, now->epoch), text = ll_header_text_place(c, kind);
    uint64_t *header = (uint64_t *)ll_parcel_header(c, pe, kind, now->epoch);
    uint32_t *reason = (uint32_t *)((uint8_t *)header + text);
    const bool goes = ll_status_goes_on(status);
    if (__syncthreads_or(threadIdx.x == 0 && !ll_parcel_takes_header(c, now, pe))) return;
    for (int32_t w = threadIdx.x; w < words; w += blockDim.x)
        header[w] = ll_flag_of(now, ll_header_value(w, &c->form, route, goes, (uint32_t)messages, counts));
    for (int32_t i = threadIdx.x; i < EP_REJECTION_TEXT / 4 && status; i += blockDim.x)
        reason[i] = ((const uint32_t *)s->rejection->text)[i];
    __syncthreads();
    const uint64_t bytes = (uint64_t)(words - 1) * 8 + (status ? text + EP_REJECTION_TEXT - (uint64_t)words * 8 : 0);
    const ll_parcel parcel = {(const uint8_t *)(header + 1), at + 8, bytes, at, ll_flag_of(now, (uint32_t)status)};
    if (threadIdx.x == 0) ll_parcel_send(c, now->kind, now->epoch, pe, &parcel);
}
#endif

/* Posts one rank's header. messages and counts ([L], shared) are those of a dispatch. All threads of a block call
   it. */
GPU_FUNC void ll_post_header(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe, uint32_t route,
                             int32_t messages, const int32_t *counts)
{
    const ll_kind kind = (ll_kind)now->kind;
    const uint64_t at = ll_header_place(c, kind, c->place.rank, now->epoch);
    uint64_t *unit = (uint64_t *)ll_there(s, pe, at);
    const int32_t status = s->rejection->status;
    const bool goes = ll_status_goes_on(status);
#if LL_FAR
    if (ll_is_far(c, pe)) {
        ll_post_far_header(c, *now, pe, route, messages, counts);
        return;
    }
#endif
    for (int32_t w = threadIdx.x; w < ll_header_words(c, kind); w += blockDim.x) {
        const uint32_t value = ll_header_value(w, &c->form, route, goes, (uint32_t)messages, counts);
        if (w != LL_HEADER_STATUS || !status) store_relaxed_64(unit + w, ll_flag_of(now, value));
    }
    if (status) ll_post_rejection(c, unit, kind, ll_flag_of(now, (uint32_t)status));
}

/* Adds what the call sends to the rank. One thread calls each of them. */
GPU_FUNC void ll_count_bytes(const ll_gpu_call *c, int32_t pe, uint64_t bytes)
{
    c->tally[pe].bytes += (unsigned long long)bytes;
    store_relaxed_64(&c->counts[pe].bytes, c->tally[pe].bytes);
}
GPU_FUNC void ll_count_sent(const ll_gpu_call *c, int32_t pe, int32_t messages, int32_t rows)
{
    ll_gpu_tally *tally = &c->tally[pe];
    tally->messages += (unsigned long long)messages;
    tally->rows += (unsigned long long)rows;
    store_relaxed_64(&c->counts[pe].messages, tally->messages);
    store_relaxed_64(&c->counts[pe].rows, tally->rows);
}

GPU_FUNC const uint64_t *ll_message_header_of(const ll_gpu_call *c, const ll_shared *s, const ll_now *now,
                                              int32_t source)
{
    if (now->kept) return (const uint64_t *)ll_kept_header(c, now->kind, now->slot, source);
    return (const uint64_t *)ll_own(c, ll_header_place(c, (ll_kind)now->kind, source, now->epoch));
}

/* The same, or its copy, which ll_take_headers reads. */
GPU_FUNC const uint64_t *ll_told_header_of(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t source)
{
    return LL_FAR && !now->kept ? ll_near_header(c, now, source) : ll_message_header_of(c, s, now, source);
}

#endif
