/* SPDX-License-Identifier: Apache-2.0 */
/* forward: one pass of a batch of tokens through the layers. Attention runs on this rank, experts run through a
 * `moe`. */
#ifndef EXPAR_DEMO_FORWARD_H
#define EXPAR_DEMO_FORWARD_H

#include "moe.h"
#include "sequence.h"

/* One row of a batch: the token at `position` of a sequence. Rows of one sequence are ordered by position. Earlier
   positions have been through the model already. */
typedef struct batch_row {
    sequence *text;
    int32_t position;
} batch_row;

typedef struct forward forward;

/* Allocates buffers for batches of up to max_rows, on the device of m. m is borrowed. */
bool forward_create(const model *m, int64_t max_rows, forward **out, demo_error *error);
void forward_free(forward *f);

/* Runs `count` ≤ max_rows rows, which may be 0. It is collective if `experts` is. It stores the keys and values of the
   sequences. */
bool forward_run(forward *f, moe *experts, const batch_row *rows, int64_t count, demo_error *error);
/* V, the length of logits. */
int32_t forward_vocab(const forward *f);
/* The logits [V] of a row of the last run, in the host's memory. */
bool forward_logits(forward *f, int64_t row, float *logits, demo_error *error);

#endif
