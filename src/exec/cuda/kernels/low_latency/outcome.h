/* SPDX-License-Identifier: Apache-2.0 */
/* How a call goes on, by the headers of all ranks: how much each rank sends, which ranks reject, differ or are out, and
 * the report of that. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_OUTCOME_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_OUTCOME_H

#include "exec/cuda/kernels/core/rejection.h"
#include "exec/cuda/kernels/low_latency/headers.h"
#include "exec/cuda/kernels/low_latency/times.h"

/* Keeps a word of the source's header. */
GPU_FUNC void ll_note_told(const ll_gpu_call *c, const ll_shared *s, int32_t source, int32_t w, int32_t value,
                           int32_t *counts)
{
    if (w == LL_HEADER_STATUS) s->status[source] = value;
    if (w == LL_HEADER_TAG) s->tag[source] = value;
    if (w == LL_HEADER_ROUTE) s->route[source] = value;
    if (w == LL_HEADER_MESSAGES) s->messages[source] = value;
    if (w >= LL_HEADER_COUNTS) counts[source * LL_LOCALS(c) + w - LL_HEADER_COUNTS] = value;
}

GPU_FUNC ll_header_bounds ll_bounds_here(const ll_gpu_call *c)
{
    const ll_header_bounds bounds = {LL_TOKENS(c), LL_SMALL(c), LL_MOST_ROWS(c)};
    return bounds;
}

/* True if the word of a header is one that a successful call brings. */
GPU_FUNC bool ll_is_usual(const ll_gpu_call *c, int32_t w, uint32_t value, uint32_t route)
{
    if (w == LL_HEADER_STATUS) return value == 0;
    if (w == LL_HEADER_TAG) return value == ll_form_tag(&c->form);
    if (w == LL_HEADER_ROUTE) return value == route;
    return ll_count_can_be(w, value, ll_bounds_here(c));
}

/* Treats a peer whose counts do not fit the buffer as one that rejects the call. */
GPU_FUNC void ll_doubt_counts(const ll_gpu_call *c, const ll_shared *s, const int32_t *counts)
{
    const int32_t locals = LL_LOCALS(c);
    for (int32_t i = threadIdx.x; i < LL_RANKS(c) * locals; i += blockDim.x)
        if ((uint32_t)counts[i] > (uint32_t)LL_MOST_ROWS(c)) s->status[i / locals] = EXPAR_STATUS_PEER;
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x)
        if (!ll_count_can_be(LL_HEADER_MESSAGES, (uint32_t)s->messages[r], ll_bounds_here(c)))
            s->status[r] = EXPAR_STATUS_PEER;
    __syncthreads();
}

/* Waits for a word of a header that another block has seen whole. So it is there, unless a broken peer has overwritten
   it since. Then blocks no longer agree, and the call ends once the host finds the rank lost. False: the wait was given
   up. */
GPU_FUNC bool ll_await_seen(const ll_gpu_call *c, const ll_now *now, const uint64_t *word, int32_t source,
                            uint64_t *seen)
{
    const int32_t named = GPU_WAIT_MESSAGE_HEADER + c->kind * GPU_LL_WAITS;
    ll_waiting w = {{0, 0}, 0, false};
    for (;;) {
        *seen = load_acquire(word);
        if ((uint32_t)(*seen >> 32) == now->stamp) return true;
        if (!may_wait(&c->place, &w.at, named, source, *seen, ll_flag_of(now, 0))) return false;
        if (w.at.polls % GPU_POLLS == 0 && ll_is_lost(c, &w, source))
            give_up(&c->place, named, source, *seen, ll_flag_of(now, 0), GPU_ABORT);
    }
}

/* Decides for each rank whether its header counts, equally in all blocks. Some blocks have seen the header whole.
   Others have not, since its rank was masked meanwhile. counts as below. False: a wait was given up. */
GPU_FUNC bool ll_decide_headers(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t *counts)
{
    const int32_t words = ll_header_words(c, now->kind), all = words * LL_RANKS(c);
    bool ok = true;
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x)
        s->out[r] = ll_decide(c, now, r, s->out[r] != LL_OUT_NOT);
    __syncthreads();
    for (int32_t i = threadIdx.x; i < all; i += blockDim.x) {
        const int32_t source = i / words, w = i - source * words;
        if (s->out[source] == LL_OUT_NOT) continue;
        uint64_t seen = 0;
        if (s->out[source] == LL_OUT_BUT_HERE)
            ok &= ll_await_seen(c, now, ll_message_header_of(c, s, now, source) + w, source, &seen);
        const bool out = s->out[source] == LL_OUT;
        ll_note_told(c, s, source, w, out && w == LL_HEADER_STATUS ? LL_GPU_IS_OUT : (int32_t)(uint32_t)seen, counts);
    }
    return !__syncthreads_or(!ok);
}

GPU_FUNC int32_t ll_messages_of(const ll_shared *s, int32_t source)
{
    return (int32_t)((uint32_t)s->messages[source] & ~LL_HEADER_MARKS);
}
GPU_FUNC bool ll_in_words(const ll_shared *s, int32_t source)
{
    return !LL_MASKS && ((uint32_t)s->messages[source] & LL_HEADER_IN_WORDS);
}

GPU_FUNC bool ll_sends_data(const ll_shared *s, int32_t source)
{
    return ll_status_goes_on(s->status[source]);
}

/* The state of the call once all headers are known. */
typedef struct ll_outcome {
    bool left;       /* a wait was given up */
    bool odd;        /* some rank rejects, reports an error or differs */
    bool mismatched; /* a rank that goes on has other parameters: nothing more is awaited */
} ll_outcome;

GPU_FUNC bool ll_is_out(const ll_shared *s, int32_t source)
{
    return LL_MASKS && s->out[source] == LL_OUT;
}
/* Says whether the rank rejects the call, or reports an error. */
GPU_FUNC bool ll_rejects(const ll_shared *s, int32_t source)
{
    return s->status[source] && !ll_is_out(s, source);
}

GPU_FUNC bool ll_has_form(const ll_gpu_call *c, const ll_shared *s, int32_t source, uint32_t route)
{
    if (ll_is_out(s, source)) return true;
    return ll_is_same_call((uint32_t)s->tag[source], (uint32_t)s->route[source], ll_form_tag(&c->form), route);
}

/* Says how the call goes on. Call it after all message headers have arrived. All threads of the block must call it. */
GPU_FUNC ll_outcome ll_judge(const ll_gpu_call *c, const ll_shared *s, uint32_t route)
{
    bool odd = false, differs = false;
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x) {
        const bool other = !ll_has_form(c, s, r, route);
        odd |= other || ll_rejects(s, r);
        differs |= other && ll_sends_data(s, r);
    }
    ll_outcome outcome = {false, __syncthreads_or(odd) != 0, false};
    if (outcome.odd) outcome.mismatched = __syncthreads_or(differs) != 0;
    return outcome;
}

/* Handles headers if some are unusual, or were not awaited to the end (ok). counts as below. */
GPU_ASIDE ll_outcome ll_weigh_units(const ll_gpu_call *c, ll_now now, bool ok, uint32_t route, int32_t *counts)
{
    const ll_shared s = ll_shared_here(c);
    ll_outcome outcome = {false, false, false};
    outcome.left = __syncthreads_or(!ok) != 0;
    if (outcome.left) return outcome;
    fence_system(); /* orders the reads of rejections' texts after those of their status */
    if (LL_MASKS) outcome.left = !ll_decide_headers(c, &s, &now, counts);
    if (outcome.left) return outcome;
    if (now.kind == LL_DISPATCH) ll_doubt_counts(c, &s, counts);
    if (LL_MASKS) ll_mask_doubted(c, &s);
    return ll_judge(c, &s, route);
}

/* Reads all ranks' headers into shared memory, and says how the call goes on. counts: [N][L], for a dispatch. All
   threads of each block call it. They meet once if all is well. */
GPU_FUNC ll_outcome ll_take_headers(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, uint32_t route,
                                    int32_t *counts)
{
    const int32_t words = ll_header_words(c, now->kind), all = words * LL_RANKS(c);
    const uint64_t since_ns = ll_wait_begin(c);
    const bool copied = LL_FAR && !now->kept; /* then the threads that copy headers note how long they have waited */
    ll_outcome outcome = {false, false, false};
    bool ok = true, usual = !LL_MASKS;
    for (int32_t r = threadIdx.x; LL_MASKS && r < LL_RANKS(c); r += blockDim.x)
        s->out[r] = LL_OUT_NOT;
    if (LL_MASKS) __syncthreads();
    if (copied) ll_copy_headers(c, *now, words);
    for (int32_t i = threadIdx.x; i < all; i += blockDim.x) {
        const int32_t source = i / words, w = i - source * words;
        uint64_t seen = 0;
        const ll_gpu_turn turn =
            ll_await_copy(c, s, ll_told_header_of(c, s, now, source) + w, ll_message_header_of(c, s, now, source) + w,
                          now->stamp, GPU_WAIT_MESSAGE_HEADER, source, &seen);
        ok &= turn != LL_TURN_LEAVE;
        if (!copied) ll_wait_end(c, s, source, 0, since_ns);
        if (LL_MASKS && turn == LL_TURN_LOST) s->out[source] = LL_OUT;
        ll_note_told(c, s, source, w, (int32_t)(uint32_t)seen, counts);
        usual &= ll_is_usual(c, w, (uint32_t)seen, route);
    }
    if (!__syncthreads_or(!ok || !usual)) return outcome;
    return ll_weigh_units(c, *now, ok, route, counts);
}

/* Out of line, so that the code exists only once. */
GPU_ASIDE int32_t ll_put_words(char *text, int32_t at, const char *words, int64_t value)
{
    return put_words(text, at, words, value);
}

/* Reports the first impossible count of the rank's header, with the text of the CPU's check. One thread calls it. */
GPU_FUNC void ll_tell_doubt(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t rank, char *text)
{
    const uint64_t *unit = ll_message_header_of(c, s, now, rank);
    int32_t w = LL_HEADER_MESSAGES;
    while (w + 1 < ll_header_words(c, now->kind) && ll_is_usual(c, w, (uint32_t)load_relaxed_64(unit + w), 0))
        w++;
    const int32_t value = (int32_t)(uint32_t)load_relaxed_64(unit + w);
    /* Negative counts have no marks. */
    const ll_header_count count = ll_count_told(w, (uint32_t)max(value, 0), ll_bounds_here(c));
    int32_t at = ll_put_words(text, 0, "rank ", rank);
    at = ll_put_words(text, at, " has told what cannot be: ", value < 0 ? value : (int64_t)count.told);
    if (w == LL_HEADER_MESSAGES) {
        at = ll_put_words(text, at, " messages, of ", count.most);
    } else {
        at = ll_put_words(text, at, " rows for expert ", w - LL_HEADER_COUNTS);
        at = ll_put_words(text, at, " of rank ", c->place.rank);
        at = ll_put_words(text, at, ", of ", count.most);
    }
    put_text(text + at, " at most");
}

/* Writes the reason why the rank rejects the call, or does not go on. */
GPU_FUNC void ll_tell_reason(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t rank, char *text)
{
    const uint64_t *unit = ll_message_header_of(c, s, now, rank);
    if (s->status[rank] == EXPAR_STATUS_PEER && (uint32_t)load_relaxed_64(unit + LL_HEADER_STATUS) != EXPAR_STATUS_PEER)
        ll_tell_doubt(c, s, now, rank, text);
    else
        copy_words(text, (const uint8_t *)unit + ll_header_text_place(c, (ll_kind)now->kind), EP_REJECTION_TEXT);
}

/* Reports a call that is not usual. It names this rank if it rejected, else the lowest rank that did, with its reason,
   else the lowest rank that differs. One thread calls it. */
GPU_ASIDE void ll_report(const ll_gpu_call *c, ll_now call, uint32_t route)
{
    const ll_shared shared = ll_shared_here(c), *s = &shared;
    const ll_now *now = &call;
    gpu_vote *slot = vote_slot(&c->place);
    int32_t rank = 0;
    if (!slot) return;
    while (rank < LL_RANKS(c) && !ll_rejects(s, rank))
        rank++;
    if (s->status[c->place.rank]) rank = c->place.rank;
    const bool rejected = rank < LL_RANKS(c);
    for (rank = rejected ? rank : 0; !rejected && rank < LL_RANKS(c) && ll_has_form(c, s, rank, route);)
        rank++;
    const ll_form form = ll_form_of((uint32_t)s->tag[rank], (uint32_t)s->route[rank]);
    ll_form own = c->form;
    slot->rank = rank;
    slot->dropped = 0;
    slot->reason.status = rejected ? s->status[rank] : 0;
    slot->reason.text[0] = 0;
    if (rejected) ll_tell_reason(c, s, now, rank, slot->reason.text);
    copy_words(&slot->form, &form, sizeof form);
    own.route = route;
    copy_words(&slot->form0, &own, sizeof own);
    publish_vote(&c->place, slot);
}

#endif
