/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE layer as the model sees it: routed rows in, weighted sums of the experts' outputs out. There are three ways:
 * on one rank that has all experts, and over the ranks of a group by dispatch and combine, in normal mode and in
 * low-latency mode. The last two add in one order, so that either gives the bits of the other. */
#ifndef EXPAR_DEMO_MOE_H
#define EXPAR_DEMO_MOE_H

#include "model.h"
#include <expar/ep.h>

/* The number of calls of a layer, and the traffic that they sent. The library counts it where it calls its provider. */
typedef struct moe_traffic {
    int64_t layers, messages, bytes;
} moe_traffic;

typedef struct moe moe;
struct moe {
    /* Rows and y lie in memory of the model's compute. */
    /* y[count][D] = sum over k of topk_weights · expert topk_idx of `layer`. Experts carry the model's own numbers. */
    bool (*run)(moe *self, int32_t layer, const routed_rows *rows, float *y, demo_error *error);
    /* Returns this rank's traffic to other nodes so far. NULL: there never is any. */
    moe_traffic (*traffic)(const moe *self);
    void (*free)(moe *self); /* local */
};

/* The reference, on the CPU: m holds all experts; no dispatch, no group. FP32 sums are taken in the order of num_owners
   ranks that share the experts out evenly. Each adds its own first, then each of num_nodes nodes by itself: the order
   of a combine over so many ranks and nodes. */
bool moe_local_create(const model *m, int32_t num_owners, int32_t num_nodes, moe **out, demo_error *error);

/* Counts of moved rows, and of rows for each expert. Over all ranks each row is counted once: in normal mode at its
   destination, in low-latency mode at its source. */
typedef struct moe_counts {
    int64_t rows;               /* rows of D floats that dispatches carried; combines carried as many back */
    int64_t rows_between_ranks; /* those of them that left their rank */
    expar_ep_path path;         /* the path of the last rows in normal mode */
    int64_t *tokens_per_expert; /* [num_local_experts of m] rows that each of this rank's experts worked on */
} moe_counts;

/* Sets all counts to zero. */
bool moe_counts_create(const model *m, moe_counts *counts, demo_error *error);
void moe_counts_free(moe_counts *counts);

/* Both work over a group; m holds this rank's experts. Creating and running them is collective. A rank without rows
   takes part with count 0. max_tokens: the largest number of rows of any rank. Runs add to *counts, which is
   borrowed. */
bool moe_normal_create(expar_group *group, const model *m, int64_t max_tokens, expar_ep_path path, moe_counts *counts,
                       moe **out, demo_error *error);
bool moe_low_latency_create(expar_group *group, const model *m, int32_t max_tokens, moe_counts *counts, moe **out,
                            demo_error *error);
/* Returns the symmetric heap that moe_low_latency_create takes on each rank; 0 if no such buffer is possible. */
size_t moe_low_latency_bytes(const model_sizes *sizes, int32_t ranks, int32_t max_tokens);

#endif
