/* SPDX-License-Identifier: Apache-2.0 */
/* Masks in kernels: ranks without which a call goes on, and regions, to which slots of combines move because of them.
 * The rules are those of the CPU's executor (exec/cpu/low_latency/mask.c). The kernels handle a rank that is lost
 * during a call.
 *
 * A thread that waits for a rank makes three checks now and then: has the rank been masked, has it masked this one, has
 * the host found it lost? In the latter two cases the thread looks once more at what it waits for, and then masks the
 * rank. Blocks see that at different times. Where they must agree, they do so by a word (ll_decide), or
 * the last one to end computes the results again. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_MASKS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_MASKS_H

#include "exec/cuda/kernels/low_latency/call.h"

GPU_FUNC bool ll_is_masked(const ll_gpu_call *c, int32_t rank)
{
    return LL_MASKS && load_relaxed(&c->mask_of[rank].masked) == LL_MASK_SET;
}

/* ---- the lock ---------------------------------------------------------------------------------------------------- */

/* Takes the lock if it is free. A thread that waits for a rank never waits for the lock. */
GPU_FUNC bool ll_try_lock(const ll_gpu_call *c)
{
    if (atomicCAS(&c->masks->lock, 0u, 1u)) return false;
    fence_gpu();
    return true;
}
GPU_FUNC void ll_unlock(const ll_gpu_call *c)
{
    fence_gpu();
    atomicExch(&c->masks->lock, 0u);
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

GPU_FUNC const uint64_t *ll_masker_of(const ll_gpu_call *c, const ll_shared *s, int32_t rank)
{
    return (const uint64_t *)ll_own(c, ll_masker_place(c, rank));
}

/* Data of a rank that is not mapped may arrive after its death. */
GPU_FUNC bool ll_writes_no_more(const ll_gpu_call *c, const ll_shared *s, int32_t rank)
{
    const bool dead = !ll_is_far(c, rank) && load_relaxed_64(&c->place.losses[rank].dead);
    return dead || (load_acquire(ll_masker_of(c, s, rank)) & LL_MASKER_PARTED);
}

/* Returns the region in which the slot may be from its next acknowledgement on (ll_region_choose). The caller holds the
   lock. */
GPU_FUNC int32_t ll_find_region(const ll_gpu_call *c, const ll_shared *s, int32_t slot)
{
    uint32_t known = 0;
    for (int32_t r = 0; r < LL_RANKS(c); r++) {
        const ll_gpu_mask *one = &c->mask_of[r];
        if (load_relaxed(&one->masked) && !ll_writes_no_more(c, s, r)) known |= 1u << one->knows[slot];
    }
    return ll_region_choose(c->masks->region[slot], known, ll_shape_here(c).regions);
}

GPU_FUNC bool ll_regions_suffice(const ll_gpu_call *c, const ll_shared *s)
{
    return ll_find_region(c, s, 0) >= 0 && ll_find_region(c, s, 1) >= 0;
}

/* Moves the slot of combines out of a region that a masked rank may still write to. Nothing is awaited in the slot, and
   nobody may write to it yet. Flags in the new region may be older than any sweep, so they are cleared. All threads of
   a block call it. */
GPU_FUNC void ll_settle(const ll_gpu_call *c, const ll_shared *s, int32_t slot)
{
    const uint64_t words = (uint64_t)LL_TOKENS(c) * (uint64_t)ll_space_here(c).places;
    if (threadIdx.x == 0) {
        while (!ll_try_lock(c))
            __nanosleep(100);
        const int32_t region = ll_find_region(c, s, slot);
        *s->sum = region == c->masks->region[slot] ? -1 : region;
        if (*s->sum >= 0) c->masks->region[slot] = region;
        ll_unlock(c);
    }
    __syncthreads();
    const int32_t region = *s->sum;
    const uint64_t first = ((uint64_t)(region < 0 ? 0 : region) * LL_SLOTS + (uint64_t)slot) * words;
    uint64_t *flags = (uint64_t *)ll_own(c, ll_row_flag_place(c, first));
    for (uint64_t i = threadIdx.x; region >= 0 && i < words; i += blockDim.x)
        flags[i] = 0;
    __syncthreads();
}

/* ---- ranks that are not mapped ----------------------------------------------------------------------------------- */

#if LL_FAR && LL_MASKS
/* Returns a number that all commands to the rank so far are before. */
GPU_ASIDE uint64_t ll_sent_last(const ll_gpu_call *c, int32_t pe)
{
    const ll_gpu_far *far = &c->far[pe];
    uint64_t last = 0;
    for (int32_t kind = 0; kind < LL_KINDS; kind++) {
        for (int32_t call = 0; call < LL_GPU_SENT_CALLS; call++)
            last = max(last, load_relaxed_64((const uint64_t *)&far->sent[kind][call]));
        for (int32_t slot = 0; slot < LL_SLOTS; slot++)
            last = max(last, load_relaxed_64((const uint64_t *)&far->acknowledged[kind][slot]));
    }
    return last;
}

/* Tells the host how far commands to the rank reach. Words of cleans go after them. */
GPU_FUNC void ll_sent_tell(const ll_gpu_call *c, int32_t pe)
{
    store_release(&c->maskers[pe].after, ll_sent_last(c, pe));
}

/* Leaves the masker to the host. */
GPU_FUNC void ll_leave_masker(const ll_gpu_call *c, int32_t pe, uint64_t word)
{
    ll_sent_tell(c, pe);
    store_release(&c->maskers[pe].word, word);
}

/* After a clean: epochs go on elsewhere, so no place of the send buffer is free before all commands have ended. */
GPU_FUNC void ll_sent_begin_anew(const ll_gpu_call *c, int32_t pe)
{
    const unsigned long long last = (unsigned long long)ll_sent_last(c, pe);
    for (int32_t kind = 0; kind < LL_KINDS; kind++) {
        for (int32_t call = 0; call < LL_GPU_SENT_CALLS; call++)
            c->far[pe].sent[kind][call] = last;
        for (int32_t slot = 0; slot < LL_SLOTS; slot++)
            c->far[pe].acknowledged[kind][slot] = last;
    }
}
#else
GPU_FUNC void ll_sent_tell(const ll_gpu_call *c, int32_t pe)
{
}
GPU_FUNC void ll_leave_masker(const ll_gpu_call *c, int32_t pe, uint64_t word)
{
}
GPU_FUNC void ll_sent_begin_anew(const ll_gpu_call *c, int32_t pe)
{
}
#endif

/* ---- masking ----------------------------------------------------------------------------------------------------- */

typedef enum ll_gpu_masking { LL_MASKING_BUSY, LL_MASKING_DONE, LL_MASKING_NO_REGION } ll_gpu_masking;

GPU_FUNC void ll_tell_masker(const ll_gpu_call *c, const ll_shared *s, int32_t rank, uint64_t parted)
{
    const uint64_t word = ll_masker_word(c->mask_of[rank].masked != 0, c->masks->attempt, parted);
    if (ll_is_far(c, rank)) {
        ll_leave_masker(c, rank, word);
        return;
    }
    store_release((uint64_t *)ll_there(s, rank, ll_masker_place(c, c->place.rank)), word);
}

/* Masks another rank, until a clean if there is one, and tells it so. One thread calls it. It sets `lost` before the
   mask. */
GPU_FUNC ll_gpu_masking ll_mask_rank(const ll_gpu_call *c, const ll_shared *s, int32_t rank)
{
    ll_gpu_mask *one = &c->mask_of[rank];
    if (!ll_try_lock(c)) return LL_MASKING_BUSY;
    bool may = true;
    if (load_relaxed(&one->masked) != LL_MASK_SET) {
        one->since = ~(uint64_t)0;
        for (int32_t slot = 0; slot < LL_SLOTS; slot++)
            one->knows[slot] = c->masks->region[slot];
        atomicExch(&one->masked, LL_MASK_BEGUN);
        may = ll_regions_suffice(c, s);
        if (may) atomicExch(&c->masks->lost, 1u);
        fence_gpu();
        atomicExch(&one->masked, may ? LL_MASK_SET : 0u);
        if (may) ll_tell_masker(c, s, rank, 0);
    }
    ll_unlock(c);
    return may ? LL_MASKING_DONE : LL_MASKING_NO_REGION;
}

/* How a block handles a rank's header: it has it; it does without; or other blocks have it, and this one reads it,
   too. */
typedef enum ll_gpu_out { LL_OUT_NOT = 0, LL_OUT = 1, LL_OUT_BUT_HERE = 2 } ll_gpu_out;

/* With masks: neither the rank's header nor its data count. It replaces the status. Since a peer may send that status,
   too, LL_OUT tells which ranks are out. */
#define LL_GPU_IS_OUT (-1)

/* Masks the ranks that have left, or whose counts do not fit the buffer. All threads of each block call it. */
GPU_FUNC void ll_mask_doubted(const ll_gpu_call *c, const ll_shared *s)
{
    for (int32_t r = 0; threadIdx.x == 0 && r < LL_RANKS(c); r++) {
        if (s->status[r] != EXPAR_STATUS_PEER || r == c->place.rank) continue;
        ll_gpu_masking made;
        while ((made = ll_mask_rank(c, s, r)) == LL_MASKING_BUSY)
            __nanosleep(100);
        if (made != LL_MASKING_DONE) continue;
        s->status[r] = LL_GPU_IS_OUT;
        s->out[r] = LL_OUT;
    }
    __syncthreads();
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* The result of a wait, or of a look at one. ON: the wait goes on, or what was awaited has come. LOST: the rank has
   been masked. LEAVE: all waits end. */
typedef enum ll_gpu_turn { LL_TURN_LEAVE = -1, LL_TURN_LOST = 0, LL_TURN_ON = 1 } ll_gpu_turn;

/* A wait in progress. */
typedef struct ll_waiting {
    gpu_waiting at;
    uint32_t since_pulse; /* one more than the pulse at the first look; 0: none yet */
    bool loses;           /* the rank is lost, unless what is awaited has come by now */
} ll_waiting;

/* Polls between two looks at masks and maskers, which are in this rank's own memory. */
#define LL_MASK_POLLS 16

GPU_FUNC bool ll_is_masked_by(const ll_gpu_call *c, const ll_shared *s, int32_t peer)
{
    return ll_masker_masks(load_acquire(ll_masker_of(c, s, peer)), c->mask_of[peer].with);
}

/* True if the host has found the rank lost during this wait. A wait that has not looked yet knows no pulse, and an old
   copy of the host's findings may be about an earlier wait. */
GPU_FUNC bool ll_is_lost(const ll_gpu_call *c, ll_waiting *w, int32_t peer)
{
    if (!w->at.pulse) return false;
    if (!w->since_pulse) w->since_pulse = w->at.pulse;
    return load_relaxed_64(&c->place.lost[peer]) >= w->since_pulse;
}

GPU_FUNC ll_gpu_turn ll_may_wait(const ll_gpu_call *c, const ll_shared *s, ll_waiting *w, int32_t wait, int32_t peer,
                                 uint64_t seen, uint64_t expected)
{
    const int32_t named = wait + c->kind * GPU_LL_WAITS;
    if (LL_MASKS && w->loses) {
        const ll_gpu_masking made = ll_mask_rank(c, s, peer);
        if (made == LL_MASKING_DONE) return LL_TURN_LOST;
        if (made == LL_MASKING_NO_REGION) give_up(&c->place, named, peer, seen, expected, GPU_NO_REGION);
    }
    if (LL_MASKS && w->at.polls % LL_MASK_POLLS == LL_MASK_POLLS - 1 && peer != c->place.rank) {
        if (ll_is_masked(c, peer)) return LL_TURN_LOST;
        w->loses |= ll_is_masked_by(c, s, peer);
        if ((w->at.polls + 1) % GPU_POLLS == 0) w->loses |= ll_is_lost(c, w, peer);
    }
    if (LL_FAR) pause_polls();
    return may_wait(&c->place, &w->at, named, peer, seen, expected) ? LL_TURN_ON : LL_TURN_LEAVE;
}

/* ---- decisions of all blocks ------------------------------------------------------------------------------------- */

/* out: this block does without the header. */
GPU_FUNC int32_t ll_decide(const ll_gpu_call *c, const ll_now *now, int32_t rank, bool out)
{
    unsigned long long *word =
        (unsigned long long *)&c->decided[(now->kind * LL_SLOTS + now->slot) * LL_RANKS(c) + rank];
    const unsigned long long mine = (unsigned long long)now->stamp << 32 | (out ? 1 : 2);
    unsigned long long seen = atomicAdd(word, 0ull);
    while ((uint32_t)(seen >> 32) != now->stamp) {
        const unsigned long long before = atomicCAS(word, seen, mine);
        seen = before == seen ? mine : before;
    }
    return (uint32_t)seen == 1 ? LL_OUT : out ? LL_OUT_BUT_HERE : LL_OUT_NOT;
}

#endif
