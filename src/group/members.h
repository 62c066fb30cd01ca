/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks go on: those that come agree on who they are (members.c), by words in memory by which ranks tell each
 * other (members_words.c; proto/low_latency.h has their layout). All ranks map them, or an executor brings them. Cleans
 * of low-latency masks agree so, on hosts, whatever device the buffer's rows lie on. */
#ifndef EXPAR_GROUP_MEMBERS_H
#define EXPAR_GROUP_MEMBERS_H

#include "proto/low_latency.h"
#include "shmem/sym.h"

/* What a rank knows of agreements. Its own, but for the words; touched by the thread that is in a call. */
typedef struct group_members {
    sym *sym;
    uint64_t clean_bytes; /* ll_space.clean_bytes */
    uint8_t **words; /* [N] where each rank has [N] times the words of a source (ll_clean_word); NULL: see spread */
    uint32_t *seen, *taken; /* [N] attempts: the last one that has come to its end; that of this clean */
    uint32_t *view, *other; /* [N] the attempts that were taken, 0: not seen: this rank's view, and one that was read */
    uint8_t *in_view;       /* [N] 1: seen by this rank */
    uint64_t *said;         /* [N][LL_CLEAN_SAID] what each rank has said in this clean */
    /* Takes what this rank says, as it stands in its own memory, to those that are not mapped, as far as it can go at
       the time: called when it is whole, and over and over while this rank waits. What vouches for others comes behind
       them, and a decision before what is said later. NULL: all are mapped. */
    void (*spread)(void *context);
    void *spread_context;
    bool *cut_off;                /* [N] set by spread: nothing reaches the rank any more */
    int64_t late_limit_ms;        /* of waits (boot_wait) */
    const atomic_bool *halted;    /* ends waits, once it is set (relaxed); NULL: nothing does */
    void (*delay)(void *context); /* tests only; NULL otherwise */
    void *delay_context;
    uint32_t attempt; /* of this rank's cleans */
    uint32_t number;  /* of the buffer in its group */
    uint32_t kind;    /* boot_kind of the calls that agree */
} group_members;

/* `words` is the caller's to fill. NULL: no memory. */
group_members *members_make(sym *symmetric, uint32_t kind, uint32_t number, uint64_t clean_bytes);
void members_free(group_members *cleaner);

/* What a rank comes with, and what all go on with. */
typedef struct members_ask {
    uint64_t call;  /* in: number of this call (boot_topic), for those who ask what this rank waits in */
    int32_t status; /* in: expar_status, EXPAR_OK or why this rank refuses */
    uint64_t calls; /* in: that this rank has made; out: the most that any has */
    uint64_t
        epochs[LL_KINDS];     /* in: of this rank's last call of each kind; out: those after which calls go on, with the
                                  same halves */
    int32_t refuser, refusal; /* out: the lowest rank that refuses, and its status; -1: none does */
} members_ask;
/* Until the ranks that come have agreed. Where none refuses, view[r] is the attempt in which rank r is in, or 0; calls
   and epochs change in that case alone. EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
expar_status members_agree(group_members *members, members_ask *ask);

/* ---- what this rank says ----------------------------------------------------------------------------------------- */

/* A word of its own, at all ranks: also at those that are masked, which may come. To those that are not mapped it is
   spread later. */
void members_say(const group_members *self, int32_t word, uint64_t value);
/* One of its sets: attempts[N]. */
void members_say_set(const group_members *self, int32_t set, const uint32_t *attempts);
/* What was said is whole. */
void members_ring_all(const group_members *self);
/* How far it has come in its attempt, behind all that was said before; and that this is whole. */
void members_say_stage(const group_members *self, uint32_t step);
void members_spread(const group_members *self);
/* A place between two steps of the protocol. */
void members_step_done(const group_members *self);

/* ---- what others say --------------------------------------------------------------------------------------------- */

uint64_t members_read(const group_members *self, int32_t source, int32_t word);
/* A word that vouches for others. Those come with it where a network has brought them. */
uint64_t members_read_voucher(const group_members *self, int32_t source, int32_t word);
/* A set that a rank has said, and one rank's part of it. Whether it stayed while it was read is seen by the word that
   vouches for it. */
void members_read_set(const group_members *self, int32_t source, int32_t set, uint32_t *attempts);
uint32_t members_read_entry(const group_members *self, int32_t source, int32_t set, int32_t rank);

/* Of a word LL_CLEAN_STAGE. */
static inline uint32_t members_attempt_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* The first of the words of a decision's result. */
int32_t members_result_at(const group_members *self);
/* Of attempts[N]. */
size_t members_set_bytes(const group_members *self);

#endif
