/* SPDX-License-Identifier: Apache-2.0 */
/* What the host hands to the kernels of a low-latency buffer, beside args.h. Compiles as C17, under NVRTC and under
 * nvcc.
 *
 *   ll_gpu_call    the same for both kinds of call, a member of either kernel's arguments
 *   ll_gpu_state   device memory of this rank alone, touched by its own kernels; so is ll_gpu_tally [N]
 *   ll_gpu_counts  [N] pinned host memory: kernels write, the host reads whenever it is asked
 *   ll_gpu_masks   device memory of this rank alone, of a buffer with masks, and ll_gpu_mask [N]
 *   ll_gpu_due     [N] pinned host memory: kernels tell the host what was missing
 *   gpu_loss       [N] pinned host memory: the host tells kernels of ranks that are lost (args.h) */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LL_ARGS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LL_ARGS_H

#include "exec/cuda/kernels/core/args.h"
#include "proto/decisions.h"

#define LL_GPU_LOG_THREADS 9
#define LL_GPU_THREADS     (1 << LL_GPU_LOG_THREADS) /* of a block; the kernels' registers are bounded by it */

/* Parts of a call that one kernel carries out. */
#define LL_GPU_SEND    1
#define LL_GPU_RECEIVE 2

/* Kernels of a rank follow each other, so that what one has left here the next one finds: of each kind of call. */
typedef struct ll_gpu_line {
    uint64_t epoch;             /* of the last call */
    uint64_t open[LL_HALVES];   /* epoch of the call whose receive is still to come; 0: none */
    uint64_t swept[LL_HALVES];  /* of the last sweep of the half's words */
    uint32_t unread[LL_HALVES]; /* 1: the half's last call was not read here */
    uint32_t kept[LL_HALVES];   /* 1: units of the call that is open lie in ll_gpu_call.kept */
    uint64_t untold;            /* of the last call, which has been read here, and whose read words the next kernel of
                                   this rank stores; 0: they are stored */
} ll_gpu_line;

/* There is a copy of it for each block that a kernel can have, all the same between kernels. A block reads its own as
   it begins. A quick call (ll_now) is followed by what each block knows by itself, and each writes its own, with those
   that are no block's; else the last block to end writes all. So no block waits for others to end. */
typedef struct ll_gpu_state {
    ll_gpu_line lines[LL_KINDS];
} ll_gpu_state;

/* [N] What this rank's kernels have sent to each rank: by the block that opens a call there. Bytes of coded rows are
   known when the last of them is on its way: who brings it adds them up. */
typedef struct ll_gpu_tally {
    unsigned long long messages, rows, bytes;
    /* Of a combine in LogFMT by its half: rows that are to be sent yet, << LL_GPU_CODED_BITS, and bytes of those that
       were; modulo 2^64, as rows may be sent before they are counted. By all blocks; 0 where all were sent, by who
       sends the last, and of a call before, whose rows were refused, by who opens the next one. */
    unsigned long long coded[LL_HALVES];
} ll_gpu_tally;
#define LL_GPU_CODED_BITS 40

/* [N] The same for the host, for expar_ll_get_stats: each word by itself (relaxed, system scope). */
typedef struct ll_gpu_counts {
    uint64_t messages, rows, bytes;
} ll_gpu_counts;

/* [N] pinned: what had come of what a rank was to bring, and all of it, when a wait was given up; 0: nothing is
   missing. Written by the kernel in which that was, read by the host once it knows of it (relaxed: each by itself). */
EP_FUNC uint64_t ll_gpu_due(int32_t came, int32_t all)
{
    return came < all ? (uint64_t)came << 32 | (uint32_t)all : 0;
}

/* Of a call with a hook: what its send leaves for its receive. By kernels alone. */
typedef struct ll_gpu_record {
    uint64_t epoch;     /* 0: nothing is to be received */
    ep_refusal refusal; /* then: what the send found wrong, for the receive to tell */
} ll_gpu_record;

/* ---- masks ------------------------------------------------------------------------------------------------------- */

#define LL_MASK_SET   1u /* of ll_gpu_mask.masked */
#define LL_MASK_BEGUN 2u /* by whoever has the lock */

/* Of a buffer with masks. Kernels of a rank follow each other; whoever changes it in one has the lock. */
typedef struct ll_gpu_masks {
    uint32_t lock;             /* 1: somebody has it */
    uint32_t lost;             /* 1: a rank has been masked in this kernel; 0 again at its end */
    uint32_t attempt;          /* the last one of this rank's cleans */
    int32_t region[LL_HALVES]; /* in which each half of combines lies here */
    uint32_t unused;
    uint64_t steps; /* kernels of calls that have ended */
} ll_gpu_masks;

/* A rank, as this one sees it. */
typedef struct ll_gpu_mask {
    uint32_t masked;          /* LL_MASK_SET: it is sent nothing, and nothing is awaited from it */
    int32_t knows[LL_HALVES]; /* of a masked rank: the region of each half in which it may still write */
    uint32_t with;            /* the attempt in which it was in the last clean that this rank was in with it */
    uint64_t since;           /* of a masked rank: `steps` when the caller masked it; ~0: not the caller */
} ll_gpu_mask;

/* What ll_mask is to do; one block. */
typedef enum ll_gpu_errand {
    LL_ERRAND_SET,   /* mask `rank`, for the caller */
    LL_ERRAND_UNSET, /* take that back */
    LL_ERRAND_QUERY, /* [N] to `status` */
    LL_ERRAND_READ,  /* what a clean has to know, to the answer */
    LL_ERRAND_BEGIN, /* anew behind a clean: masks by `view`, epochs */
    LL_ERRAND_PART   /* tell all that this rank has left the buffer */
} ll_gpu_errand;

/* Pinned: what comes of it, for the host, which reads it when the stream has come there. */
typedef struct ll_gpu_answer {
    uint64_t epochs[LL_KINDS];
    int32_t status;         /* expar_status */
    int32_t open[LL_KINDS]; /* 1: a call of the kind awaits its hook */
    int32_t unused;
} ll_gpu_answer;

/* ---- calls ------------------------------------------------------------------------------------------------------- */

#define LL_GPU_BLOCK_WARPS (LL_GPU_THREADS / 32)

typedef struct ll_gpu_call {
    gpu_place place; /* its shape and space are not those of an EP buffer, and only `ranks` of them counts */
    ll_shape shape;
    ll_space space;
    ll_form form;          /* route: 0, it lies with the handle */
    ep_refusal refusal;    /* status 0: the host finds nothing wrong */
    uint8_t *own;          /* this rank's buffer */
    ll_gpu_state *state;   /* [copies] */
    uint32_t *told;        /* 1: what was missing when a wait was given up has been told */
    ll_gpu_tally *tally;   /* [N] */
    ll_gpu_counts *counts; /* [N] */
    uint64_t *dues;        /* [N] ll_gpu_due */
    uint8_t *kept;         /* [kind][half][N] units, each of unit_bytes[LL_DISPATCH] */
    ll_gpu_record *record; /* NULL: the call has both phases in one kernel */
    uint64_t *stamps;      /* [LL_GPU_MOMENTS][blocks][LL_GPU_BLOCK_WARPS], or NULL */
    int64_t *wait_ns;      /* [N] the caller's, added to by a receive, or NULL */
    uint64_t *waits;       /* [N] of device memory: the longest of all blocks so far; zeros between receives */
    int32_t phases;        /* LL_GPU_SEND | LL_GPU_RECEIVE */
    int32_t kind;          /* ll_kind */
    int32_t copies, unused;
    /* Of a buffer with masks; else NULL. */
    ll_gpu_masks *masks;
    ll_gpu_mask *mask_of; /* [N] */
    /* [kind][half][N] what the blocks of a kernel agree on: stamp << 32 | 1, the rank's unit counts for nothing, or 2,
       it has been seen whole. By whoever comes first. */
    uint64_t *decided;
} ll_gpu_call;

/* The handle's arrays (ll_route_map_of), in device memory. */
typedef struct ll_gpu_routing {
    int64_t *range;
    int32_t *src_info, *messages, *idx; /* messages: with LL_UNIT_MARKS */
    uint8_t *headers;
    uint64_t *stamp; /* of the dispatch, when its rows are all there; 0: it serves no combine */
    uint64_t header_bytes;
    int32_t tokens, topk; /* T, K */
} ll_gpu_routing;

typedef struct ll_dispatch_args {
    ll_gpu_call call;
    gpu_route route;
    ll_gpu_routing routing;
    int32_t codec, scales; /* codec_format of the payload; words of a row's scales */
    const uint8_t *x;
    int64_t x_pitch_bytes, row_bytes; /* row_bytes: of the payload */
    uint8_t *out_x;
    uint32_t *out_scales;
    int32_t *out_count;
    int32_t *stats; /* NULL: not wanted */
} ll_dispatch_args;

typedef struct ll_combine_args {
    ll_gpu_call call;
    gpu_route route;
    ll_gpu_routing routing;
    const uint8_t *x;
    int64_t x_expert_pitch_bytes, x_row_pitch_bytes, row_bytes;
    uint8_t *y;
    int64_t y_pitch_bytes;
    int32_t coded; /* 1: rows go as LogFMT */
    int32_t unused;
} ll_combine_args;

typedef struct ll_mask_args {
    ll_gpu_call call;
    ll_gpu_answer *answer;
    const uint32_t *view; /* [N] pinned: attempts of those who are in; 0: is not */
    int32_t *status;      /* [N] the caller's */
    uint64_t epochs[LL_KINDS];
    int32_t what; /* ll_gpu_errand */
    int32_t rank;
    uint32_t attempt;
    int32_t unused;
} ll_mask_args;

/* ---- shared memory of a block ------------------------------------------------------------------------------------
 *
 * bases [N] u64, waits [N] u64, then of a dispatch the destinations [32] u64 of a token; then i32: what each source
 * has told [4][N], whether its half is open [N], what a combine owes it [N], whether its rows may go there [N], and
 * with masks whether what it told counts [N]; notes [4][32]; of a dispatch the first rows of experts [N+1][L] and the
 * experts of all tokens [K][pitch], of a combine what rows in LogFMT take (ll_gpu_combine_shared). */

#define LL_GPU_TOLD  4
#define LL_GPU_NOTES 4
#define LL_GPU_TEAMS 4 /* of a block, at most: each has a message, or a token */

/* So that neighbours in a column of K lie in different banks. */
EP_FUNC int32_t ll_gpu_idx_pitch(int32_t tokens)
{
    return (tokens + 31) / 32 * 32 + 4;
}
EP_FUNC uint64_t ll_gpu_words_bytes(const ll_shape *shape)
{
    const uint64_t ranks = (uint64_t)shape->ranks, told = LL_GPU_TOLD + 3 + (shape->masking ? 1 : 0);
    const uint64_t words = told * ranks + LL_GPU_NOTES * LL_MOST_TOPK;
    return 8 * (2 * ranks + LL_MOST_TOPK) + 4 * words + sizeof(ep_refusal) + 32;
}
/* Of a combine in LogFMT: of each warp a sum, so many rows that the block sends, so many floats, and of 32 rows a byte
   for each group, in whole words. */
#define LL_GPU_LISTED    256
#define LL_GPU_LOG_TABLE 128
EP_FUNC int32_t ll_gpu_log_pitch(int32_t groups)
{
    return (groups + 3) / 4 * 4;
}
EP_FUNC uint64_t ll_gpu_combine_shared(const ll_shape *shape)
{
    const uint64_t coded = 4 * (LL_GPU_BLOCK_WARPS + LL_GPU_LISTED + LL_GPU_LOG_TABLE);
    return ll_gpu_words_bytes(shape) + coded + 32 * (uint64_t)ll_gpu_log_pitch(shape->hidden / 128);
}
/* Of a dispatch of so many tokens. */
EP_FUNC uint64_t ll_gpu_dispatch_shared(const ll_shape *shape, int32_t tokens)
{
    const uint64_t firsts = ((uint64_t)shape->ranks + 1) * (uint64_t)shape->local_experts;
    return ll_gpu_words_bytes(shape) + 4 * (firsts + (uint64_t)shape->topk * (uint64_t)ll_gpu_idx_pitch(tokens));
}

#endif
