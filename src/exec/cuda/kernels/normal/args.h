/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments that the host passes to the kernels of normal mode, in addition to core/args.h. Compiles as C17, under
 * NVRTC and under nvcc.
 *
 *   gpu_world    the same for all calls on a buffer, a member of every kernel's arguments
 *   gpu_routing  the offsets of a handle's arrays in device memory */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_ARGS_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_ARGS_H

#include "exec/cuda/kernels/core/args.h"
#include "proto/decisions.h"

/* Tokens are routed in pieces of a warp's width: one bit for each token. */
#define GPU_PIECE_TOKENS 32

/* A handle's arrays, as offsets in its block of device memory. */
typedef struct gpu_routing {
    uint64_t masks;               /* uint32 [P][N] bit i: token 32 p + i goes to rank r */
    uint64_t befores;             /* int32 [P][N] tokens before piece p that go to rank r */
    uint64_t channel_prefix;      /* int32 [N][C] */
    uint64_t rank_prefix;         /* int32 [N] */
    uint64_t recv_channel_prefix; /* int32 [N][C] */
    uint64_t recv_expert_counts;  /* int32 [L] */
    uint64_t first_row;           /* int32 [N] */
    uint64_t owners;              /* uint16 [T][K], if the handle keeps its slots */
    uint64_t total_bytes;
} gpu_routing;

EP_FUNC int64_t gpu_pieces(int64_t tokens)
{
    return (tokens + GPU_PIECE_TOKENS - 1) / GPU_PIECE_TOKENS;
}

/* slots: how many slots of each token are kept, K or 0. */
EP_FUNC gpu_routing gpu_routing_of(int64_t tokens, int32_t ranks, int32_t channels, int32_t local_experts,
                                   int32_t slots)
{
    gpu_routing r;
    uint64_t cells = 4 * (uint64_t)gpu_pieces(tokens) * (uint64_t)ranks;
    uint64_t channel_cells = 4 * (uint64_t)ranks * (uint64_t)channels;
    r.masks = 0;
    r.befores = ep_round(cells, EP_ALIGN_BYTES);
    r.channel_prefix = r.befores + ep_round(cells, EP_ALIGN_BYTES);
    r.rank_prefix = r.channel_prefix + ep_round(channel_cells, EP_ALIGN_BYTES);
    r.recv_channel_prefix = r.rank_prefix + ep_round(4 * (uint64_t)ranks, EP_ALIGN_BYTES);
    r.recv_expert_counts = r.recv_channel_prefix + ep_round(channel_cells, EP_ALIGN_BYTES);
    r.first_row = r.recv_expert_counts + ep_round(4 * (uint64_t)local_experts, EP_ALIGN_BYTES);
    r.owners = r.first_row + ep_round(4 * (uint64_t)ranks, EP_ALIGN_BYTES);
    r.total_bytes = r.owners + ep_round(2 * (uint64_t)tokens * (uint64_t)slots, EP_ALIGN_BYTES);
    return r;
}

typedef struct gpu_world {
    gpu_place place;
    ep_shape shape;
    ep_space space;
} gpu_world;

/* The most warps of a block: the kernels' registers are bounded by it. */
#define GPU_DISPATCH_WARPS 32
#define GPU_COMBINE_WARPS  16

/* Dynamic shared memory of notify for each rank: the tokens that this rank sends to it, and those that it sends
   here. */
#define GPU_NOTIFY_RANK_WORDS 2

/* Dynamic shared memory for each rank: the place of its rows, and both ends of its rings. */
#define GPU_DISPATCH_RANK_BYTES 88
#define GPU_COMBINE_RANK_BYTES  88

/* Dynamic shared memory for each slot of a combine's warp. */
#define GPU_COMBINE_NOTE_BYTES 32

/* ---- arguments of kernels ---------------------------------------------------------------------------------------- */

/* A pointer is NULL if its output is not wanted. */
typedef struct gpu_count_args {
    gpu_route route;
    int64_t tokens;
    int32_t topk, experts, ranks, nodes;
    int32_t *tokens_per_rank, *tokens_per_node, *tokens_per_expert; /* zero before the kernel */
    uint8_t *token_in_rank;                                         /* [T][N] */
    int32_t shared_counts;                                          /* 1: dynamic shared memory holds [E] counts */
    int32_t unused;
} gpu_count_args;

/* As ep_terms_step. */
typedef struct gpu_terms_args {
    gpu_route route;
    int64_t tokens;
    int32_t topk, experts, key_experts, node_experts;
    int32_t each_slot, unused;
    int64_t *terms;
    int64_t terms_pitch;
} gpu_terms_args;

/* As ep_sum_step. */
typedef struct gpu_sum_args {
    const uint8_t *x;
    int64_t rows, x_pitch_bytes, row_bytes;
    const void *terms;
    int32_t term_bytes, topk;
    int64_t terms_pitch, tokens;
    const uint8_t *bias[2];
    int64_t bias_pitch_bytes[2];
    uint8_t *y;
    int64_t y_pitch_bytes;
    int32_t dtype, unused;
} gpu_sum_args;

/* As ep_counts_step. */
typedef struct gpu_tell_args {
    const int32_t *expert_counts, *routing_prefix; /* the handle's: [L] unaligned, [N] */
    int32_t local_experts, ranks, alignment, unused;
    int64_t rows;
    int32_t *tokens_per_expert, *expert_prefix, *rank_prefix;
    int64_t *num_recv_tokens;
    int32_t *expert_ends;
} gpu_tell_args;

typedef struct gpu_notify_args {
    gpu_world world;
    ep_form form;
    ep_rejection rejection;
    gpu_route route;
    int64_t tokens, channel_tokens; /* those of this rank, and those of each of its channels except the last ones */
    int32_t channels, local_experts;
    int32_t topk, experts;
    uint8_t *routing; /* the handle's block, arranged by gpu_routing_of; NULL with a rejection */
    gpu_routing at;
    void *idx_copy;      /* [T][K], as route.idx; NULL: no copy is wanted */
    ep_free_space spare; /* bytes 0: there is none */
    /* [E], the buffer's counters: zero or, without topk_idx, the caller's counts. Notify leaves them at zero. */
    int32_t *expert_counts;
    /* Pinned, of the last notify with a ticket: rank_prefix[N], channel_prefix[N][C], recv_expert_counts[L]. */
    int32_t *told;
    int32_t shared_counts; /* 1: dynamic shared memory holds [E] counts */
    int32_t keeps_slots;   /* 1: the routing has owners */
    int32_t check_counts;  /* 1: the caller's counts were not checked */
    int32_t unused;
    uint64_t *stamps;   /* [GPU_NOTIFY_MOMENTS], or NULL */
    gpu_tell_args tell; /* what the caller wants to know of the counts; 0 ranks: nothing */
} gpu_notify_args;

/* Says who checks indices that come with a dispatch with a handle. For few indices no kernel needs to be launched. */
typedef enum gpu_checker {
    GPU_CHECKS_NOTHING = 0,
    GPU_CHECKED_BEFORE = 1, /* ep_check_topk has left the result in gpu_state.checked */
    GPU_CHECKS_ITSELF = 2   /* block 0 of the dispatch leaves it there before it posts anything */
} gpu_checker;

/* Indices that come with a dispatch with a handle. */
typedef struct gpu_check_args {
    gpu_world world;
    gpu_route route;
    int64_t tokens;
    int32_t topk, experts;
} gpu_check_args;

/* The place of a dispatch's rows on this rank. Members that its form does not need are not used. */
typedef struct gpu_arrival {
    ep_advert advert; /* first_row is filled in for each sender */
    uint8_t *idx;     /* this rank's own indices: rows that nobody sent are set to -1. NULL: there are none */
    int32_t *src;     /* the rows' numbers at the source, likewise */
    uint8_t *x;       /* this and the members below are for rows that come through rings */
    uint32_t *scales;
    float *weights;
} gpu_arrival;

typedef struct gpu_dispatch_args {
    gpu_world world;
    ep_form form;
    ep_rejection rejection;
    gpu_route route;
    int64_t tokens;
    int32_t channels, local_experts;
    int32_t rings, joined; /* rings of each rank, and channels that each ring carries (ep_channels_joined) */
    uint8_t *routing;      /* NULL with a rejection */
    gpu_routing at;
    const uint8_t *x;
    int64_t x_pitch_bytes, row_bytes;
    const uint32_t *scales;
    int64_t scales_row_pitch, scales_column_pitch;
    gpu_arrival arrival;
    ep_free_space spare; /* as in ep_dispatch_step: it replaces the arrival, unless it has no bytes */
    int32_t stage_bytes; /* shared memory of each sender; 0: rows are copied by loads and stores */
    int32_t senders;     /* warps of a block, the first ones, that send rows directly to their places */
    int32_t checker;     /* gpu_checker; unless 0, gpu_state.checked replaces `rejection` */
    int32_t may_drop;    /* 0: the host knows that all rows find space */
    uint64_t *stamps;    /* [GPU_MOMENTS][blocks][warps], or NULL */
} gpu_dispatch_args;

typedef struct gpu_combine_args {
    gpu_world world;
    ep_form form;
    ep_rejection rejection;
    int64_t tokens;
    int32_t channels, local_experts;
    int32_t rings, joined;  /* rings of each rank, and channels that each ring carries (ep_channels_joined) */
    const uint8_t *routing; /* NULL with a rejection */
    gpu_routing at;
    ep_advert advert; /* this rank's buffer advertisement; rows: the most that it has */
    const uint8_t *x; /* its rows, for rings */
    const float *weights;
    const uint8_t *bias[2];
    int64_t bias_pitch_bytes[2];
    uint8_t *y;
    int64_t y_pitch_bytes, row_bytes;
    float *out_weights; /* NULL: there are none */
    int64_t out_weights_pitch;
    int32_t part_bytes; /* a warp adds that many bytes of a row at a time; 0: rows are read by loads */
    int32_t slots;      /* slots of a warp; each holds a part of every row */
    uint64_t *stamps;
    /* For sums that go by slots (combine_slots.cu). */
    ep_sum sum;
    const int32_t *map;      /* [R][K] to this rank's expert-major rows, with EP_SUM_EACH_SLOT */
    int64_t ring_part_bytes; /* ep_ring_part_bytes */
    int32_t ring_parts;      /* parts of a row */
    int32_t spares;          /* the most rows that a token's sum may have */
    int32_t shifted;         /* 1: the advertisement to each rank has these shifts; for GPU_MOST_SHIFTED ranks at
                                most */
    uint64_t x_shifts[GPU_MOST_SHIFTED], weights_shifts[GPU_MOST_SHIFTED];
} gpu_combine_args;

/* Rows of an expert-major output, and the map to them; see ep_arrange_step and ep_reduce_step. */
typedef struct gpu_map_args {
    const void *idx; /* [rows][K] expert numbers */
    int32_t idx_bytes;
    int32_t topk, local_experts, alignment;
    const int32_t *expert_counts; /* [L] unaligned */
    const int32_t *rank_prefix;   /* [N]: its last entry is the number of rows that came */
    int32_t ranks;
    int32_t first_expert; /* the number of the first expert in idx */
    int64_t rows;         /* rows of the map; those beyond the rows that came get -1 */
    int64_t expert_rows;  /* rows of the output; slots whose row would lie beyond get -1 */
    int32_t *map;
    const uint32_t *brought; /* gpu_state.brought: if it is 0 the map stays unchanged; NULL: the map is always filled */
} gpu_map_args;

typedef struct gpu_expand_args {
    const int32_t *map;
    int64_t rows; /* space for them; of these at most rank_prefix[N - 1] came */
    const int32_t *rank_prefix;
    int32_t ranks, topk;
    const uint8_t *x, *scales;
    uint8_t *out_x, *out_scales;
    int64_t row_bytes, scale_bytes;
    const uint32_t *weights; /* [rows][K] */
    uint32_t *out_weights;   /* NULL: not wanted */
    int64_t out_pitch;       /* as in ep_arrange_step */
} gpu_expand_args;

/* As ep_arrange_step without a map. */
typedef struct gpu_columns_args {
    const uint32_t *scales;
    uint32_t *out;
    int64_t rows, pitch;
    const int32_t *rank_prefix;
    int32_t ranks, num_scales;
} gpu_columns_args;

/* As ep_sources_step. */
typedef struct gpu_sources_args {
    const int32_t *src, *map;
    int64_t rows;
    const int32_t *rank_prefix;
    int32_t ranks, topk, stride, unused;
    int32_t *out;
} gpu_sources_args;

typedef struct gpu_padding_args {
    const int32_t *expert_counts; /* [L] unaligned */
    int32_t local_experts, alignment;
    const int32_t *map;
    int64_t map_rows;
    const int32_t *rank_prefix; /* [N]: its last entry is the number of rows that came; if above map_rows, some were
                                   dropped */
    int32_t ranks, topk;
    int64_t rows; /* rows of the output */
    uint8_t *x, *scales;
    int64_t row_bytes, scale_bytes;
    uint8_t *weights;     /* NULL: none */
    int64_t scales_pitch; /* out_pitch of ep_arrange_step */
} gpu_padding_args;

typedef struct gpu_reduce_args {
    const int32_t *map;
    int64_t rows;
    const int32_t *rank_prefix;
    int32_t ranks, topk;
    const uint8_t *x;
    int64_t x_pitch_bytes, row_bytes;
    const float *weights; /* NULL: 1 */
    int64_t weights_pitch;
    uint8_t *out; /* NULL: no rows are wanted */
    int32_t dtype, unused;
    const float *row_weights;
    int64_t row_weights_pitch;
    float *out_weights; /* NULL: not wanted */
} gpu_reduce_args;

#endif
