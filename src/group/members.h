/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks go on: those that come agree on their set (members.c), by words in memory by which ranks tell each other
 * (members_words.c; proto/low_latency.h has their layout). All ranks map the words, or an executor sends them. Cleans
 * of low-latency masks agree in this way, on hosts, whatever device the buffer's rows are on. */
#ifndef EXPAR_GROUP_MEMBERS_H
#define EXPAR_GROUP_MEMBERS_H

#include "proto/low_latency.h"
#include "shmem/sym.h"

/* State of agreements on one rank. Only the thread in a call uses it, except the words. */
typedef struct group_members {
    sym *sym;
    /* ll_space.clean_bytes */
    uint64_t clean_bytes;
    /* [N] memory of each rank, with [N] times the words of a source (ll_clean_word); NULL: see spread */
    uint8_t **words;
    /* [N] attempts: seen is the last one that has ended, taken that of this clean */
    uint32_t *seen, *taken;
    /* [N] the attempts that were taken, 0: not seen. view is this rank's, other the last one that was read */
    uint32_t *view, *other;
    /* [N] 1: seen by this rank */
    uint8_t *in_view;
    /* [N][LL_CLEAN_SAID] what each rank has said in this clean */
    uint64_t *said;
    /* Sends this rank's words from its own memory to ranks that do not map it, as far as possible at the time. It is
       called when a set of words is complete, and again and again while this rank waits. A word that vouches for others
       is sent after them, and a decision before later words. NULL: all ranks map them. */
    void (*spread)(void *context);
    void *spread_context;
    /* [N] set by spread: the rank cannot be reached any more */
    bool *cut_off;
    /* late limit of waits (boot_wait) */
    int64_t late_limit_ms;
    /* ends waits, once it is set (relaxed); NULL: not used */
    const atomic_bool *halted;
    /* tests only; NULL otherwise */
    void (*delay)(void *context);
    void *delay_context;
    /* number of this rank's attempts in cleans */
    uint32_t attempt;
    /* number of the buffer in its group */
    uint32_t number;
    /* boot_kind of the calls that agree */
    uint32_t kind;
} group_members;

/* The caller must fill `words`. NULL: no memory. */
group_members *members_make(sym *symmetric, uint32_t kind, uint32_t number, uint64_t clean_bytes);
void members_free(group_members *cleaner);

/* The values with which a rank comes, and those with which all go on. */
typedef struct members_ask {
    /* in: number of this call (boot_topic), for ranks that ask where this one waits */
    uint64_t call;
    /* in: EXPAR_OK, or the expar_status with which this rank rejects */
    int32_t status;
    /* in: number of calls that this rank has made; out: the largest of all ranks */
    uint64_t calls;
    /* in: those of this rank's last call of each kind; out: those after which calls go on, with the same slots of the
       double buffers */
    uint64_t epochs[LL_KINDS];
    /* out: the lowest rank that rejects, and its status; -1: none does */
    int32_t refuser, rejection;
} members_ask;
/* Waits until the ranks that come have agreed. If none rejects, view[r] is the attempt in which rank r takes part, or
   0; only then calls and epochs change. EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
expar_status members_agree(group_members *members, members_ask *ask);

/* ---- words of this rank ------------------------------------------------------------------------------------------ */

/* Writes a word of this rank at all ranks, masked ones included, which may come. Ranks that do not map it get it later
   by spread. */
void members_say(const group_members *self, int32_t word, uint64_t value);
/* Writes one of its sets: attempts[N]. */
void members_say_set(const group_members *self, int32_t set, const uint32_t *attempts);
/* Call this when the words are complete; it wakes the other ranks. */
void members_ring_all(const group_members *self);
/* Writes how far this rank has come in its attempt, after all that it said before, and that this is complete. */
void members_say_stage(const group_members *self, uint32_t step);
void members_spread(const group_members *self);
/* Marks a place between two steps of the protocol. */
void members_step_done(const group_members *self);

/* ---- words of other ranks ---------------------------------------------------------------------------------------- */

uint64_t members_read(const group_members *self, int32_t source, int32_t word);
/* Reads a word that vouches for others. If a network has brought them, they become visible with it. */
uint64_t members_read_voucher(const group_members *self, int32_t source, int32_t word);
/* Read a set that a rank has written, and one rank's part of it. The word that vouches for it shows whether it changed
   during the read. */
void members_read_set(const group_members *self, int32_t source, int32_t set, uint32_t *attempts);
uint32_t members_read_entry(const group_members *self, int32_t source, int32_t set, int32_t rank);

/* The attempt in a word LL_CLEAN_STAGE. */
static inline uint32_t members_attempt_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* Returns the first of the words of a decision's result. */
int32_t members_result_at(const group_members *self);
/* Returns the size of attempts[N]. */
size_t members_set_bytes(const group_members *self);

#endif
