/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE layer as the model sees it: routed rows in, weighted sums of the experts' outputs out. Two ways to carry it
 * out: on one rank that has all experts, and over the ranks of a group by dispatch and combine. */
#ifndef EXPAR_DEMO_MOE_H
#define EXPAR_DEMO_MOE_H

#include "model.h"
#include <expar/ep.h>

typedef struct moe moe;
struct moe {
    /* Rows and y lie in memory of the model's compute. */
    /* y[count][D] = sum over k of topk_weights · expert topk_idx of `layer`. Experts carry the model's own numbers. */
    bool (*run)(moe *self, int32_t layer, const routed_rows *rows, float *y, demo_error *error);
    void (*free)(moe *self); /* local */
};

/* The reference, on the CPU: m holds all experts; no dispatch, no group. FP32 sums are taken in the order of num_owners
   ranks that share the experts out evenly, each adding its own first: the order in which a combine over so many ranks
   adds. */
bool moe_local_create(const model *m, int32_t num_owners, moe **out, demo_error *error);

/* What moved, and which experts worked. */
typedef struct moe_counts {
    int64_t rows_received;      /* rows of D floats that dispatches brought to this rank; as many went back */
    int64_t rows_from_others;   /* those of them that came from another rank */
    expar_path path;            /* by which the last ones came */
    int64_t *tokens_per_expert; /* [num_local_experts of m] rows that each of this rank's experts worked on */
} moe_counts;

/* Over a group: m holds this rank's experts. Collective, as is each run: a rank without rows takes part with count 0.
   max_tokens: the most rows that any rank brings. */
bool moe_parallel_create(expar_group *group, const model *m, int64_t max_tokens, expar_path path, moe **out,
                         demo_error *error);
/* The counts of a moe_parallel since its creation; they last as long as it does. */
const moe_counts *moe_parallel_counts(const moe *self);

#endif
