/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: what ep hands to an executor, and what it gets back. Plain data; pointers are borrowed for the call. */
#ifndef EXPAR_EXEC_STEP_H
#define EXPAR_EXEC_STEP_H

#include "exec/index.h"
#include <expar/tensor.h>
#include <stdbool.h>

/* One row on its way: token t goes to `rank` as the index-th of all tokens that this rank sends there. */
typedef struct ep_target {
    int32_t rank, index;
} ep_target;

/* All that follows from the routing; lives in the handle. Arrays are allocated by ep (handle.c). */
typedef struct ep_routing {
    int64_t tokens;          /* T */
    int32_t ranks, channels; /* N, C */
    int32_t topk, experts, local_experts;
    /* From the layout: */
    int64_t *first;          /* [T+1] token t's targets are [first[t], first[t+1]), ranks ascending */
    ep_target *targets;      /* [first[T]] */
    int32_t *channel_prefix; /* [N][C] (r, c): tokens that this rank's channels 0..c send to rank r */
    int32_t *expert_counts;  /* [E] tokens of this rank for each expert */
    /* From notify: */
    int32_t *rank_prefix;         /* [N] rows that this rank receives from ranks 0..s */
    int32_t *recv_channel_prefix; /* [N][C] (s, c): rows that come here from source s's channels 0..c */
    int32_t *recv_expert_counts;  /* [L] rows for each local expert, unaligned */
    /* From the offers of the dispatch: */
    int32_t *first_row; /* [N] this rank's first row in rank r's output */
} ep_routing;

/* Rows that this rank sends to r, and that it receives from s. */
static inline int32_t ep_rows_to(const ep_routing *routing, int32_t r)
{
    return routing->channel_prefix[(int64_t)(r + 1) * routing->channels - 1];
}
static inline int32_t ep_rows_from(const ep_routing *routing, int32_t s)
{
    return routing->rank_prefix[s] - ep_prefix_before(routing->rank_prefix, s);
}

/* How a call ended before any row moved: rank -1 when all agreed; else the lowest rank that refused (status and text
   are its reason) or whose form differs from rank 0's (status EXPAR_ERR_MISMATCH, forms in `form` and `form0`). */
typedef struct ep_verdict {
    int32_t rank;
    ep_refusal reason;
    ep_form form, form0;
} ep_verdict;

/* topk_idx as it lies in memory. */
typedef struct ep_topk_view {
    const void *idx; /* int32 or int64 */
    int32_t idx_bytes;
    int64_t idx_pitch;    /* elements from token to token */
    const float *weights; /* NULL without */
    int64_t weights_pitch;
} ep_topk_view;

typedef struct ep_notify_step {
    uint32_t epoch;
    ep_form form;
    ep_refusal refusal;  /* status 0: this rank's arguments are fine */
    ep_routing *routing; /* in: layout part; out: notify part. NULL with a refusal */
    ep_verdict verdict;  /* out */
} ep_notify_step;

typedef struct ep_dispatch_step {
    uint32_t epoch;
    ep_form form; /* kind says whether notify went before */
    ep_refusal refusal;
    ep_routing *routing; /* out: first_row, unless cached */
    const void *x;
    int64_t x_pitch_bytes, row_bytes;
    ep_topk_view topk;                                         /* idx NULL when cached */
    ep_mode mode;                                              /* of this rank's output */
    uint64_t out_x_offset, out_idx_offset, out_weights_offset; /* in the heap, when DIRECT */
    void *out_x, *out_idx; /* this rank's output; idx and weights NULL where absent */
    float *out_weights;
    ep_verdict verdict; /* out */
} ep_dispatch_step;

typedef struct ep_combine_step {
    uint32_t epoch;
    ep_form form;
    ep_refusal refusal;
    const ep_routing *routing;
    ep_mode mode;                      /* of this rank's x */
    const void *x;                     /* [R] rows */
    uint64_t x_offset, weights_offset; /* in the heap, when DIRECT */
    int64_t x_pitch_bytes, row_bytes;
    const float *weights;  /* [R][K] or NULL */
    int64_t weights_pitch; /* elements */
    void *y;               /* [T] rows */
    int64_t y_pitch_bytes;
    float *out_weights; /* [T][K] or NULL */
    int64_t out_weights_pitch;
    ep_verdict verdict; /* out */
} ep_combine_step;

#endif
