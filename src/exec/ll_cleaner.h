/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank knows of cleans of masks, and the words in memory by which ranks tell each other (proto/low_latency.h),
 * which all of them map or to which an executor brings them. What is said, and in what order, is ll_clean.c's. */
#ifndef EXPAR_EXEC_LL_CLEANER_H
#define EXPAR_EXEC_LL_CLEANER_H

#include "exec/low_latency.h"
#include "shmem/sym.h"

/* What a rank knows of cleans. Its own, but for the words; touched by the thread that is in a call. */
typedef struct ll_cleaner {
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
} ll_cleaner;

/* `words` is the caller's to fill. NULL: no memory. */
ll_cleaner *ll_cleaner_make(sym *symmetric, uint32_t number, uint64_t clean_bytes);
void ll_cleaner_free(ll_cleaner *cleaner);

/* ---- what this rank says ----------------------------------------------------------------------------------------- */

/* A word of its own, at all ranks: also at those that are masked, which may come. To those that are not mapped it is
   spread later. */
void ll_cleaner_say(const ll_cleaner *self, int32_t word, uint64_t value);
/* One of its sets: attempts[N]. */
void ll_cleaner_say_set(const ll_cleaner *self, int32_t set, const uint32_t *attempts);
/* What was said is whole. */
void ll_cleaner_ring_all(const ll_cleaner *self);
/* How far it has come in its attempt, behind all that was said before; and that this is whole. */
void ll_cleaner_say_stage(const ll_cleaner *self, uint32_t step);
void ll_cleaner_spread(const ll_cleaner *self);
/* A place between two steps of the protocol. */
void ll_cleaner_step_done(const ll_cleaner *self);

/* ---- what others say --------------------------------------------------------------------------------------------- */

uint64_t ll_cleaner_read(const ll_cleaner *self, int32_t source, int32_t word);
/* A word that vouches for others. Those come with it where a network has brought them. */
uint64_t ll_cleaner_read_voucher(const ll_cleaner *self, int32_t source, int32_t word);
/* A set that a rank has said, and one rank's part of it. Whether it stayed while it was read is seen by the word that
   vouches for it. */
void ll_cleaner_read_set(const ll_cleaner *self, int32_t source, int32_t set, uint32_t *attempts);
uint32_t ll_cleaner_read_entry(const ll_cleaner *self, int32_t source, int32_t set, int32_t rank);

/* Of a word LL_CLEAN_STAGE. */
static inline uint32_t ll_cleaner_attempt_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* The first of the words of a decision's result. */
int32_t ll_cleaner_result_at(const ll_cleaner *self);
/* Of attempts[N]. */
size_t ll_cleaner_set_bytes(const ll_cleaner *self);

#endif
