/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks that come to a clean of masks agree on who they are (ll_clean.c). Hosts do that by words in memory,
 * which all of them map or to which an executor brings them, whatever device the buffer's rows lie on: its executors
 * begin anew by what comes of it. */
#ifndef EXPAR_EXEC_LL_CLEAN_H
#define EXPAR_EXEC_LL_CLEAN_H

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
    const atomic_bool *halted;    /* ends waits, once it is set (relaxed); NULL: nothing does */
    void (*delay)(void *context); /* tests only; NULL otherwise */
    void *delay_context;
    uint32_t attempt; /* of this rank's cleans */
    uint32_t number;  /* of the buffer in its group */
} ll_cleaner;

/* `words` is the caller's to fill. NULL: no memory. */
ll_cleaner *ll_cleaner_make(sym *symmetric, uint32_t number, uint64_t clean_bytes);
void ll_cleaner_free(ll_cleaner *cleaner);

/* Until the ranks that come have agreed. epochs: of the last call of each kind here; where no rank refuses those behind
   which calls go on, with the same halves, and view[r] is then the attempt in which rank r is in, or 0. What a rank
   says, this one among them, is in step->call.verdict. EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
expar_status ll_clean_agree(ll_cleaner *cleaner, ll_clean_step *step, uint64_t epochs[LL_KINDS]);

#endif
