/* SPDX-License-Identifier: Apache-2.0 */
/* Words about masks and cleans for ranks that are not mapped.
 *
 * Near ranks get them at once, by stores. A far rank must be told the words that shall stand in its memory: this rank's
 * masker, and the words that it says in a clean. This rank's own memory has the originals. They go after everything
 * that was sent to the rank before (ll_far_has_come), and one after the other. A rank that is stopped may take nothing
 * for long. In the end it gets the values of that time, and never all those between.
 *
 * So it sees what a slow reader of mapped memory might see. A block of words goes by one put, with its voucher after
 * it, and readers trust only words with a voucher. Before words are overwritten that a reader may be looking at, the
 * voucher is taken back (LL_CLEAN_DECIDED 0, step 0 of LL_CLEAN_STAGE). The next view needs none of that, since views
 * of even and of odd steps lie apart. A decision goes before later words: a rank that finds another one in an attempt
 * knows its earlier decisions. */
#include "base/knobs.h"
#include "exec/cpu/low_latency/far/links.h"

#include <string.h>
#include <time.h>

/* ---- what ranks must still be told ------------------------------------------------------------------------------- */

static uint64_t said(const ll_cpu *self, int32_t word)
{
    return ll_look(self, ll_clean_at(&self->space, self->sym->rank, word));
}

bool ll_far_is_owed(const ll_cpu *self, int32_t rank)
{
    const ll_far_words *words = &self->links->ranks[rank].words;
    if (!ll_is_far(self, rank) || words->cut_off) return false;
    return words->masker != words->told_masker || said(self, LL_CLEAN_DECIDED) != words->told_decided ||
           said(self, LL_CLEAN_STAGE) != words->told_stage;
}

/* ---- one word under way ------------------------------------------------------------------------------------------ */

static expar_status send_word(const ll_cpu *self, int32_t pe, uint64_t at, uint64_t word)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    const link_flag flag = {.offset = self->buffer + at, .word = word};
    ll_step(self);
    return link_set_flag(&rank->link, &flag, &rank->words.batch);
}

static expar_status send_voucher(const ll_cpu *self, int32_t pe, int32_t voucher, uint64_t word)
{
    return send_word(self, pe, ll_clean_at(&self->space, self->sym->rank, voucher), word);
}

/* Sends words that this rank says, and after them the word that vouches for them. */
static expar_status send_said(const ll_cpu *self, int32_t pe, int32_t first, int32_t count, int32_t voucher,
                              uint64_t word)
{
    ll_far_rank *rank = &self->links->ranks[pe];
    const uint64_t at = ll_clean_at(&self->space, self->sym->rank, first);
    const size_t bytes = (size_t)count * sizeof(uint64_t);
    memcpy(rank->words.block, ll_here(self, at), bytes);
    const link_data data = {.offset = self->buffer + at, .source = rank->words.block, .bytes = bytes};
    const link_flag flag = {.offset = self->buffer + ll_clean_at(&self->space, self->sym->rank, voucher), .word = word};
    ll_step(self);
    return link_put_flag(&rank->link, &data, &flag, &rank->words.batch);
}

static int32_t words_of_set(const ll_cpu *self)
{
    return (self->shape.ranks + 1) / 2;
}

static expar_status tell_masker(const ll_cpu *self, int32_t pe)
{
    ll_far_words *words = &self->links->ranks[pe].words;
    words->told_masker = words->masker;
    return send_word(self, pe, ll_masker_at(&self->space, self->sym->rank), words->masker);
}

static expar_status tell_decided(const ll_cpu *self, int32_t pe, uint64_t decided)
{
    ll_far_words *words = &self->links->ranks[pe].words;
    const bool stands = words->told_decided != 0;
    words->told_decided = stands ? 0 : decided;
    if (stands) return send_voucher(self, pe, LL_CLEAN_DECIDED, 0);
    return send_said(self, pe, LL_CLEAN_SET + (LL_CLEAN_SETS - 1) * words_of_set(self),
                     words_of_set(self) + LL_CLEAN_RESULTS, LL_CLEAN_DECIDED, decided);
}

static expar_status tell_stage(const ll_cpu *self, int32_t pe, uint64_t stage)
{
    ll_far_words *words = &self->links->ranks[pe].words;
    const uint64_t told = words->told_stage, begun = stage >> 32 << 32;
    const int32_t step = (int32_t)(uint32_t)stage;
    words->told_stage = stage;
    if (told != begun && told + 1 == stage)
        return send_said(self, pe, LL_CLEAN_SET + step % 2 * words_of_set(self), words_of_set(self), LL_CLEAN_STAGE,
                         stage);
    if (told == begun)
        return send_said(self, pe, LL_CLEAN_CALLS, LL_CLEAN_SAID - LL_CLEAN_CALLS + 2 * words_of_set(self),
                         LL_CLEAN_STAGE, stage);
    words->told_stage = begun;
    return send_voucher(self, pe, LL_CLEAN_STAGE, begun);
}

/* Sends the next word that the rank has not been told. */
static expar_status tell_next(const ll_cpu *self, int32_t pe)
{
    const ll_far_words *words = &self->links->ranks[pe].words;
    const uint64_t decided = said(self, LL_CLEAN_DECIDED);
    if (words->masker != words->told_masker) return tell_masker(self, pe);
    if (words->told_decided != decided) return tell_decided(self, pe, decided);
    return tell_stage(self, pe, said(self, LL_CLEAN_STAGE));
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

/* Nothing more reaches the rank by this way. Data sent to it in calls fail, too, and mask it. */
static void cut_off(const ll_cpu *self, int32_t pe)
{
    self->links->ranks[pe].words.cut_off = true;
    self->masks->cleaner->cut_off[pe] = true;
}

/* A failure here does not belong to the present call, whose error text stays. */
static void spread_to(const ll_cpu *self, int32_t pe)
{
    ll_far_words *words = &self->links->ranks[pe].words;
    error_kept before;
    error_save(&before);
    while (link_is_quiet(&words->batch) && ll_far_is_owed(self, pe) && ll_far_has_come(self, pe)) {
        expar_status status = link_quiet(self->sym, &words->batch);
        if (status == EXPAR_OK) status = tell_next(self, pe);
        if (status != EXPAR_OK) cut_off(self, pe);
    }
    error_put_back(&before);
}

void ll_far_spread(const ll_cpu *self)
{
    if (!self->masks) return;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (ll_far_is_owed(self, r)) spread_to(self, r);
}

void ll_far_masker(const ll_cpu *self, int32_t rank, uint64_t masker)
{
    self->links->ranks[rank].words.masker = masker;
    ll_far_spread(self);
}

void ll_far_linger(const ll_cpu *self, int32_t rank)
{
    const int64_t end_ns = clock_ns() + knob(KNOB_LINK_LINGER_NS);
    ll_far_spread(self);
    while (!self->links->ranks[rank].words.cut_off && clock_ns() < end_ns &&
           (ll_far_is_owed(self, rank) || !link_is_quiet(&self->links->ranks[rank].words.batch))) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        ll_far_spread(self);
    }
}

expar_status ll_far_conclude(const ll_cpu *self, const uint32_t *view)
{
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
        const ll_far_wait wait = {.self = self->links->cpu, .pe = r};
        if (view[r] && ll_is_far(self, r)) status = ll_far_wait_on(&wait);
        if (status == EXPAR_ERR_PEER) status = EXPAR_OK;
    }
    return status;
}
