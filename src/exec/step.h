/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of normal mode: what ep hands to an executor, and what it gets back. Plain data; pointers are borrowed until
 * the step has been carried out. */
#ifndef EXPAR_EXEC_STEP_H
#define EXPAR_EXEC_STEP_H

#include "exec/executor.h"

#include <stdatomic.h>
#include <stdbool.h>

/* One row on its way: token t goes to `rank` as the index-th of all tokens that this rank sends there. */
typedef struct ep_target {
    int32_t rank, index;
} ep_target;

/* What a rank knows of its rail, where not all ranks map each other (proto/nodes.h): M nodes of P ranks. Lies in a
 * routing, and is filled with it. */
typedef struct ep_rail_routing {
    int32_t nodes, each, node; /* M, P, this rank's node */
    int32_t kept_words;        /* of a record (ep_kept_words) */
    int64_t *first_mask;       /* [M+1] records that come from the nodes before */
    int32_t *records_out;      /* [M][C] (m, c): tokens of this rank's channels 0..c that go to node m */
    int32_t *records_in;       /* [M][C] (m, c): records that come from channels 0..c of this rail's rank on node m */
    int32_t *rows_in;          /* [M][P][C] (m, l, c): of these, for local rank l */
    int32_t *first_row;        /* [M][P] (m, l): the first of them in the output of local rank l */
    /* [records][kept_words] which local ranks have the record, and where its slots' experts live, with keeps_slots.
       Memory by the first dispatch that needs it (acquire, release); words by any dispatch that brings records
       (relaxed: all bring the same), until one has said that all are there (release), which readers look at
       (acquire). */
    _Atomic(_Atomic uint64_t *) masks;
    atomic_bool masks_known;
} ep_rail_routing;

/* All that follows from the routing; lives in the handle, and outlives the executor that made it (routing_make) until
 * ep_routing_free. */
typedef struct ep_routing {
    int64_t tokens;          /* T */
    int32_t ranks, channels; /* N, C */
    int32_t ranks_per_node;  /* ranks are numbered node by node */
    int32_t topk, experts, local_experts;
    /* From the layout: */
    int64_t *first;          /* [T+1] token t's targets are [first[t], first[t+1]), ranks ascending */
    ep_target *targets;      /* [first[T]] */
    int32_t *channel_prefix; /* [N][C] (r, c): tokens that this rank's channels 0..c send to rank r */
    int32_t *expert_counts;  /* [E] tokens of this rank for each expert */
    int32_t *node_counts;    /* [N / ranks_per_node] tokens that this rank sends to each node, each counted once */
    /* From notify: */
    int32_t *rank_prefix;         /* [N] rows that this rank receives from ranks 0..s */
    int32_t *recv_channel_prefix; /* [N][C] (s, c): rows that come here from source s's channels 0..c */
    int32_t *recv_expert_counts;  /* [L] rows for each local expert, unaligned */
    /* From the offers of the dispatch; of a route, from notify: */
    int32_t *first_row;     /* [N] this rank's first row in rank r's output */
    ep_rail_routing *rails; /* NULL: all ranks map each other */
    /* For sums by slot (ep_sum): */
    bool keeps_slots; /* set before the routing is made */
    bool strangers;   /* routed by hand: a rank may have a token none of whose experts live there */
    uint16_t *owners; /* [T][K] rank of each slot's expert, or EP_NO_OWNER; with keeps_slots */
    /* What an executor makes of it in a form of its own, for its own use; NULL: it uses the arrays above. Else of these
       only channel_prefix, rank_prefix and recv_expert_counts are there, for the caller, once they are known. */
    mem_block *own;
    void *arrays; /* the one allocation behind all of them */
} ep_routing;
/* Gives back what routing_make took. A routing of zeros is allowed. */
void ep_routing_free(ep_routing *routing);

/* Rows that this rank sends to r, and that it receives from s. */
static inline int32_t ep_rows_to(const ep_routing *routing, int32_t r)
{
    return routing->channel_prefix[(int64_t)(r + 1) * routing->channels - 1];
}
static inline int32_t ep_rows_from(const ep_routing *routing, int32_t s)
{
    return routing->rank_prefix[s] - ep_prefix_before(routing->rank_prefix, s);
}

static inline ep_sum ep_sum_of(const ep_routing *routing, int32_t order)
{
    return (ep_sum){
        .order = order, .ranks = routing->ranks, .topk = routing->topk, .strangers = routing->strangers ? 1 : 0};
}

/* A call that records and rings do not hold. */
typedef struct ep_grow_step {
    uint32_t epoch; /* the call's */
    ep_form form;
    int64_t row_bytes;
    /* What the call will take of the pool, as far as it is known before the others are asked: count blocks of so many
       bytes, and the routing of a handle that it makes; tokens -1: of none. */
    const uint64_t *bytes;
    int32_t count;
    int64_t tokens;
} ep_grow_step;

/* What drives the routing, as it lies in memory. */
typedef struct ep_route_view {
    const void *idx; /* topk_idx, int32 or int64; NULL without */
    int32_t idx_bytes;
    int64_t idx_pitch;    /* elements from token to token */
    const float *weights; /* NULL without */
    int64_t weights_pitch;
    const uint8_t *token_in_rank; /* [T][N], instead of idx; NULL without */
    int64_t token_in_rank_pitch;
    const int32_t *expert_counts; /* [E], where there is no idx; NULL: zeros */
    bool counts_far;              /* they lie where the tensors do, and nobody has looked at them yet */
    void *idx_copy;               /* [T][K] contiguous, as idx: what a layout by idx writes it to; NULL: nowhere */
} ep_route_view;

/* Entry (token, k) of topk_idx. */
static inline int64_t ep_route_expert(const ep_route_view *route, int64_t token, int32_t k)
{
    int64_t i = token * route->idx_pitch + k;
    return route->idx_bytes == 8 ? ((const int64_t *)route->idx)[i] : ((const int32_t *)route->idx)[i];
}

/* ---- steps that all ranks take part in ------------------------------------------------------------------------------
 *
 * `deferred`: the caller can do without knowing how the step went when it returns, so an executor that only puts work
 * on a stream need not wait for it. What is not known then is said by executor_ops.tell, or .untold. */

/* Where rows arrive on this rank; parts that are absent are NULL. Offsets are in the heap, and count when rows come
 * DIRECT. */
typedef struct ep_arrival {
    ep_mode mode;
    int32_t rows; /* there is space for; what comes beyond is dropped */
    void *x, *scales, *idx;
    float *weights;
    int32_t *src;
    uint64_t x_offset, scales_offset, idx_offset, weights_offset, src_offset;
} ep_arrival;

typedef struct ep_dispatch_step {
    uint32_t epoch;
    ep_form form;        /* kind says whether notify went before */
    ep_refusal refusal;  /* status 0: this rank goes on */
    ep_routing *routing; /* out: first_row, unless cached */
    const void *x;
    int64_t x_pitch_bytes, row_bytes;
    const uint32_t *scales;                        /* [T][S] of 4-byte words, or NULL */
    int64_t scales_row_pitch, scales_column_pitch; /* elements */
    ep_route_view route;                           /* cached: only what goes with the rows */
    ep_arrival arrival;
    /* That of notify, of a step that is carried out right behind it, before the host knows how many rows come: they go
       there, or, where they do not fit, nothing is done, and the step is to be sent again with an arrival. bytes 0:
       none. */
    ep_room room;
    bool sent_ahead; /* it was, with notify, and the rows fit: all that is left is to learn how it goes */
    bool deferred;
    ep_verdict verdict; /* out, as far as it is known: else rank -1 */
    int64_t dropped;    /* out, as far as it is known: rows that find no room, else 0 */
    bool all_direct;    /* the executor's, between send and receive */
} ep_dispatch_step;

typedef struct ep_notify_step {
    uint32_t epoch;
    ep_form form;
    ep_refusal refusal; /* in: status 0, this rank's arguments are fine; out: what the executor finds wrong with them */
    ep_routing *routing; /* out: layout and notify part. NULL with a refusal */
    ep_route_view route;
    ep_dispatch_step *rows; /* to be sent ahead, into its room; NULL: none. Only where the executor sends ahead */
    /* What this rank says of its pool. Of a deferred step: what it may say; the executor waits then, or says that it
       does not. */
    ep_growth growth;
    uint64_t lacking; /* bytes of a block that there was no room for in the pool, where growth can make some; 0: none */
    bool deferred;
    bool grows;   /* out: normal_ops.grow_pool is to follow, on all ranks, before the rows; none were sent ahead */
    bool counted; /* out: the routing's counts are known; always, unless deferred or refused */
    ep_verdict verdict; /* out, as in a dispatch */
} ep_notify_step;

typedef struct ep_combine_step {
    uint32_t epoch;
    ep_form form;
    ep_refusal refusal;
    const ep_routing *routing;
    ep_mode mode;                              /* of this rank's x */
    const void *x;                             /* rows that this rank returns */
    int32_t rows;                              /* how many it has */
    uint64_t x_offset, weights_offset;         /* in the heap, when DIRECT; or of a mapping, with its shifts */
    const uint64_t *x_shifts, *weights_shifts; /* [N], as in exec_mapping; NULL: all are 0 */
    uint64_t map_offset;                       /* with EP_SUM_EACH_SLOT, likewise */
    const int32_t *map;                        /* [R][K] with EP_SUM_EACH_SLOT: x is expert-major then; else NULL */
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
    ep_verdict verdict; /* out, as in a dispatch */
} ep_combine_step;

/* ---- steps on one rank ----------------------------------------------------------------------------------------------
 *
 * Token-major to expert-major and back. map: [rows][K], the expert-major row of each slot, or -1. `rows` is the space:
 * what of it came is known from the routing, at the latest when the step is carried out. */

typedef struct ep_map_step {
    const ep_routing *routing;
    int32_t alignment, idx_bytes; /* alignment ≥ 1 */
    int64_t rows, expert_rows;    /* places from expert_rows on do not exist */
    int32_t first_expert;         /* what idx has as the first of the experts here */
    uint32_t counted;             /* epoch of the dispatch, whose opening brought the counts; 0: another call's did */
    const void *idx;              /* [rows][K] */
    int32_t *map;                 /* out */
    bool again; /* it may be filled already: left as it is where the dispatch brought no rows, as some rank refused */
} ep_map_step;

/* Rows as they came, to expert-major ones; or, without a map, their scales to column-major ones, and nothing else. */
typedef struct ep_arrange_step {
    const ep_routing *routing;
    int64_t rows, row_bytes, scale_bytes;
    int32_t topk;
    const int32_t *map;     /* NULL: the results are not expert-major */
    const void *x, *scales; /* [rows] */
    const float *weights;   /* [rows][K] */
    void *out_x, *out_scales;
    int64_t out_pitch;  /* of out_scales, elements from column to column; 0: its rows are contiguous */
    float *out_weights; /* the weight of each row's slot; NULL: not wanted */
    bool pads;          /* rows of the output that the map names nowhere are zeroed, with their scales and weights */
    int64_t out_rows;
    int32_t alignment; /* of each expert's, ≥ 1 */
} ep_arrange_step;

/* Where rows came from, as told by recv_src_metadata. */
typedef struct ep_sources_step {
    const ep_routing *routing;
    int64_t rows;
    int32_t topk, stride; /* stride: M */
    const int32_t *src;   /* [rows] */
    const int32_t *map;   /* NULL: the rows are not expert-major */
    int32_t *out;         /* [rows][2 + K] */
} ep_sources_step;

/* Expert-major rows to one a token, and weights of such rows to those of slots; either may be absent. */
typedef struct ep_reduce_step {
    const ep_routing *routing;
    int64_t rows, hidden, row_bytes;
    int32_t topk, dtype;
    const int32_t *map;
    const void *x; /* expert-major rows */
    int64_t x_pitch_bytes;
    const float *weights; /* [rows][K], or NULL: 1 */
    int64_t weights_pitch;
    void *out;                /* [rows], contiguous; NULL: none */
    const float *row_weights; /* one an expert-major row, carried bit for bit */
    int64_t row_weights_pitch;
    float *out_weights; /* [rows][K], contiguous: 0 where the map names no row; NULL: none */
} ep_reduce_step;

/* Counts of a routing, to the caller's memory; what is NULL is not wanted. */
typedef struct ep_counts_step {
    const ep_routing *routing;
    int64_t rows;                                             /* space: what came beyond was dropped */
    int32_t alignment;                                        /* ≥ 1 */
    int32_t *tokens_per_expert, *expert_prefix, *rank_prefix; /* [L], [L+1], [N] */
    int64_t *num_recv_tokens;
    int32_t *expert_ends; /* [L] */
} ep_counts_step;

/* ---- without a buffer -------------------------------------------------------------------------------------------- */

/* Counts that follow from topk_idx alone, where that lies. Arrays that are NULL are not wanted. */
typedef struct ep_count_step {
    expar_device device;
    void *stream; /* of a device that has such; NULL: its default one */
    ep_route_view route;
    int64_t tokens;
    int32_t topk, experts, ranks, nodes;
    int32_t *tokens_per_rank, *tokens_per_node, *tokens_per_expert; /* [N], [M], [E] */
    uint8_t *token_in_rank;                                         /* [T][N] */
} ep_count_step;

#endif
