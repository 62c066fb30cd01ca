/* SPDX-License-Identifier: Apache-2.0 */
/* One pass of a batch of tokens through the layers: attention on this rank, experts where a `moe` takes them. */
#ifndef EXPAR_DEMO_FORWARD_H
#define EXPAR_DEMO_FORWARD_H

#include "moe.h"
#include "sequence.h"

/* One row of a batch: the token at `position` of a sequence. Rows of one sequence are ordered by position, and those
   before the first one have been through the model. */
typedef struct batch_row {
    sequence *text;
    int32_t position;
} batch_row;

typedef struct forward forward;

/* Buffers for batches of up to max_rows, where m lies. m is borrowed. */
bool forward_create(const model *m, int64_t max_rows, forward **out, demo_error *error);
void forward_free(forward *f);

/* Runs `count` ≤ max_rows rows, also 0; collective when `experts` is. Fills the sequences' keys and values. */
bool forward_run(forward *f, moe *experts, const batch_row *rows, int64_t count, demo_error *error);
/* V, the length of logits. */
int32_t forward_vocab(const forward *f);
/* The logits [V] of a row of the last run, in the host's memory. */
bool forward_logits(forward *f, int64_t row, float *logits, demo_error *error);

#endif
