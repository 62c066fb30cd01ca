/* SPDX-License-Identifier: Apache-2.0 */
/* A broken peer: rank 1 of two writes by hand into rank 0's memory, and rank 0 must cope with it. The cases are the
 * same for calls that threads of the CPU carry out and for those of kernels. The way of words to a rank's memory is not
 * (rogue.c, and for kernels tests/gpu/rogue_gpu.c). */
#ifndef TESTS_EP_LOW_LATENCY_ROGUE_H
#define TESTS_EP_LOW_LATENCY_ROGUE_H

#include "proto/low_latency.h"

#include <expar/low_latency.h>
#include <stdbool.h>
#include <stddef.h>

/* B is more than a small batch has (LL_WORD_TOKENS). */
enum {
    ROGUE_RANKS = 2,
    ROGUE_VICTIM = 0,
    ROGUE_PEER = 1,
    ROGUE_TOKENS = 20,
    ROGUE_TOPK = 2,
    ROGUE_LOCALS = 2,
    /* Pieces of rows that come back, in the whole buffer. */
    ROGUE_RETURNS = ROGUE_TOKENS * ROGUE_TOPK / LL_PIECE_ROWS + ROGUE_RANKS
};

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* The data that comes: one message; the counts say that it has one row of expert 0. */
typedef struct rogue_case {
    const char *name;
    int32_t messages, counts[ROGUE_LOCALS];
    int32_t token, place, experts[ROGUE_TOPK], rows[ROGUE_TOPK];
    uint32_t header_status, back_header_status; /* of the dispatch; of the combines, where it is another one */
    uint32_t tag, route, region;                /* tag, route: what is added to them */
    uint32_t marks;                             /* told with the messages, which come in words where they say so */
    uint32_t bank;                              /* the flag's; 0: the second one */
    uint64_t stamp;                             /* added to the header's epoch */
    int32_t returns;                            /* where rows go back to, which ranks alone tell that are not mapped */
    bool far;                                   /* only to these */
    uint64_t masker;
    expar_status status; /* of the dispatch; with masks EXPAR_ERR_PEER becomes EXPAR_OK, and rank 1 is masked */
    const char *text;    /* beside rank 1 */
    expar_status back;   /* of the combines, likewise */
    bool placed;         /* the row of expert 0 comes to its place */
} rogue_case;

extern const rogue_case rogue_cases[];
extern const size_t rogue_count;

/* The words of rank 1 in a clean, of which both attempts are the first; as LL_CLEAN_* have it. */
typedef struct rogue_clean {
    const char *name;
    uint64_t stage, decided, calls, epoch, rejection, view;
    bool late; /* what more would have to come does not */
    bool in;   /* rank 1 is in it */
} rogue_clean;

extern const rogue_clean rogue_cleans[];
extern const size_t rogue_clean_count;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

const ll_shape *rogue_shape(const expar_ll *ll);
const ll_space *rogue_space(const expar_ll *ll);
/* Whether words come to the victim by links. */
bool rogue_is_far(const expar_ll *ll);
/* Whether calls without masks tell a header of a later call from one that has not come; else they wait on. */
bool rogue_is_found_out(void);

/* By the rogue, to an offset of the victim's buffer: bytes; a word, after all that was put before it; and a word of a
   clean. They are there when the call returns. */
void rogue_put(const expar_ll *ll, uint64_t at, const void *source, size_t bytes);
void rogue_put_word(const expar_ll *ll, uint64_t at, uint64_t word);
void rogue_put_clean_word(const expar_ll *ll, int32_t word, uint64_t value);
/* This rank's own buffer, while no call is under way. */
void rogue_fill(const expar_ll *ll, uint64_t at, uint8_t value, size_t bytes);
void rogue_fetch(const expar_ll *ll, void *to, uint64_t at, size_t bytes);

/* For a mirrored call: memory after its own is filled before, and has to be as it was afterwards. Where tensors are not
   mirrored the test's own guards are all there is. */
void rogue_guard_lent(uint8_t value);
bool rogue_lent_is_sound(uint8_t value);

#endif
