/* SPDX-License-Identifier: Apache-2.0 */
/* What both kernels of low-latency mode have: the call's epoch, opening units, halves, read words, verdicts. The
 * protocol is that of exec/low_latency.h; where words lie, and what they mean, is in exec/ll_index.h.
 *
 * There is no barrier over the grid. Each block finds out by itself what it needs (the epoch from its copy of the
 * state, the others' units from this rank's own memory). Of a quick call each moves its copy on, and the next kernel
 * says that the half was read; else the last one to end does both. Words of units carry their stamp and are complete by
 * themselves, so they are stored without an order; a refusal's text stands before its status, which is stored with
 * release. Rows are stored by all threads of a block, which then meet, and flagged with release by threads that were
 * there. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LL_DEVICE_H
#define EXPAR_EXEC_CUDA_KERNELS_LL_DEVICE_H

#include "exec/cuda/kernels/ll_call.h"
#include "exec/cuda/kernels/ll_masks.h"
#include "exec/cuda/kernels/refusal.h"

/* ---- a call begins ----------------------------------------------------------------------------------------------- */

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

/* What the previous kernels have left, in this block's own copy. */
GPU_FUNC const ll_gpu_line *ll_line_of(const ll_gpu_call *c, int32_t kind)
{
    return &c->state[blockIdx.x].lines[kind];
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

GPU_FUNC bool ll_status_goes_on(int32_t status)
{
    return status == 0 || status == EXPAR_STATUS_INDEX;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Until the word, which carries all there is to know, has the stamp (LL_TURN_ON). */
GPU_FUNC ll_gpu_turn ll_await_word(const ll_gpu_call *c, const ll_shared *s, const uint64_t *word, uint32_t stamp,
                                   int32_t wait, int32_t peer, uint64_t *seen)
{
    ll_waiting w = {{0, 0, 0}, 0, false};
    if (ll_is_masked(c, peer)) return LL_TURN_LOST;
    for (;;) {
        *seen = load_relaxed_64(word);
        if ((uint32_t)(*seen >> 32) == stamp) return LL_TURN_ON;
        const ll_gpu_turn turn = ll_may_wait(c, s, &w, wait, peer, *seen, (uint64_t)stamp << 32);
        if (turn != LL_TURN_ON) return turn;
        between_polls();
    }
}

/* Until the word has the stamp (LL_TURN_ON), and what was stored before it is there; what it says. */
GPU_FUNC ll_gpu_turn ll_await(const ll_gpu_call *c, const ll_shared *s, const uint64_t *word, uint32_t stamp,
                              int32_t wait, int32_t peer, uint64_t *seen)
{
    ll_waiting w = {{0, 0, 0}, 0, false};
    if (ll_is_masked(c, peer)) return LL_TURN_LOST;
    for (;;) {
        *seen = load_acquire(word);
        if ((uint32_t)(*seen >> 32) == stamp) return LL_TURN_ON;
        const ll_gpu_turn turn = ll_may_wait(c, s, &w, wait, peer, *seen, (uint64_t)stamp << 32);
        if (turn != LL_TURN_ON) return turn;
    }
}

/* ---- rows in words ----------------------------------------------------------------------------------------------- */

GPU_FUNC void ll_store_in_words(uint64_t *to, uint32_t stamp, uint4 value)
{
    const uint64_t high = (uint64_t)stamp << 32;
    store_words(to, high | value.x, high | value.y);
    store_words(to + 2, high | value.z, high | value.w);
}

/* Whether all four words have the stamp; what they carry. */
GPU_FUNC bool ll_look_at_words(const uint64_t *from, uint32_t stamp, uint4 *value)
{
    uint64_t w[4];
    poll_words(from, &w[0], &w[1]);
    poll_words(from + 2, &w[2], &w[3]);
    *value = make_uint4((uint32_t)w[0], (uint32_t)w[1], (uint32_t)w[2], (uint32_t)w[3]);
    return (uint32_t)(w[0] >> 32) == stamp && (uint32_t)(w[1] >> 32) == stamp && (uint32_t)(w[2] >> 32) == stamp &&
           (uint32_t)(w[3] >> 32) == stamp;
}

/* 16 bytes of a row that the peer sends. False: a wait was given up. */
GPU_FUNC bool ll_await_row_words(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t peer,
                                 const uint64_t *from, uint4 *value)
{
    ll_waiting w = {{0, 0, 0}, 0, false};
    while (!ll_look_at_words(from, now->stamp, value)) {
        if (ll_may_wait(c, s, &w, GPU_WAIT_MESSAGE, peer, *from, (uint64_t)now->stamp << 32) != LL_TURN_ON)
            return false;
        between_polls();
    }
    return true;
}

/* Whether so many words from the offset on are here. By a warp. */
GPU_FUNC bool ll_words_are_here(const ll_gpu_call *c, const ll_now *now, uint64_t at, int64_t words)
{
    const uint64_t *first = (const uint64_t *)ll_own(c, at);
    bool here = true;
    for (int64_t i = threadIdx.x % 32; i < words; i += 32)
        here &= (uint32_t)(load_relaxed_64(first + i) >> 32) == now->stamp;
    return __all_sync(GPU_ALL, here);
}

/* ---- how long it takes ------------------------------------------------------------------------------------------- */

/* What waits for ranks have come to in a block's receive; each rank's data are awaited behind its unit. */
GPU_FUNC void ll_clear_waits(const ll_gpu_call *c, const ll_shared *s)
{
    for (int32_t r = threadIdx.x; c->wait_ns && r < LL_RANKS(c); r += blockDim.x)
        s->waits[r] = 0;
    __syncthreads();
}
GPU_FUNC uint64_t ll_wait_begin(const ll_gpu_call *c)
{
    return c->wait_ns ? clock_now() : 0;
}
/* By several threads that have begun alike at `before`: what the block had waited for the rank by then. */
GPU_FUNC void ll_wait_end(const ll_gpu_call *c, const ll_shared *s, int32_t source, uint64_t before, uint64_t since_ns)
{
    if (c->wait_ns && source != c->world.rank) atomicMax(&s->waits[source], before + (clock_now() - since_ns));
}

/* By all threads of a block that has received. */
GPU_FUNC void ll_keep_waits(const ll_gpu_call *c, const ll_shared *s)
{
    if (!c->wait_ns) return;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x)
        atomicMax((unsigned long long *)&c->waits[r], s->waits[r]);
}

/* By the last block. */
GPU_FUNC void ll_tell_waits(const ll_gpu_call *c)
{
    for (int32_t r = threadIdx.x; c->wait_ns && r < LL_RANKS(c); r += blockDim.x) {
        c->wait_ns[r] += (int64_t)c->waits[r];
        c->waits[r] = 0;
    }
}

/* Whether this rank's data of the call may go to the peer. */
typedef enum ll_gpu_door { LL_GPU_LEAVES = -1, LL_GPU_REFUSES = 0, LL_GPU_OPEN = 1 } ll_gpu_door;

/* Of a combine with masks: where the half of the rank lies, as its unit or its read word says. */
GPU_FUNC int32_t ll_region_of(const ll_gpu_call *c, uint64_t word)
{
    return (uint32_t)word < (uint32_t)c->shape.regions ? (int32_t)(uint32_t)word : 0;
}

/* Until the peer's half is free, or it refuses: its read word of the call before the last, or its unit of this one.
   region: of a combine with masks, where it is open. This rank's own unit tells its own. */
GPU_FUNC ll_gpu_door ll_await_half(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe,
                                   int32_t *region)
{
    const ll_kind kind = (ll_kind)now->kind;
    const bool own = pe == c->world.rank, tells = LL_MASKS && kind == LL_COMBINE;
    *region = 0;
    if (s->open[pe] && !ll_is_masked(c, pe)) return LL_GPU_OPEN;
    if (ll_is_masked(c, pe)) return LL_GPU_REFUSES;
    if (!(tells && own) && (own || now->before == 0)) return LL_GPU_OPEN;
    const uint64_t *read = (const uint64_t *)ll_own(c, ll_read_at(&c->space, kind, pe, now->epoch));
    const uint64_t *unit = (const uint64_t *)ll_own(c, ll_unit_at(&c->space, kind, pe, now->epoch));
    ll_waiting w = {{0, 0, 0}, 0, false};
    for (;;) {
        const uint64_t seen = load_acquire(read);
        if (tells && !own) *region = ll_region_of(c, seen);
        if (!own && (uint32_t)(seen >> 32) == now->before) return LL_GPU_OPEN;
        const uint64_t status = load_acquire(unit + LL_UNIT_STATUS);
        const bool came = (uint32_t)(status >> 32) == now->stamp;
        if (came && !ll_status_goes_on((int32_t)(uint32_t)status)) return LL_GPU_REFUSES;
        if (came && !tells) return LL_GPU_OPEN;
        const uint64_t told = tells && came ? load_acquire(unit + LL_UNIT_MESSAGES) : 0;
        *region = ll_region_of(c, told);
        if (tells && came && (uint32_t)(told >> 32) == now->stamp) return LL_GPU_OPEN;
        const ll_gpu_turn turn = ll_may_wait(c, s, &w, GPU_WAIT_HALF, pe, seen, ll_flag_of(now, 0));
        if (turn != LL_TURN_ON) return turn == LL_TURN_LOST ? LL_GPU_REFUSES : LL_GPU_LEAVES;
    }
}

/* ---- opening units ----------------------------------------------------------------------------------------------- */

GPU_FUNC int32_t ll_unit_words(const ll_gpu_call *c, int32_t kind)
{
    return LL_UNIT_COUNTS + (kind == LL_DISPATCH ? c->shape.local_experts : 0);
}

/* Whether the rank is told of the call; the same for all threads of the block. */
GPU_FUNC bool ll_is_told(const ll_gpu_call *c, int32_t pe)
{
    return !LL_MASKS || !__syncthreads_or(ll_is_masked(c, pe));
}

GPU_FUNC uint8_t *ll_kept_unit(const ll_gpu_call *c, int32_t kind, int32_t half, int32_t source)
{
    const int64_t number = ((int64_t)kind * LL_HALVES + half) * LL_RANKS(c) + source;
    return c->kept + number * (int64_t)c->space.unit_bytes[LL_DISPATCH];
}

/* The half's last call was not read here: until all ranks have made the one between. Of a call that is still open the
   units are kept, which this one lets others overtake. By one block, before its units leave. */
GPU_FUNC bool ll_await_between(const ll_gpu_call *c, const ll_shared *s, const ll_now *now)
{
    const ll_kind kind = (ll_kind)now->kind;
    const int32_t words = (int32_t)(c->space.unit_bytes[kind] / 8);
    const ll_gpu_line *line = ll_line_of(c, kind);
    const uint64_t open = line->open[now->half];
    bool ok = true;
    for (int32_t pe = threadIdx.x; pe < LL_RANKS(c) && now->between; pe += blockDim.x) {
        uint64_t seen;
        const uint8_t *unit = ll_own(c, ll_unit_at(&c->space, kind, pe, now->epoch - 1));
        ok &= ll_await(c, s, (const uint64_t *)unit + LL_UNIT_STATUS, now->between, GPU_WAIT_UNIT, pe, &seen) !=
              LL_TURN_LEAVE;
    }
    if (__syncthreads_or(!ok)) return false;
    for (int32_t pe = 0; pe < LL_RANKS(c) && open && !line->kept[now->half]; pe++) {
        const uint64_t *unit = (const uint64_t *)ll_own(c, ll_unit_at(&c->space, kind, pe, open));
        uint64_t *keep = (uint64_t *)ll_kept_unit(c, kind, now->half, pe);
        for (int32_t w = threadIdx.x; w < words; w += blockDim.x)
            keep[w] = load_relaxed_64(unit + w);
    }
    __syncthreads();
    return true;
}

/* Whether this block opens the call at some ranks, and from which one on: the last blocks at one each, as they have
   less else to do. */
GPU_FUNC int32_t ll_first_opened(const ll_now *now)
{
    return now->behind && blockIdx.x ? 1 << 30 : now->behind ? 0 : (int32_t)(gridDim.x - 1 - blockIdx.x);
}
GPU_FUNC int32_t ll_opened_stride(const ll_now *now)
{
    return now->behind ? 1 : (int32_t)gridDim.x;
}

/* That quick calls have been read here. The kernels that have read them have ended. By the blocks that open a call of
   any kind, or the last one of a receive. */
GPU_FUNC void ll_tell_read(const ll_gpu_call *c, const ll_shared *s, int32_t pe)
{
    for (int32_t kind = threadIdx.x; kind < LL_KINDS && pe != c->world.rank; kind += blockDim.x) {
        const uint64_t epoch = ll_line_of(c, kind)->untold;
        if (!epoch) continue;
        uint64_t *word = (uint64_t *)ll_there(s, pe, ll_read_at(&c->space, (ll_kind)kind, c->world.rank, epoch));
        store_release(word, ll_word(epoch, 0));
    }
}

/* One rank's unit; messages and counts ([L], shared) of a dispatch. By all threads of a block. */
GPU_FUNC void ll_post_unit(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe, uint32_t route,
                           int32_t messages, const int32_t *counts)
{
    const ll_kind kind = (ll_kind)now->kind;
    const uint64_t at = ll_unit_at(&c->space, kind, c->world.rank, now->epoch);
    uint64_t *unit = (uint64_t *)ll_there(s, pe, at);
    const int32_t status = s->refusal->status;
    const bool goes = ll_status_goes_on(status);
    for (int32_t w = threadIdx.x; w < ll_unit_words(c, kind); w += blockDim.x) {
        uint32_t value = 0;
        if (w == LL_UNIT_TAG) value = ll_form_tag(&c->form);
        if (w == LL_UNIT_ROUTE) value = route;
        if (w == LL_UNIT_MESSAGES && goes) value = (uint32_t)messages;
        if (w >= LL_UNIT_COUNTS && goes) value = (uint32_t)counts[w - LL_UNIT_COUNTS];
        if (w != LL_UNIT_STATUS || !status) store_relaxed_64(unit + w, ll_flag_of(now, value));
    }
    if (!status) return;
    const uint32_t *text = (const uint32_t *)s->refusal->text;
    uint32_t *to = (uint32_t *)(ll_there(s, pe, at) + ll_unit_text_at(&c->shape, kind));
    for (int32_t i = threadIdx.x; i < EP_REFUSAL_TEXT / 4; i += blockDim.x)
        to[i] = text[i];
    __syncthreads();
    if (threadIdx.x == 0) store_release(unit + LL_UNIT_STATUS, ll_flag_of(now, (uint32_t)status));
}

/* By one thread: what the call sends to the rank. */
GPU_FUNC void ll_count_sent(const ll_gpu_call *c, int32_t pe, int32_t messages, int32_t rows, uint64_t bytes)
{
    ll_gpu_tally *tally = &c->tally[pe];
    ll_gpu_counts *counts = &c->counts[pe];
    if (messages + rows == 0) return;
    tally->messages += (unsigned long long)messages;
    tally->rows += (unsigned long long)rows;
    const uint64_t before = atomicAdd(&tally->bytes, (unsigned long long)bytes);
    store_relaxed_64(&counts->messages, tally->messages);
    store_relaxed_64(&counts->rows, tally->rows);
    store_relaxed_64(&counts->bytes, before + bytes);
}

GPU_FUNC const uint64_t *ll_unit_of(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t source)
{
    if (now->kept) return (const uint64_t *)ll_kept_unit(c, now->kind, now->half, source);
    return (const uint64_t *)ll_own(c, ll_unit_at(&c->space, (ll_kind)now->kind, source, now->epoch));
}

/* A word of the source's unit. */
GPU_FUNC void ll_note_told(const ll_gpu_call *c, const ll_shared *s, int32_t source, int32_t w, int32_t value,
                           int32_t *counts)
{
    if (w == LL_UNIT_STATUS) s->status[source] = value;
    if (w == LL_UNIT_TAG) s->tag[source] = value;
    if (w == LL_UNIT_ROUTE) s->route[source] = value;
    if (w == LL_UNIT_MESSAGES) s->messages[source] = value;
    if (w >= LL_UNIT_COUNTS) counts[source * c->shape.local_experts + w - LL_UNIT_COUNTS] = value;
}

/* Whether a word of a unit is what a call that goes well brings. */
GPU_FUNC bool ll_is_usual(const ll_gpu_call *c, int32_t w, uint32_t value, uint32_t route)
{
    if (w == LL_UNIT_STATUS) return value == 0;
    if (w == LL_UNIT_TAG) return value == ll_form_tag(&c->form);
    if (w == LL_UNIT_ROUTE) return value == route;
    const bool words = w == LL_UNIT_MESSAGES && value & LL_UNIT_IN_WORDS;
    const uint32_t most = (uint32_t)(words ? c->shape.word_tokens : c->shape.tokens);
    return (words ? value & ~LL_UNIT_IN_WORDS : value) <= most;
}

/* A peer whose counts do not fit the buffer is taken for one that refuses, whatever has become of it. */
GPU_FUNC void ll_doubt_counts(const ll_gpu_call *c, const ll_shared *s, const int32_t *counts)
{
    const int32_t locals = c->shape.local_experts;
    for (int32_t i = threadIdx.x; i < LL_RANKS(c) * locals; i += blockDim.x)
        if ((uint32_t)counts[i] > (uint32_t)c->shape.tokens) s->status[i / locals] = EXPAR_STATUS_PEER;
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x)
        if (!ll_is_usual(c, LL_UNIT_MESSAGES, (uint32_t)s->messages[r], 0)) s->status[r] = EXPAR_STATUS_PEER;
    __syncthreads();
    if (LL_MASKS) ll_mask_doubted(c, s);
}

/* What has become of each rank's unit in this block, which all blocks agree on: those that have seen it whole, and
   those that have not, since its rank has been masked meanwhile. Of one that another block has seen whole all words are
   there. counts as below. */
GPU_FUNC void ll_decide_units(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t *counts)
{
    const int32_t words = ll_unit_words(c, now->kind), all = words * LL_RANKS(c);
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x)
        s->out[r] = ll_decide(c, now, r, s->out[r] != LL_OUT_NOT);
    __syncthreads();
    for (int32_t i = threadIdx.x; i < all; i += blockDim.x) {
        const int32_t source = i / words, w = i - source * words;
        if (s->out[source] == LL_OUT_NOT) continue;
        const uint64_t *word = ll_unit_of(c, s, now, source) + w;
        uint64_t seen = 0;
        while (s->out[source] == LL_OUT_BUT_HERE && (uint32_t)(seen >> 32) != now->stamp)
            seen = load_acquire(word);
        const bool out = s->out[source] == LL_OUT;
        ll_note_told(c, s, source, w, out && w == LL_UNIT_STATUS ? LL_GPU_IS_OUT : (int32_t)(uint32_t)seen, counts);
    }
    __syncthreads();
}

GPU_FUNC int32_t ll_messages_of(const ll_shared *s, int32_t source)
{
    return (int32_t)((uint32_t)s->messages[source] & ~LL_UNIT_IN_WORDS);
}
GPU_FUNC bool ll_in_words(const ll_shared *s, int32_t source)
{
    return !LL_MASKS && ((uint32_t)s->messages[source] & LL_UNIT_IN_WORDS);
}

GPU_FUNC bool ll_sends_data(const ll_shared *s, int32_t source)
{
    return ll_status_goes_on(s->status[source]);
}

/* How the call stands once all units are known. */
typedef struct ll_outcome {
    bool left;       /* a wait was given up */
    bool odd;        /* somebody refused, reports or differs */
    bool mismatched; /* a rank that goes on has another form: nothing more is awaited */
} ll_outcome;

GPU_FUNC bool ll_is_out(const ll_shared *s, int32_t source)
{
    return LL_MASKS && s->status[source] == LL_GPU_IS_OUT;
}
/* It does, or reports. */
GPU_FUNC bool ll_refuses(const ll_shared *s, int32_t source)
{
    return s->status[source] && !ll_is_out(s, source);
}

GPU_FUNC bool ll_has_form(const ll_gpu_call *c, const ll_shared *s, int32_t source, uint32_t route)
{
    if (ll_is_out(s, source)) return true;
    return (uint32_t)s->tag[source] == ll_form_tag(&c->form) && (uint32_t)s->route[source] == route;
}

/* Of units that all are known. By all threads of a block. */
GPU_FUNC ll_outcome ll_judge(const ll_gpu_call *c, const ll_shared *s, uint32_t route)
{
    bool odd = false, differs = false;
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x) {
        const bool other = !ll_has_form(c, s, r, route);
        odd |= other || ll_refuses(s, r);
        differs |= other && ll_sends_data(s, r);
    }
    ll_outcome outcome = {false, __syncthreads_or(odd) != 0, false};
    if (outcome.odd) outcome.mismatched = __syncthreads_or(differs) != 0;
    return outcome;
}

/* All ranks' units, into shared memory, and what they make of the call; counts: [N][L], of a dispatch. By all threads
   of each block, which meet once where all is well. */
GPU_FUNC ll_outcome ll_take_units(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, uint32_t route,
                                  int32_t *counts)
{
    const int32_t words = ll_unit_words(c, now->kind), all = words * LL_RANKS(c);
    const uint64_t since_ns = ll_wait_begin(c);
    ll_outcome outcome = {false, false, false};
    bool ok = true, usual = !LL_MASKS;
    for (int32_t r = threadIdx.x; LL_MASKS && r < LL_RANKS(c); r += blockDim.x)
        s->out[r] = LL_OUT_NOT;
    if (LL_MASKS) __syncthreads();
    for (int32_t i = threadIdx.x; i < all; i += blockDim.x) {
        const int32_t source = i / words, w = i - source * words;
        uint64_t seen = 0;
        const ll_gpu_turn turn =
            ll_await_word(c, s, ll_unit_of(c, s, now, source) + w, now->stamp, GPU_WAIT_UNIT, source, &seen);
        ok &= turn != LL_TURN_LEAVE;
        ll_wait_end(c, s, source, 0, since_ns);
        if (LL_MASKS && turn == LL_TURN_LOST) s->out[source] = LL_OUT;
        ll_note_told(c, s, source, w, (int32_t)(uint32_t)seen, counts);
        usual &= ll_is_usual(c, w, (uint32_t)seen, route);
    }
    if (!__syncthreads_or(!ok || !usual)) return outcome;
    outcome.left = __syncthreads_or(!ok) != 0;
    if (outcome.left) return outcome;
    fence_system(); /* what a refusal's status stands behind */
    if (LL_MASKS) ll_decide_units(c, s, now, counts);
    if (now->kind == LL_DISPATCH) ll_doubt_counts(c, s, counts);
    return ll_judge(c, s, route);
}

/* Of a call that is odd, by one thread: this rank where it refused, else the lowest that did, with its reason, else the
   lowest that differs. */
GPU_FUNC void ll_report(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, uint32_t route)
{
    gpu_verdict *slot = verdict_slot(&c->world);
    int32_t rank = 0;
    if (!slot) return;
    while (rank < LL_RANKS(c) && !ll_refuses(s, rank))
        rank++;
    if (s->status[c->world.rank]) rank = c->world.rank;
    const bool refused = rank < LL_RANKS(c);
    for (rank = refused ? rank : 0; !refused && rank < LL_RANKS(c) && ll_has_form(c, s, rank, route);)
        rank++;
    const ll_form form = ll_form_of((uint32_t)s->tag[rank], (uint32_t)s->route[rank]);
    ll_form own = c->form;
    slot->rank = rank;
    slot->dropped = 0;
    slot->reason.status = refused ? s->status[rank] : 0;
    slot->reason.text[0] = 0;
    if (refused && s->status[rank] != EXPAR_STATUS_PEER) {
        const uint8_t *unit = (const uint8_t *)ll_unit_of(c, s, now, rank);
        copy_words(slot->reason.text, unit + ll_unit_text_at(&c->shape, (ll_kind)now->kind), EP_REFUSAL_TEXT);
    } else if (refused) {
        put_text(slot->reason.text, "its counts are beyond this buffer's tokens");
    }
    copy_words(&slot->form, &form, sizeof form);
    own.route = route;
    copy_words(&slot->form0, &own, sizeof own);
    publish_verdict(&c->world, slot);
}

/* ---- a call ends ------------------------------------------------------------------------------------------------- */

GPU_FUNC void ll_clear_words(const ll_gpu_call *c, uint64_t at, uint64_t bytes)
{
    uint64_t *words = (uint64_t *)ll_own(c, at);
    for (uint64_t i = threadIdx.x; i < bytes / 8; i += blockDim.x)
        words[i] = 0;
}

/* Words of the half, whose data have all been read and whose next have no leave yet: once in so many calls, that none
   of them is taken for one of a call with the same stamp. True: they have been. */
GPU_FUNC bool ll_sweep(const ll_gpu_call *c, const ll_now *now)
{
    const ll_space *space = &c->space;
    const uint64_t half = (uint64_t)now->half, share = (uint64_t)LL_RANKS(c) * space->flag_share_bytes;
    const uint64_t rows = (uint64_t)c->shape.tokens * (uint64_t)space->places * 8;
    const uint64_t region = LL_MASKS ? (uint64_t)c->masks->region[now->half] * LL_HALVES : 0;
    const uint64_t small = 2 * (uint64_t)c->shape.word_tokens;
    const uint64_t messages = small * (uint64_t)LL_RANKS(c) * space->message_bytes;
    const uint64_t places = small * (uint64_t)space->places * space->place_bytes;
    if (now->epoch - ll_line_of(c, now->kind)->swept[now->half] < LL_SWEEP_CALLS) return false;
    if (now->kind == LL_DISPATCH) {
        ll_clear_words(c, space->message_flags + half * share, share);
        ll_clear_words(c, space->word_messages + half * messages, messages);
    } else {
        ll_clear_words(c, space->row_flags + (region + half) * rows, rows);
        ll_clear_words(c, space->word_rows + half * places, places);
        if (c->shape.reduced) ll_clear_words(c, space->weight_flags + half * share, share);
    }
    __syncthreads();
    return true;
}

GPU_FUNC void ll_say_read(const ll_gpu_call *c, const ll_shared *s, const ll_now *now)
{
    const bool moves = LL_MASKS && now->kind == LL_COMBINE;
    if (moves) ll_settle(c, s, now->half);
    const uint32_t region = moves ? (uint32_t)c->masks->region[now->half] : 0;
    for (int32_t i = threadIdx.x; i + 1 < LL_RANKS(c); i += blockDim.x) {
        const int32_t pe = (c->world.rank + 1 + i) % LL_RANKS(c);
        if (ll_is_masked(c, pe)) continue;
        store_release((uint64_t *)ll_there(s, pe, ll_read_at(&c->space, (ll_kind)now->kind, c->world.rank, now->epoch)),
                      ll_flag_of(now, region));
    }
}

/* What a call leaves to the next kernel, of its line as it was found. */
GPU_FUNC void ll_move_on(const ll_gpu_call *c, const ll_now *now, ll_gpu_line *line, bool refused, bool received,
                         bool mismatched)
{
    const int32_t half = now->half;
    if (c->phases & LL_GPU_SEND) {
        line->epoch = now->epoch;
        if (line->open[half] && now->behind) line->kept[half] = 1;
        line->unread[half] = refused;
        if (!refused) line->open[half] = now->epoch;
    }
    if (received) {
        line->open[half] = 0;
        line->kept[half] = 0;
        if (mismatched) line->unread[half] = 1;
    }
}

/* So in all copies; by all threads of the last block to end. */
GPU_FUNC void ll_move_all_on(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, bool received,
                             bool mismatched, bool swept)
{
    const bool refused = !ll_status_goes_on(s->refusal->status);
    for (int32_t i = threadIdx.x; i < c->copies; i += blockDim.x) {
        ll_gpu_line *line = &c->state[i].lines[now->kind];
        ll_move_on(c, now, line, refused, received, mismatched);
        if (swept) line->swept[now->half] = now->epoch;
        line->untold = c->state[i].lines[1 - now->kind].untold = 0;
    }
    if (threadIdx.x || !(c->phases & LL_GPU_SEND)) return;
    if (c->record) c->record->epoch = refused ? 0 : now->epoch;
    if (c->record && refused) copy_words(&c->record->refusal, s->refusal, sizeof *s->refusal);
    if (!c->record && refused && !c->refusal.status) ll_report_own(c, s->refusal);
}

/* A quick call that was received: each block by itself, for its own copy and those that are no block's here. Before it
   nothing was open, kept or unread in the half. */
GPU_FUNC void ll_move_on_quickly(const ll_gpu_call *c, const ll_now *now, bool mismatched)
{
    for (int32_t i = (int32_t)blockIdx.x; i < c->copies && threadIdx.x == 0; i += (int32_t)gridDim.x) {
        ll_gpu_line *line = &c->state[i].lines[now->kind];
        line->epoch = now->epoch;
        line->untold = mismatched ? 0 : now->epoch;
        if (mismatched) line->unread[now->half] = 1;
        c->state[i].lines[1 - now->kind].untold = 0;
    }
}

GPU_FUNC void ll_ends_quickly(const ll_gpu_call *c, const ll_now *now, bool mismatched)
{
    ll_move_on_quickly(c, now, mismatched);
    ll_stamp_time(c, LL_GPU_DONE);
    ll_stamp_time(c, LL_GPU_ENDED);
}

/* By all threads of all blocks: true in the last one to end. */
GPU_FUNC bool ll_ends_last(const ll_gpu_call *c, const ll_shared *s, bool received)
{
    ll_stamp_time(c, LL_GPU_DONE);
    if (received) ll_keep_waits(c, s);
    return last_block(&c->world, false);
}

/* By that block. */
GPU_FUNC void ll_close(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, bool received, bool mismatched)
{
    bool swept = false;
    for (int32_t pe = 0; pe < LL_RANKS(c) && !(c->phases & LL_GPU_SEND); pe++)
        ll_tell_read(c, s, pe);
    if (received) ll_tell_waits(c);
    if (received && !mismatched && !__syncthreads_or(has_failed(&c->world))) {
        swept = ll_sweep(c, now);
        ll_say_read(c, s, now);
    }
    ll_move_all_on(c, s, now, received, mismatched, swept);
    if (threadIdx.x == 0 && LL_MASKS) {
        c->masks->steps++;
        c->masks->lost = 0;
    }
    /* Coded rows have been counted since. */
    for (int32_t pe = threadIdx.x; c->kind == LL_COMBINE && pe < LL_RANKS(c); pe += blockDim.x)
        store_relaxed_64(&c->counts[pe].bytes, c->tally[pe].bytes);
    ll_stamp_time(c, LL_GPU_ENDED);
}

#endif
