/* SPDX-License-Identifier: Apache-2.0 */
/* Words about masks and cleans for ranks that are not mapped: which word goes next. */
#include "exec/far_words.h"

#include <string.h>

/* ---- what the rank must still be told ---------------------------------------------------------------------------- */

/* This rank's thread in the call writes these words, and it may be another one that sends them. */
static uint64_t said(const far_words_place *place, int32_t word)
{
    const _Atomic uint64_t *words = (const _Atomic uint64_t *)(const void *)place->said;
    return atomic_load_explicit(&words[word], memory_order_acquire);
}

bool far_words_are_owed(const far_words_place *place, const far_words *words)
{
    if (words->cut_off) return false;
    return words->masker != words->told_masker || said(place, LL_CLEAN_DECIDED) != words->told_decided ||
           said(place, LL_CLEAN_STAGE) != words->told_stage;
}

/* ---- one word under way ------------------------------------------------------------------------------------------ */

static void pause_between(const far_words_place *place)
{
    if (place->between) place->between(place->context);
}

static uint64_t clean_at(const far_words_place *place, int32_t word)
{
    return place->cleans + (uint64_t)word * sizeof(uint64_t);
}

static expar_status send_voucher(const far_words_place *place, far_words *words, int32_t voucher, uint64_t word)
{
    const link_flag flag = {.offset = clean_at(place, voucher), .word = word};
    pause_between(place);
    return link_set_flag(words->cleans, &flag, &words->batch);
}

/* Sends words that this rank says, and after them the word that vouches for them. */
static expar_status send_said(const far_words_place *place, far_words *words, int32_t first, int32_t count,
                              int32_t voucher, uint64_t word)
{
    for (int32_t w = 0; w < count; w++)
        words->block[w] = said(place, first + w);
    const link_data data = {
        .offset = clean_at(place, first), .source = words->block, .bytes = (size_t)count * sizeof *words->block};
    const link_flag flag = {.offset = clean_at(place, voucher), .word = word};
    pause_between(place);
    return link_put_flag(words->cleans, &data, &flag, &words->batch);
}

static int32_t words_of_set(const far_words_place *place)
{
    return (place->ranks + 1) / 2;
}

static expar_status tell_masker(const far_words_place *place, far_words *words)
{
    const link_flag flag = {.offset = place->masker, .word = words->masker};
    words->told_masker = words->masker;
    pause_between(place);
    return link_set_flag(words->maskers, &flag, &words->batch);
}

static expar_status tell_decided(const far_words_place *place, far_words *words, uint64_t decided)
{
    const bool stands = words->told_decided != 0;
    words->told_decided = stands ? 0 : decided;
    if (stands) return send_voucher(place, words, LL_CLEAN_DECIDED, 0);
    return send_said(place, words, LL_CLEAN_SET + (LL_CLEAN_SETS - 1) * words_of_set(place),
                     words_of_set(place) + LL_CLEAN_RESULTS, LL_CLEAN_DECIDED, decided);
}

static expar_status tell_stage(const far_words_place *place, far_words *words, uint64_t stage)
{
    const uint64_t told = words->told_stage, begun = stage >> 32 << 32;
    const int32_t at = (int32_t)(uint32_t)stage;
    words->told_stage = stage;
    if (told != begun && told + 1 == stage)
        return send_said(place, words, LL_CLEAN_SET + at % 2 * words_of_set(place), words_of_set(place), LL_CLEAN_STAGE,
                         stage);
    if (told == begun)
        return send_said(place, words, LL_CLEAN_CALLS, LL_CLEAN_SAID - LL_CLEAN_CALLS + 2 * words_of_set(place),
                         LL_CLEAN_STAGE, stage);
    words->told_stage = begun;
    return send_voucher(place, words, LL_CLEAN_STAGE, begun);
}

static expar_status tell_next(const far_words_place *place, far_words *words)
{
    const uint64_t decided = said(place, LL_CLEAN_DECIDED);
    if (words->masker != words->told_masker) return tell_masker(place, words);
    if (words->told_decided != decided) return tell_decided(place, words, decided);
    return tell_stage(place, words, said(place, LL_CLEAN_STAGE));
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

/* A failure here does not belong to the present call, whose error text stays. */
void far_words_spread(const far_words_place *place, far_words *words, int32_t pe)
{
    error_kept before;
    error_save(&before);
    while (link_is_quiet(&words->batch) && far_words_are_owed(place, words) && place->has_come(place->context, pe)) {
        expar_status status = link_quiet(place->sym, &words->batch);
        if (status == EXPAR_OK) status = tell_next(place, words);
        if (status != EXPAR_OK) words->cut_off = true;
    }
    error_put_back(&before);
}
