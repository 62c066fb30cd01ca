/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of a combine share. combine.c has the call: checks, phases, sums. combine_rows.c has rows
 * that go back, combine_weights.c weights ahead of them. far/combine.c has both, to and from ranks that are not mapped.
 * Private to low_latency. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_COMBINE_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_COMBINE_H

#include "exec/cpu/low_latency/cpu.h"
#include <expar/low_latency.h>

/* One combine in one of its phases. */
typedef struct ll_combine {
    ll_cpu *self;
    ll_combine_step *step;
    ll_record *record;
    size_t row_bytes;
    uint64_t header_bytes; /* those of the handle */
    int32_t codec;         /* codec_format of rows as they travel */
    /* sums of each rank travel; rows travel in another form than x's */
    bool reduced, coded;
    bool streaming; /* travelling rows bypass the cache */
} ll_combine;

/* A part of a token's sum: it comes from `rank` to a place. weight: of exact sums. */
typedef struct ll_part {
    int32_t rank, place;
    float weight;
} ll_part;

/* Returns the header of a message that came with the dispatch. */
static inline const ll_header *ll_header_of(const ll_combine *c, int32_t source, int32_t message)
{
    const uint64_t number = (uint64_t)source * (uint64_t)c->self->shape.tokens + (uint64_t)message;
    return (const ll_header *)(c->step->routing->headers + number * c->header_bytes);
}

/* Returns the expert's row of a header's slot, or NULL if the slot has none here. */
static inline const void *ll_row_of_slot(const ll_combine *c, int32_t source, const ll_header *header, int32_t k)
{
    const ll_cpu *self = c->self;
    const int32_t local = ll_header_experts((ll_header *)header)[k];
    const int32_t row = ll_header_rows((ll_header *)header, self->shape.topk)[k];
    if (local < 0 || local >= self->shape.local_experts) return NULL;
    const int64_t range = c->step->routing->range[(int64_t)local * self->shape.ranks + source];
    if (row < 0 || row >= ll_range_count(range)) return NULL;
    return (const uint8_t *)c->step->x + local * c->step->x_expert_pitch_bytes +
           (ll_range_begin(range) + (int64_t)row) * c->step->x_row_pitch_bytes;
}

/* ---- combine.c --------------------------------------------------------------------------------------------------- */

/* As ll_dispatch_send and ll_dispatch_receive. */
expar_status ll_combine_send(ll_cpu *self, ll_combine_step *step);
expar_status ll_combine_receive(ll_cpu *self, ll_combine_step *step);
/* Finds the parts of a reduced sum. Places are numbered in the order in which ranks come first in the token's slots;
   parts are in the order of ranks. */
int32_t ll_combine_ranks(const ll_combine *c, int32_t token, ll_part *parts);

/* ---- combine_rows.c ---------------------------------------------------------------------------------------------- */

/* A task that is done once for each peer. */
typedef struct ll_task {
    void (*run)(const ll_combine *c, int32_t pe);
    /* Says whether it can be done now, must be given up, or neither. */
    ll_credit (*credit)(const ll_combine *c, int32_t pe);
    const char *what, *of; /* the names of its wait */
} ll_task;
/* Does it for all peers for which `progress` does not say that it is done. */
expar_status ll_task_run(const ll_combine *c, const ll_task *task);
/* The credit check of the peer's slot. */
ll_credit ll_combine_credit(const ll_combine *c, int32_t pe);
/* Returns the number of rows that go back to a rank. */
uint64_t ll_combine_rows_to(const ll_combine *c, int32_t rank);
/* Codes a row; returns its bytes. */
size_t ll_combine_code(const ll_combine *c, const void *row, uint8_t *coded);
/* Makes the sum of one message's rows. */
void ll_combine_sum(const ll_combine *c, const ll_scratch *scratch, int32_t source, int32_t message, uint8_t *sum);
/* Sends all rows, to each rank once its credit check has passed. */
expar_status ll_combine_send_rows(const ll_combine *c, ll_credit (*credit)(const ll_combine *c, int32_t pe));

/* ---- combine_weights.c ------------------------------------------------------------------------------------------- */

/* Says whether the token's slots hold an expert of the rank. Then its message there is that rank's next. */
bool ll_combine_goes_to(const ll_combine *c, int32_t token, int32_t pe);
/* Sends weights to all ranks, and then the sums that use weights which others have sent. Sends no sums if forms
   differ. */
expar_status ll_combine_send_weighted(const ll_combine *c);

#endif
