/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether all ranks come to a buffer's end. Each rank has a word of its own in every rank's heap. In it the
 * rank says once that it comes to the end, or that it does not: it has gone, or its group has failed. A word never
 * changes again, so all ranks that come read the same. Either all of them give the buffer back together, or none does,
 * and the group is unchanged. The others wait for a rank that says nothing, as in any collective call. */
#include "ep/call/call.h"

static const char teardown_name[] = "the buffer's end";

/* In each rank's heap, from teardown->offset on, a word from each rank. Written once by that rank (release), read by
   the heap's owner (acquire). */
typedef enum teardown_word { TEARDOWN_UNTOLD, TEARDOWN_COMES, TEARDOWN_GONE, TEARDOWN_FAILED } teardown_word;

static uint64_t word_offset(const ep_teardown *teardown, int32_t source)
{
    return teardown->offset + (uint64_t)source * sizeof(uint64_t);
}

expar_status ep_teardown_make(ep_teardown *teardown)
{
    sym *symmetric = teardown->group->sym;
    const uint64_t bytes = ep_teardown_bytes(teardown->group->size);
    expar_status status = sym_take(symmetric, "the buffer", bytes, sizeof(uint64_t), &teardown->offset);
    /* This comes before this rank makes its part: until all ranks have made theirs, there is no buffer to end. */
    if (status == EXPAR_OK) sym_clear(symmetric, teardown->offset, bytes);
    return status;
}

expar_status ep_teardown_give(ep_teardown *teardown)
{
    return sym_give(teardown->group->sym, "the buffer", teardown->offset);
}

static boot_topic teardown_topic(const ep_teardown *teardown)
{
    return (boot_topic){.kind = BOOT_KIND_END, .object = teardown->number};
}

static uint64_t told_by(const ep_teardown *teardown, int32_t source)
{
    const sym *symmetric = teardown->group->sym;
    const _Atomic uint64_t *word = sym_at(symmetric, symmetric->rank, word_offset(teardown, source));
    return atomic_load_explicit(word, memory_order_acquire);
}

/* Tells this rank's absence. For a heap that is not mapped only the wait registry tells it, because this must not wait
   for a network. */
static void tell_absence(const ep_teardown *teardown, teardown_word word, const char *reason)
{
    sym *symmetric = teardown->group->sym;
    const boot_topic topic = teardown_topic(teardown);
    for (int32_t pe = 0; pe < symmetric->size; pe++)
        if (sym_at(symmetric, pe, 0)) sym_word_set(symmetric, pe, word_offset(teardown, symmetric->rank), word);
    boot_note_ended(teardown->group->boot, &topic, EXPAR_ERR_PEER, reason);
}

void ep_teardown_leave(ep_teardown *teardown)
{
    tell_absence(teardown, TEARDOWN_GONE, "it has abandoned the buffer");
}

void ep_teardown_fail(ep_teardown *teardown)
{
    error_kept kept;
    error_keep(&kept, EXPAR_ERR_PEER);
    tell_absence(teardown, TEARDOWN_FAILED, kept.text);
}

static expar_status tell_coming(const ep_teardown *teardown)
{
    sym *symmetric = teardown->group->sym;
    expar_status status = EXPAR_OK;
    for (int32_t pe = 0; pe < symmetric->size && status == EXPAR_OK; pe++)
        status = sym_word_set(symmetric, pe, word_offset(teardown, symmetric->rank), TEARDOWN_COMES);
    return status;
}

static bool misses_teardown(const void *context, int32_t rank)
{
    return told_by(context, rank) == TEARDOWN_UNTOLD;
}

/* Returns the first rank that does not come, or whose word has been overwritten; -1: none is known. *all: all have
   told. */
static int32_t teardown_find_absent(const ep_teardown *teardown, bool *all)
{
    *all = true;
    for (int32_t rank = 0; rank < teardown->group->size; rank++) {
        const uint64_t told = told_by(teardown, rank);
        if (told >= TEARDOWN_GONE) return rank;
        *all = *all && told == TEARDOWN_COMES;
    }
    return -1;
}

/* The others may give the buffer back although this rank does not: their later calls meet this rank's in another
   order. */
static expar_status teardown_spoilt(const ep_teardown *teardown, int32_t rank, uint64_t told)
{
    return sym_out_of_step(teardown->group->sym, teardown_name,
                           error_set(EXPAR_ERR_PEER,
                                     "rank %d's word here holds 0x%llx: its memory has been overwritten", rank,
                                     (unsigned long long)told));
}

static expar_status teardown_absence(const ep_teardown *teardown, int32_t rank)
{
    const uint64_t told = told_by(teardown, rank);
    if (told > TEARDOWN_FAILED) return teardown_spoilt(teardown, rank, told);
    return error_set(EXPAR_ERR_PEER, "%s: rank %d %s", teardown_name, rank,
                     told == TEARDOWN_GONE ? "has abandoned the buffer" : "comes no more: its group has failed");
}

expar_status ep_teardown_meet(ep_teardown *teardown)
{
    const boot_topic topic = teardown_topic(teardown);
    bool all = false;
    int32_t absent = -1;
    boot_note_call(teardown->group->boot, &topic, teardown->call);
    expar_status status = tell_coming(teardown);
    sym_rest rest = sym_rest_begin(teardown->group->sym, teardown_name);
    sym_rest_expect_all(&rest, &topic, misses_teardown, teardown);
    while (status == EXPAR_OK && (absent = teardown_find_absent(teardown, &all)) < 0 && !all)
        status = sym_rest_turn(&rest);
    sym_rest_end(&rest);
    /* A rank that does not come tells by its word first. */
    if (status != EXPAR_OK) absent = teardown_find_absent(teardown, &all);
    if (absent >= 0) return teardown_absence(teardown, absent);
    /* If its heap is not mapped, the wait registry tells it: all ranks hear the same, and no rank is blamed. */
    if (status == EXPAR_OK || rest.wait.verdict == BOOT_WILL_NOT_COME) return status;
    return sym_rest_blame(&rest, status);
}
