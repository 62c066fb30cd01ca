/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether all ranks come to a buffer's end. Each rank has a word of its own in every rank's heap. In it the
 * rank says once that it comes to the end, or that it does not: it has gone, or its group has failed. A word never
 * changes again, so all ranks that come read the same. Either all of them give the buffer back together, or none does,
 * and the group is unchanged. The others wait for a rank that says nothing, as in any collective call. */
#include "ep/call/call.h"

static const char parting_name[] = "the buffer's end";

/* In each rank's heap, from parting->offset on, a word from each rank. Written once by that rank (release), read by
   the heap's owner (acquire). */
typedef enum parting_word { PARTING_UNTOLD, PARTING_COMES, PARTING_GONE, PARTING_FAILED } parting_word;

static uint64_t word_offset(const ep_parting *parting, int32_t source)
{
    return parting->offset + (uint64_t)source * sizeof(uint64_t);
}

expar_status ep_parting_make(ep_parting *parting)
{
    sym *symmetric = parting->group->sym;
    const uint64_t bytes = ep_parting_bytes(parting->group->size);
    expar_status status = sym_take(symmetric, "the buffer", bytes, sizeof(uint64_t), &parting->offset);
    /* This comes before this rank makes its part: until all ranks have made theirs, there is no buffer to end. */
    if (status == EXPAR_OK) sym_clear(symmetric, parting->offset, bytes);
    return status;
}

expar_status ep_parting_give(ep_parting *parting)
{
    return sym_give(parting->group->sym, "the buffer", parting->offset);
}

static boot_topic parting_topic(const ep_parting *parting)
{
    return (boot_topic){.kind = BOOT_KIND_END, .object = parting->number};
}

static uint64_t told_by(const ep_parting *parting, int32_t source)
{
    const sym *symmetric = parting->group->sym;
    const _Atomic uint64_t *word = sym_at(symmetric, symmetric->rank, word_offset(parting, source));
    return atomic_load_explicit(word, memory_order_acquire);
}

/* Tells this rank's absence. For a heap that is not mapped only the wait registry tells it, because this must not wait
   for a network. */
static void tell_absence(const ep_parting *parting, parting_word word, const char *reason)
{
    sym *symmetric = parting->group->sym;
    const boot_topic topic = parting_topic(parting);
    for (int32_t pe = 0; pe < symmetric->size; pe++)
        if (sym_at(symmetric, pe, 0)) sym_word_set(symmetric, pe, word_offset(parting, symmetric->rank), word);
    boot_note_ended(parting->group->boot, &topic, EXPAR_ERR_PEER, reason);
}

void ep_parting_leave(ep_parting *parting)
{
    tell_absence(parting, PARTING_GONE, "it has abandoned the buffer");
}

void ep_parting_fail(ep_parting *parting)
{
    error_kept kept;
    error_keep(&kept, EXPAR_ERR_PEER);
    tell_absence(parting, PARTING_FAILED, kept.text);
}

static expar_status tell_coming(const ep_parting *parting)
{
    sym *symmetric = parting->group->sym;
    expar_status status = EXPAR_OK;
    for (int32_t pe = 0; pe < symmetric->size && status == EXPAR_OK; pe++)
        status = sym_word_set(symmetric, pe, word_offset(parting, symmetric->rank), PARTING_COMES);
    return status;
}

static bool misses_parting(const void *context, int32_t rank)
{
    return told_by(context, rank) == PARTING_UNTOLD;
}

/* Returns the first rank that does not come, or whose word has been overwritten; -1: none is known. *all: all have
   told. */
static int32_t parting_find_absent(const ep_parting *parting, bool *all)
{
    *all = true;
    for (int32_t rank = 0; rank < parting->group->size; rank++) {
        const uint64_t told = told_by(parting, rank);
        if (told >= PARTING_GONE) return rank;
        *all = *all && told == PARTING_COMES;
    }
    return -1;
}

/* The others may give the buffer back although this rank does not: their later calls meet this rank's in another
   order. */
static expar_status parting_spoilt(const ep_parting *parting, int32_t rank, uint64_t told)
{
    return sym_out_of_step(parting->group->sym, parting_name,
                           error_set(EXPAR_ERR_PEER,
                                     "rank %d's word here holds 0x%llx: its memory has been overwritten", rank,
                                     (unsigned long long)told));
}

static expar_status parting_absence(const ep_parting *parting, int32_t rank)
{
    const uint64_t told = told_by(parting, rank);
    if (told > PARTING_FAILED) return parting_spoilt(parting, rank, told);
    return error_set(EXPAR_ERR_PEER, "%s: rank %d %s", parting_name, rank,
                     told == PARTING_GONE ? "has abandoned the buffer" : "comes no more: its group has failed");
}

expar_status ep_parting_meet(ep_parting *parting)
{
    const boot_topic topic = parting_topic(parting);
    bool all = false;
    int32_t absent = -1;
    boot_note_call(parting->group->boot, &topic, parting->call);
    expar_status status = tell_coming(parting);
    sym_rest rest = sym_rest_begin(parting->group->sym, parting_name);
    sym_rest_expect_all(&rest, &topic, misses_parting, parting);
    while (status == EXPAR_OK && (absent = parting_find_absent(parting, &all)) < 0 && !all)
        status = sym_rest_turn(&rest);
    sym_rest_end(&rest);
    /* A rank that does not come tells by its word first. */
    if (status != EXPAR_OK) absent = parting_find_absent(parting, &all);
    if (absent >= 0) return parting_absence(parting, absent);
    /* If its heap is not mapped, the wait registry tells it: all ranks hear the same, and no rank is blamed. */
    if (status == EXPAR_OK || rest.wait.verdict == BOOT_WILL_NOT_COME) return status;
    return sym_rest_blame(&rest, status);
}
