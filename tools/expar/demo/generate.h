/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy generation for the sequences of one rank, in step with the other ranks. */
#ifndef EXPAR_DEMO_GENERATE_H
#define EXPAR_DEMO_GENERATE_H

#include "forward.h"

/* Told of each byte as it comes: the sequence's number on this rank. */
typedef void generate_listener(void *context, int32_t number, uint8_t byte);

typedef struct generate_plan {
    const sequence_list *texts;  /* this rank's own, may be none */
    moe *prefill, *decode;       /* the experts of each; may be the same */
    int32_t prefill_rounds;      /* the most texts of any rank: all take part in so many prefills */
    int32_t bytes;               /* that each text of any rank gets, ≥ 1 */
    generate_listener *listener; /* or NULL */
    void *context;
} generate_plan;

/* The most rows that a pass of this plan brings: a whole prompt, or one token of every text. */
int64_t generate_max_rows(const sequence_list *texts);

/* Each prompt goes through the model by itself, then all texts grow together, a byte each a pass. A rank with no text
   for a pass takes part with no rows. */
bool generate_run(forward *f, const generate_plan *plan, demo_error *error);

#endif
