/* SPDX-License-Identifier: Apache-2.0 */
/* The state of cleans on a rank, and the words by which ranks tell each other: see members.h. */
#include "group/members.h"

#include <stdlib.h>

/* ---- the object -------------------------------------------------------------------------------------------------- */

void members_free(group_members *cleaner)
{
    if (!cleaner) return;
    free(cleaner->words);
    free(cleaner->seen);
    free(cleaner->taken);
    free(cleaner->view);
    free(cleaner->other);
    free(cleaner->in_view);
    free(cleaner->cut_off);
    free(cleaner->said);
    free(cleaner);
}

group_members *members_make(sym *symmetric, uint32_t kind, uint32_t number, uint64_t clean_bytes)
{
    const size_t n = (size_t)symmetric->size;
    group_members *cleaner = calloc(1, sizeof *cleaner);
    if (!cleaner) return NULL;
    *cleaner = (group_members){.sym = symmetric, .kind = kind, .number = number, .clean_bytes = clean_bytes};
    cleaner->words = calloc(n, sizeof *cleaner->words);
    cleaner->seen = calloc(n, sizeof *cleaner->seen);
    cleaner->taken = calloc(n, sizeof *cleaner->taken);
    cleaner->view = calloc(n, sizeof *cleaner->view);
    cleaner->other = calloc(n, sizeof *cleaner->other);
    cleaner->in_view = calloc(n, sizeof *cleaner->in_view);
    cleaner->cut_off = calloc(n, sizeof *cleaner->cut_off);
    cleaner->said = calloc(n * LL_CLEAN_SAID, sizeof *cleaner->said);
    if (cleaner->words && cleaner->seen && cleaner->taken && cleaner->view && cleaner->other && cleaner->in_view &&
        cleaner->cut_off && cleaner->said)
        return cleaner;
    members_free(cleaner);
    return NULL;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static int32_t set_words(const group_members *self)
{
    return (self->sym->size + 1) / 2;
}

size_t members_set_bytes(const group_members *self)
{
    return (size_t)self->sym->size * sizeof(uint32_t);
}

static int32_t set_at(const group_members *self, int32_t set)
{
    return LL_CLEAN_SET + set * set_words(self);
}

int32_t members_result_at(const group_members *self)
{
    return set_at(self, LL_CLEAN_SETS);
}

/* Returns the source's word in pe's memory: the source stores it (release), pe loads it (acquire). */
static _Atomic uint64_t *cleaner_word_at(const group_members *self, int32_t pe, int32_t source, int32_t word)
{
    const uint64_t at = (uint64_t)source * self->clean_bytes + (uint64_t)word * 8;
    return (_Atomic uint64_t *)(void *)(self->words[pe] + at);
}

uint64_t members_read(const group_members *self, int32_t source, int32_t word)
{
    return atomic_load_explicit(cleaner_word_at(self, self->sym->rank, source, word), memory_order_acquire);
}

uint64_t members_read_voucher(const group_members *self, int32_t source, int32_t word)
{
    const uint64_t value = members_read(self, source, word);
    if (self->spread) sym_behold(self->sym);
    return value;
}

void members_step_done(const group_members *self)
{
    if (self->delay) self->delay(self->delay_context);
}

void members_say(const group_members *self, int32_t word, uint64_t value)
{
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (!self->words[r]) continue;
        members_step_done(self);
        atomic_store_explicit(cleaner_word_at(self, r, self->sym->rank, word), value, memory_order_release);
    }
}

void members_say_set(const group_members *self, int32_t set, const uint32_t *attempts)
{
    const int32_t ranks = self->sym->size;
    for (int32_t w = 0; w < set_words(self); w++) {
        const uint64_t second = 2 * w + 1 < ranks ? attempts[2 * w + 1] : 0;
        members_say(self, set_at(self, set) + w, second << 32 | attempts[2 * w]);
    }
}

void members_spread(const group_members *self)
{
    if (self->spread) self->spread(self->spread_context);
}

void members_ring_all(const group_members *self)
{
    for (int32_t r = 0; r < self->sym->size; r++)
        sym_ring(self->sym, r);
    members_spread(self);
}

void members_say_stage(const group_members *self, uint32_t step)
{
    members_say(self, LL_CLEAN_STAGE, (uint64_t)self->attempt << 32 | step);
    members_ring_all(self);
}

uint32_t members_read_entry(const group_members *self, int32_t source, int32_t set, int32_t rank)
{
    return (uint32_t)(members_read(self, source, set_at(self, set) + rank / 2) >> (rank % 2 * 32));
}

void members_read_set(const group_members *self, int32_t source, int32_t set, uint32_t *attempts)
{
    for (int32_t r = 0; r < self->sym->size; r++)
        attempts[r] = members_read_entry(self, source, set, r);
}
