/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of normal mode: what ep passes to an executor, and what it gets back. They are plain data. An executor may use
 * their pointers until the step has been carried out. */
#ifndef EXPAR_EXEC_STEP_H
#define EXPAR_EXEC_STEP_H

#include "exec/executor.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The way of one row: token t goes to `rank` as the index-th of all tokens that this rank sends there. */
typedef struct ep_target {
    int32_t rank, index;
} ep_target;

/* A rank's knowledge of its rail if not all ranks map each other (proto/nodes.h): M nodes of P ranks. It is part of a
 * routing, and is filled with it. */
typedef struct ep_rail_routing {
    int32_t nodes, each, node; /* M, P, this rank's node */
    int32_t kept_words;        /* words that are kept of a record (ep_kept_words) */
    int64_t *first_mask;       /* [M+1] number of records that come from the nodes before */
    int32_t *records_out;      /* [M][C] (m, c): tokens of this rank's channels 0..c that go to node m */
    int32_t *records_in;       /* [M][C] (m, c): records that come from channels 0..c of this rail's rank on node m */
    int32_t *rows_in;          /* [M][P][C] (m, l, c): how many of these are for local rank l */
    int32_t *first_row;        /* [M][P] (m, l): the first of them in the output of local rank l */
    /* [records][kept_words] Each entry says which local ranks have the record and, with keeps_slots, where its slots'
       experts live. The first dispatch that needs the memory makes it (release); users of the pointer acquire it. Any
       dispatch that brings records writes the words (relaxed, since all bring the same). The dispatch that has brought
       all of them sets masks_known (release); readers check that first (acquire). */
    _Atomic(_Atomic uint64_t *) masks;
    atomic_bool masks_known;
    /* Says that all of the routing is from one notify, which clears it first and sets it at its end (release). A
       dispatch with the handle is rejected without it (acquire). */
    atomic_bool counted;
} ep_rail_routing;

/* Everything that follows from the routing. It is part of the handle, and outlives the executor that made it
 * (routing_make) until ep_routing_free. */
typedef struct ep_routing {
    int64_t tokens;          /* T */
    int32_t ranks, channels; /* N, C */
    int32_t ranks_per_node;  /* ranks are numbered node by node */
    int32_t topk, experts, local_experts;
    /* from the layout: */
    int64_t *first;          /* [T+1] token t's targets are [first[t], first[t+1]), ranks ascending */
    ep_target *targets;      /* [first[T]] */
    int32_t *channel_prefix; /* [N][C] (r, c): tokens that this rank's channels 0..c send to rank r */
    int32_t *expert_counts;  /* [E] tokens of this rank for each expert */
    int32_t *node_counts;    /* [N / ranks_per_node] tokens that this rank sends to each node, each counted once */
    /* from notify: */
    int32_t *rank_prefix;         /* [N] rows that this rank receives from ranks 0..s */
    int32_t *recv_channel_prefix; /* [N][C] (s, c): rows that come here from source s's channels 0..c */
    int32_t *recv_expert_counts;  /* [L] rows for each local expert, unaligned */
    /* from the advertisements of the dispatch; in a route, from notify: */
    int32_t *first_row;     /* [N] this rank's first row in rank r's output */
    ep_rail_routing *rails; /* NULL: all ranks map each other */
    /* for sums by slot (ep_sum): */
    bool keeps_slots; /* set before the routing is made */
    bool strangers;   /* routed by hand: a rank may have a token none of whose experts live there */
    uint16_t *owners; /* [T][K] rank of each slot's expert, or EP_NO_OWNER; with keeps_slots */
    /* The executor's own form of the routing, for its own use. NULL: it uses the arrays above. Otherwise only
       channel_prefix, rank_prefix and recv_expert_counts of these exist, for the caller, and are valid once they are
       known. */
    mem_block *own;
    void *arrays; /* the one allocation that has all of them */
} ep_routing;
/* Frees what routing_make took. A routing of zeros is allowed. */
void ep_routing_free(ep_routing *routing);

/* Returns the rows that this rank sends to r; the next function returns those that it receives from s. */
static inline int32_t ep_rows_to(const ep_routing *routing, int32_t r)
{
    return routing->channel_prefix[(int64_t)(r + 1) * routing->channels - 1];
}

static inline ep_sum ep_sum_of(const ep_routing *routing, int32_t order)
{
    return (ep_sum){
        .order = order, .ranks = routing->ranks, .topk = routing->topk, .strangers = routing->strangers ? 1 : 0};
}

/* A call for which records and rings are too small. */
typedef struct ep_grow_step {
    uint32_t epoch; /* of the call */
    ep_form form;
    int64_t row_bytes;
    /* The memory that the call will take from the pool, as far as it is known before the others are asked. There are
       `count` blocks of so many bytes, and the routing of a handle that the call makes. tokens -1: it makes none. */
    const uint64_t *bytes;
    int32_t count;
    int64_t tokens;
} ep_grow_step;
/* Returns the shape with records for both its own calls and this one. The executor chooses ring_slots for its rows. */
ep_shape ep_shape_with(const ep_shape *shape, const ep_grow_step *step);

/* The inputs of the routing, as they lie in memory. */
typedef struct ep_route_view {
    const void *idx; /* topk_idx, int32 or int64; NULL without */
    int32_t idx_bytes;
    int64_t idx_pitch;    /* elements from token to token */
    const float *weights; /* NULL without */
    int64_t weights_pitch;
    const uint8_t *token_in_rank; /* [T][N], instead of idx; NULL without */
    int64_t token_in_rank_pitch;
    const int32_t *expert_counts; /* [E], where there is no idx; NULL: zeros */
    /* expert_counts lies where the tensors do, and has not been checked yet */
    bool counts_far;
    /* [T][K] contiguous, same type as idx: a layout by idx copies the indices here; NULL: no copy */
    void *idx_copy;
} ep_route_view;

/* Entry (token, k) of topk_idx. */
static inline int64_t ep_route_expert(const ep_route_view *route, int64_t token, int32_t k)
{
    int64_t i = token * route->idx_pitch + k;
    return route->idx_bytes == 8 ? ((const int64_t *)route->idx)[i] : ((const int32_t *)route->idx)[i];
}

/* ---- steps that all ranks take part in ------------------------------------------------------------------------------
 *
 * `deferred`: the caller need not know the result of the step when it returns, so an executor that only puts work on a
 * stream does not wait for it. executor_ops.tell, or .untold, reports later what is not known then. */

/* The places where rows arrive on this rank; absent parts are NULL. Offsets are in the heap, and are valid if rows come
   DIRECT. */
typedef struct ep_arrival {
    ep_mode mode;
    /* A kernel of each sender on the node writes x, whose offset is in the GPU's heap (ep_advert.carried). The executor
       sets it, and takes it back if rows go by the queue all the same. */
    bool carried;
    int32_t rows; /* the number of rows for which there is space; further ones are dropped */
    void *x, *scales, *idx;
    float *weights;
    int32_t *src;
    uint64_t x_offset, scales_offset, idx_offset, weights_offset, src_offset;
} ep_arrival;

typedef struct ep_dispatch_step {
    uint32_t epoch;
    ep_form form;           /* its kind says whether notify went before */
    ep_rejection rejection; /* status 0: this rank goes on */
    ep_routing *routing;    /* out: first_row, unless cached */
    const void *x;
    int64_t x_pitch_bytes, row_bytes;
    const uint32_t *scales;                        /* [T][S] of 4-byte words, or NULL */
    int64_t scales_row_pitch, scales_column_pitch; /* elements */
    ep_route_view route;                           /* with a handle: only what goes with the rows */
    ep_arrival arrival;
    /* The advertisement of notify, for a step that follows it at once, before the host knows how many rows come. The
       rows go there. If they do not fit, nothing is done, and the step must be sent again with an arrival. bytes 0:
       none. */
    ep_free_space spare;
    /* The step was sent with notify, and the rows fit. Only its result remains to be learned. */
    bool sent_ahead;
    bool deferred;
    ep_vote vote;    /* out, as far as it is known; else rank -1 */
    int64_t dropped; /* out, as far as it is known: rows for which there is no space, else 0 */
    bool all_direct; /* for the executor, between send and receive */
} ep_dispatch_step;

/* Counts of a routing, for the caller's memory; a member that is NULL is not wanted. */
typedef struct ep_counts_step {
    const ep_routing *routing;
    int64_t rows;                                             /* the space: further rows were dropped */
    int32_t alignment;                                        /* ≥ 1 */
    int32_t *tokens_per_expert, *expert_prefix, *rank_prefix; /* [L], [L+1], [N] */
    int64_t *num_recv_tokens;
    int32_t *expert_ends; /* [L] */
} ep_counts_step;

typedef struct ep_notify_step {
    uint32_t epoch;
    ep_form form;
    /* in: status 0, this rank's arguments are valid; out: what the executor finds wrong with them */
    ep_rejection rejection;
    ep_routing *routing; /* out: layout and notify part; with a rejection it may be NULL, and is only forgotten */
    ep_route_view route;
    /* Rows that are to be sent ahead, into its `spare`; NULL: none. Only for an executor that sends ahead. */
    ep_dispatch_step *rows;
    /* The statement of this rank about its pool. In a deferred step it is what the rank may say: the executor waits in
       that case, or says that it does not. */
    ep_growth growth;
    /* bytes of a block for which the pool had no space, if growth can make it; 0: none */
    uint64_t lacking;
    bool deferred;
    /* the counts that the caller wants; NULL: none */
    const ep_counts_step *counts;
    /* out: they are written if all ranks go on, so that normal_ops.tell_counts need not follow */
    bool told;
    /* out: normal_ops.grow_pool must follow, on all ranks, before the rows; none were sent ahead */
    bool grows;
    /* out: the routing's counts are known; always true, unless the step is deferred or rejected */
    bool counted;
    ep_vote vote; /* out, as in a dispatch */
} ep_notify_step;

typedef struct ep_combine_step {
    uint32_t epoch;
    ep_form form;
    ep_rejection rejection;
    const ep_routing *routing;
    ep_mode mode;                              /* of this rank's x */
    bool carried;                              /* kernels read x (as in ep_arrival) */
    const void *x;                             /* rows that this rank returns */
    int32_t rows;                              /* how many there are */
    uint64_t x_offset, weights_offset;         /* in the heap, when DIRECT; or of a mapping, with its shifts */
    const uint64_t *x_shifts, *weights_shifts; /* [N], as in exec_mapping; NULL: all are 0 */
    uint64_t map_offset;                       /* with EP_SUM_EACH_SLOT, likewise */
    /* [R][K] with EP_SUM_EACH_SLOT, and then x is expert-major; else NULL */
    const int32_t *map;
    int64_t x_pitch_bytes, row_bytes;
    const float *weights;  /* [R][K] or NULL */
    int64_t weights_pitch; /* elements */
    const void *bias[2];   /* [T] rows, each or NULL */
    int64_t bias_pitch_bytes[2];
    void *y; /* [T] rows */
    int64_t y_pitch_bytes;
    float *out_weights; /* [T][K] or NULL */
    int64_t out_weights_pitch;
    bool deferred;
    ep_vote vote; /* out, as in a dispatch */
} ep_combine_step;

/* ---- steps on one rank ----------------------------------------------------------------------------------------------
 *
 * They copy rows from token-major to expert-major order and back. map: [rows][K], the expert-major row of each slot, or
 * -1. `rows` is the space. How many of them came is known from the routing, at the latest when the step is carried out.
 */

typedef struct ep_map_step {
    const ep_routing *routing;
    int32_t alignment, idx_bytes; /* alignment ≥ 1 */
    int64_t rows, expert_rows;    /* places from expert_rows on do not exist */
    int32_t first_expert;         /* the first expert of this rank as idx numbers it */
    /* epoch of the dispatch whose headers brought the counts; 0: another call's headers did */
    uint32_t counted;
    const void *idx; /* [rows][K] */
    int32_t *map;    /* out */
    /* The map may be filled already. It is left as it is if the dispatch brought no rows, since some rank rejected
       it. */
    bool again;
} ep_map_step;

/* Copies rows from their order of arrival to expert-major order. Without a map it only copies their scales to
   column-major order. */
typedef struct ep_arrange_step {
    const ep_routing *routing;
    int64_t rows, row_bytes, scale_bytes;
    int32_t topk;
    const int32_t *map;     /* NULL: the results are not expert-major */
    const void *x, *scales; /* [rows] */
    const float *weights;   /* [rows][K] */
    void *out_x, *out_scales;
    /* x and out_x lie where only kernels reach them. For executors that have another one carry out the step. */
    bool carried;
    int64_t out_pitch;  /* of out_scales, elements from column to column; 0: its rows are contiguous */
    float *out_weights; /* the weight of each row's slot; NULL: not wanted */
    /* Rows of the output that no entry of the map names are zeroed, with their scales and weights. */
    bool pads;
    int64_t out_rows;
    int32_t alignment; /* of each expert's rows, ≥ 1 */
} ep_arrange_step;

/* The sources of rows, for recv_src_metadata. */
typedef struct ep_sources_step {
    const ep_routing *routing;
    int64_t rows;
    int32_t topk, stride; /* stride: M */
    const int32_t *src;   /* [rows] */
    const int32_t *map;   /* NULL: the rows are not expert-major */
    int32_t *out;         /* [rows][2 + K] */
} ep_sources_step;

/* Sums expert-major rows to one row for each token, and copies weights of such rows to those of slots. Either may be
   absent. */
typedef struct ep_reduce_step {
    const ep_routing *routing;
    int64_t rows, hidden, row_bytes;
    int32_t topk, dtype;
    const int32_t *map;
    const void *x; /* expert-major rows */
    int64_t x_pitch_bytes;
    bool carried;         /* x and out, likewise */
    const float *weights; /* [rows][K], or NULL: 1 */
    int64_t weights_pitch;
    void *out;                /* [rows], contiguous; NULL: none */
    const float *row_weights; /* one for each expert-major row, copied bit for bit */
    int64_t row_weights_pitch;
    float *out_weights; /* [rows][K], contiguous: 0 where the map names no row; NULL: none */
} ep_reduce_step;

/* ---- without a buffer -------------------------------------------------------------------------------------------- */

/* Counts that follow from topk_idx alone, computed where that lies. Arrays that are NULL are not wanted. */
typedef struct ep_count_step {
    expar_device device;
    void *stream; /* for a device with streams; NULL: its default stream */
    ep_route_view route;
    int64_t tokens;
    int32_t topk, experts, ranks, nodes;
    int32_t *tokens_per_rank, *tokens_per_node, *tokens_per_expert; /* [N], [M], [E] */
    uint8_t *token_in_rank;                                         /* [T][N] */
} ep_count_step;

/* A term of a token's sum: the row, and its node plus 1 in the upper half; 0 there: it is added by itself. Negative:
   there is none. */
#define EP_TERM_NODE 32

/* The terms that expar_ep_find_terms describes. */
typedef struct ep_terms_step {
    expar_device device;
    void *stream; /* as above */
    ep_route_view route;
    int64_t tokens;
    int32_t topk, experts;
    int32_t key_experts; /* experts whose rows come together: 1, or those of a rank. Then a rank has one row a token */
    bool each_slot;
    int32_t node_experts; /* experts of a node whose rows are summed first; 0: there are no such sums */
    int64_t *terms;       /* [T][K], out */
    int64_t terms_pitch;
} ep_terms_step;

/* Sums of such terms, and of biases. */
typedef struct ep_sum_step {
    expar_device device;
    void *stream;
    const void *x;
    int64_t rows, x_pitch_bytes, row_bytes;
    const void *terms; /* [T][K] */
    int32_t term_bytes, topk, dtype;
    int64_t terms_pitch, tokens;
    const void *bias[2];
    int64_t bias_pitch_bytes[2];
    void *y;
    int64_t y_pitch_bytes;
} ep_sum_step;

#endif
