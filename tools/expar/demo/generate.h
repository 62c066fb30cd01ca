/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy generation for the sequences of one rank, in step with the other ranks. */
#ifndef EXPAR_DEMO_GENERATE_H
#define EXPAR_DEMO_GENERATE_H

#include "forward.h"

/* Called for each new byte. number: the sequence's number on this rank. */
typedef void generate_listener(void *context, int32_t number, uint8_t byte);

typedef struct generate_plan {
    const sequence_list *texts;  /* this rank's own, may be none */
    moe *prefill, *decode;       /* the experts of each; may be the same */
    int32_t prefill_rounds;      /* the largest number of texts of any rank: every rank takes part in that many
                                    prefills */
    int32_t bytes;               /* new bytes of each text, ≥ 1 */
    generate_listener *listener; /* or NULL */
    void *context;
} generate_plan;

/* Returns the largest number of rows of a pass: a whole prompt, or one token of every text. */
int64_t generate_max_rows(const sequence_list *texts);

/* Runs each prompt through the model separately. Then each pass adds one byte to every text. A rank without a text for
   a pass takes part with no rows. */
bool generate_run(forward *f, const generate_plan *plan, demo_error *error);

#endif
