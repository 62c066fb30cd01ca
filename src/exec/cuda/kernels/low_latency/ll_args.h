/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments that the host passes to the kernels of a low-latency buffer, in addition to args.h. Compiles as C17,
 * under NVRTC and under nvcc.
 *
 *   ll_gpu_call    the same for both kinds of call, a member of either kernel's arguments
 *   ll_gpu_state   device memory that only this rank's kernels use; likewise ll_gpu_tally [N]
 *   ll_gpu_counts  [N] pinned host memory: kernels write, the host reads at any time
 *   ll_gpu_masks   device memory of this rank alone, for a buffer with masks, and ll_gpu_mask [N]
 *   ll_gpu_far     [N] device memory of this rank alone, for a buffer some of whose ranks it does not map
 *   ll_gpu_masker  [N] pinned host memory: kernels tell the host words about masks for ranks that they do not map
 *   ll_gpu_due     [N] pinned host memory: kernels tell the host what was missing
 *   gpu_loss       [N] pinned host memory: the host tells kernels which ranks are lost (args.h) */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LL_ARGS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LL_ARGS_H

#include "exec/cuda/kernels/core/args.h"
#include "proto/decisions.h"
#include "proto/signals.h"

#define LL_GPU_LOG_THREADS 9
#define LL_GPU_THREADS     (1 << LL_GPU_LOG_THREADS) /* threads of a block; the kernels' registers are bounded by it */

/* Phases of a call that one kernel carries out. */
#define LL_GPU_SEND    1
#define LL_GPU_RECEIVE 2

/* The state of one kind of call. Kernels of a rank follow each other, so each kernel finds here what the last one
   left. */
typedef struct ll_gpu_line {
    uint64_t epoch;            /* epoch of the last call */
    uint64_t open[LL_SLOTS];   /* epoch of the call whose receive is still to come; 0: none */
    uint64_t swept[LL_SLOTS];  /* epoch of the last sweep of the slot's words */
    uint32_t unread[LL_SLOTS]; /* 1: the slot's last call was not read here */
    uint32_t kept[LL_SLOTS];   /* 1: headers of the call that is open are in ll_gpu_call.kept */
    /* Epoch of the last call if it was read here and the next kernel of this rank shall store its acknowledgements; 0:
       they are stored. */
    uint64_t untold;
} ll_gpu_line;

/* Each block that a kernel can have has a copy, and all copies are equal between kernels. A block reads its own copy
   when it begins. After a quick call (ll_now) the blocks know all by themselves: each writes its own copy, and some of
   those without a block. Otherwise the last block to end writes all copies. So no block waits for others to end. */
typedef struct ll_gpu_state {
    ll_gpu_line lines[LL_KINDS];
} ll_gpu_state;

/* [N] Totals of what this rank's kernels have sent to each rank. The block that opens a call there adds to them. The
   bytes of coded rows are known only when the last of them is sent; the thread that sends it adds them. */
typedef struct ll_gpu_tally {
    unsigned long long messages, rows, bytes;
    /* For a combine in LogFMT, by its slot: the number of rows still to be sent << LL_GPU_CODED_BITS, and the bytes of
       those that were sent. It is modulo 2^64, since rows may be sent before they are counted. All blocks add to it.
       The thread that sends the last row resets it to 0. If the rows of an earlier call were rejected, the block that
       opens the next call does. */
    unsigned long long coded[LL_SLOTS];
} ll_gpu_tally;
#define LL_GPU_CODED_BITS 40

/* [N] Likewise for the host, for expar_ll_get_stats (relaxed, system scope: each word stands for itself). */
typedef struct ll_gpu_counts {
    uint64_t messages, rows, bytes;
} ll_gpu_counts;

/* [N] pinned: how much of a rank's data had come when a wait was given up, and how much there was to come; 0: nothing
   is missing. The kernel of that wait writes it. The host reads it once it knows of the wait (relaxed: each word stands
   for itself). */
EP_FUNC uint64_t ll_gpu_due(int32_t came, int32_t all)
{
    return came < all ? (uint64_t)came << 32 | (uint32_t)all : 0;
}

/* For a call with a hook: the send leaves it for the receive. Only kernels use it. */
typedef struct ll_gpu_record {
    uint64_t epoch;         /* 0: there is nothing to receive */
    ep_rejection rejection; /* then the error that the send found, for the receive to report */
} ll_gpu_record;

/* ---- ranks that are not mapped ----------------------------------------------------------------------------------- */

/* Values of transport_memory and transport_atomic_op, for commands of kernels. */
#define LL_GPU_PINNED 1
#define LL_GPU_SET    1
/* A call looks at the one before the last, and at the one that had the same copy of headers. */
#define LL_GPU_SENT_CALLS (2 * LL_HEADER_COPIES)

/* How kernels reach a rank that is not mapped (low_latency/far.h). The host writes the first three members, before any
   call; only this rank's kernels write the rest. */
typedef struct ll_gpu_far {
    uint64_t view;  /* address of the gda_view with a queue to the rank; 0: commands to a ring reach it */
    uint64_t port;  /* address of the proxy_port; 0: the proxy is not used */
    uint8_t *sends; /* this rank's send buffer for the rank (proto/sends.h); NULL: the rank is mapped */
    /* By kind, and by epoch modulo LL_GPU_SENT_CALLS: all parcels of the call have numbers before this one. Blocks
       raise it, and those of later calls read it. */
    unsigned long long sent[LL_KINDS][LL_GPU_SENT_CALLS];
    /* By kind and slot: the number after the parcel of the last acknowledgement. One thread of a kernel writes it, and
       one of a later kernel reads it. */
    unsigned long long acknowledged[LL_KINDS][LL_SLOTS];
    /* By kind and slot, for near.h: the last call whose header of the rank a block has undertaken to copy, which blocks
       raise. Then copies of the rank's acknowledgement, and of its header's number of messages (0 without masks). By
       kind: 1 while a thread reads these; only it writes the copies. */
    unsigned long long copied[LL_KINDS][LL_SLOTS];
    uint64_t read[LL_KINDS][LL_SLOTS], told[LL_KINDS][LL_SLOTS];
    uint32_t reading[LL_KINDS];
    /* With a view: parcels with data and without, and their bytes. Threads add to them; the host reads them between
       kernels. */
    unsigned long long posted, posted_words, posted_bytes;
} ll_gpu_far;

/* ---- masks ------------------------------------------------------------------------------------------------------- */

#define LL_MASK_SET   1u /* a value of ll_gpu_mask.masked */
#define LL_MASK_BEGUN 2u /* likewise; only the thread that has the lock sets it */

/* For a buffer with masks. Kernels of a rank follow each other. Within a kernel only the thread that has the lock
   changes it. */
typedef struct ll_gpu_masks {
    uint32_t lock;            /* 1: a thread has it */
    uint32_t lost;            /* 1: a rank was masked in this kernel; reset at its end */
    uint32_t attempt;         /* the last attempt of this rank's cleans */
    int32_t region[LL_SLOTS]; /* the present region of each slot of combines */
    uint32_t unused;
    uint64_t steps; /* the number of kernels of calls that have ended */
} ll_gpu_masks;

/* The state of a rank, as this rank sees it. */
typedef struct ll_gpu_mask {
    uint32_t masked;         /* LL_MASK_SET: nothing is sent to the rank, and nothing is awaited from it */
    int32_t knows[LL_SLOTS]; /* the region of each slot to which a masked rank may still write */
    uint32_t with;           /* the attempt of the last clean that had both this rank and that one */
    uint64_t since;          /* `steps` when the caller masked the rank; ~0: the caller did not */
} ll_gpu_mask;

/* [N] pinned, for a buffer with masks some of whose ranks are not mapped: what the host is to send to the rank. The
   thread that has the lock of the masks writes it, or the only one of ll_mask. The host reads it (acquire). */
typedef struct ll_gpu_masker {
    uint64_t after; /* commands to the rank that are before this number go first; it is stored before the word */
    uint64_t word;  /* the masker of this rank there (ll_masker_word) */
} ll_gpu_masker;

/* The requests of the host to ll_mask, which runs as one block. */
typedef enum ll_gpu_task {
    LL_TASK_SET,   /* mask `rank`, for the caller */
    LL_TASK_UNSET, /* clear that mask */
    LL_TASK_QUERY, /* write [N] masks to `status` */
    LL_TASK_READ,  /* write what a clean needs to know to the answer */
    LL_TASK_BEGIN, /* start anew after a clean: masks by `view`, epochs */
    LL_TASK_PART   /* tell all ranks that this one has left the buffer */
} ll_gpu_task;

/* Pinned: the result, which the host reads after the kernel has run. */
typedef struct ll_gpu_answer {
    uint64_t epochs[LL_KINDS];
    int32_t status;         /* expar_status */
    int32_t open[LL_KINDS]; /* 1: a call of the kind awaits its hook */
    int32_t unused;
} ll_gpu_answer;

/* ---- calls ------------------------------------------------------------------------------------------------------- */

#define LL_GPU_BLOCK_WARPS (LL_GPU_THREADS / 32)

typedef struct ll_gpu_call {
    gpu_place place; /* the buffer's memory and state */
    ll_shape shape;
    ll_space space;
    ll_form form;           /* its route is 0; the real one is in the handle */
    ep_rejection rejection; /* status 0: the host has found no error */
    uint8_t *own;           /* this rank's buffer */
    ll_gpu_state *state;    /* [copies] */
    uint32_t *told;         /* 1: a warp has reported what was missing when a wait was given up */
    ll_gpu_tally *tally;    /* [N] */
    ll_gpu_counts *counts;  /* [N] */
    uint64_t *progress;     /* [N] ll_gpu_due */
    uint8_t *kept;          /* [kind][slot][N] headers, each of unit_bytes[LL_DISPATCH] */
    uint8_t *near;          /* likewise copies of headers in pinned memory (near.h); NULL: all ranks are mapped */
    ll_gpu_record *record;  /* NULL: the call has both phases in one kernel */
    uint64_t *stamps;       /* [LL_GPU_MOMENTS][blocks][LL_GPU_BLOCK_WARPS], or NULL */
    int64_t *wait_ns;       /* [N] the caller's; a receive adds to it; or NULL */
    uint64_t *waits;        /* [N] device memory: the longest wait of all blocks so far; zero between receives */
    int32_t phases;         /* LL_GPU_SEND | LL_GPU_RECEIVE */
    int32_t kind;           /* ll_kind */
    int32_t copies, unused;
    /* NULL in a buffer without masks, as are mask_of and decided. */
    ll_gpu_masks *masks;
    ll_gpu_mask *mask_of; /* [N] */
    /* [kind][slot][N] What the blocks of a kernel agree on: stamp << 32 | 1, the rank's header does not count, or 2, it
       has been seen whole. The first block to decide writes it. */
    uint64_t *decided;
    ll_gpu_far *far;        /* [N]; NULL: all ranks are mapped */
    ll_gpu_masker *maskers; /* [N]; NULL: all ranks are mapped, or there are no masks */
} ll_gpu_call;

/* The handle's arrays (ll_route_map_of), in device memory. */
typedef struct ll_gpu_routing {
    int64_t *range;
    int32_t *src_info, *messages, *idx; /* messages: with LL_HEADER_MARKS */
    uint8_t *headers;
    uint64_t *stamp; /* stamp of the dispatch, once all its rows are there; 0: it serves no combine */
    uint64_t header_bytes;
    int32_t tokens, topk; /* T, K */
} ll_gpu_routing;

typedef struct ll_dispatch_args {
    ll_gpu_call call;
    gpu_route route;
    ll_gpu_routing routing;
    int32_t codec, scales;     /* codec_format of the payload; words of a row's scales */
    const float *global_scale; /* of NVFP4 */
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
    int32_t coded; /* 1: rows go in LogFMT */
    int32_t unused;
} ll_combine_args;

typedef struct ll_signals_args {
    gpu_place place;
    ll_signals signals;
} ll_signals_args;
#define LL_GPU_SIGNAL_THREADS 256

typedef struct ll_mask_args {
    ll_gpu_call call;
    ll_gpu_answer *answer;
    const uint32_t *view; /* [N] pinned: the attempt of each rank in the view; 0: the rank is not in it */
    int32_t *status;      /* [N] the caller's */
    uint64_t epochs[LL_KINDS];
    int32_t what; /* ll_gpu_task */
    int32_t rank;
    uint32_t attempt;
    int32_t unused;
} ll_mask_args;

/* ---- shared memory of a block ---------------------------------------------------------------------------------------
 *
 * First come u64 words: bases [N], waits [N], and the 32 addresses of a token's messages in a dispatch.
 *
 * Then come i32 words: the four words that each source has told [4][N], whether its slot is open [N], and the messages
 * that a combine answers [N]. They also say whether its rows may go there [N], and with masks whether the source's
 * header counts [N].
 *
 * Four words for each slot of a token follow [4][32], this rank's rejection, and a word for each team. A dispatch then
 * has two message heads of each team [2][LL_GPU_TEAMS][LL_GPU_HEAD] if some ranks are not mapped, the first rows of
 * experts [N+1][L], and the experts of all tokens [K][pitch]. A combine has the memory for rows in LogFMT
 * (ll_gpu_combine_shared). */

#define LL_GPU_TOLD  4
#define LL_GPU_NOTES 4
#define LL_GPU_TEAMS 4                  /* the most teams of a block; each has a message or a token */
#define LL_GPU_HEAD  (4 * LL_MOST_TOPK) /* words of the head of a message: token and place, and three for each slot */

/* Chosen so that neighbours in a column of K are in different memory banks. */
EP_FUNC int32_t ll_gpu_idx_pitch(int32_t tokens)
{
    return (tokens + 31) / 32 * 32 + 4;
}
EP_FUNC uint64_t ll_gpu_words_bytes(const ll_shape *shape)
{
    const uint64_t ranks = (uint64_t)shape->ranks, told = LL_GPU_TOLD + 3 + (shape->masking ? 1 : 0);
    const uint64_t words = told * ranks + LL_GPU_NOTES * LL_MOST_TOPK;
    return 8 * (2 * ranks + LL_MOST_TOPK) + 4 * words + 4 * LL_GPU_TEAMS + sizeof(ep_rejection) + 32;
}
/* A combine in LogFMT has a sum of each warp, the entries of LL_GPU_LISTED rows, and a table of LL_GPU_LOG_TABLE
   floats. For each of 32 rows it has one byte for each group, in whole words, and after these the bytes that the row
   takes. */
#define LL_GPU_LISTED    256
#define LL_GPU_LOG_TABLE 128
EP_FUNC int32_t ll_gpu_log_pitch(int32_t groups)
{
    return (groups + 3) / 4 * 4;
}
EP_FUNC uint64_t ll_gpu_combine_shared(const ll_shape *shape)
{
    const uint64_t coded = 4 * (LL_GPU_BLOCK_WARPS + LL_GPU_LISTED + LL_GPU_LOG_TABLE);
    return ll_gpu_words_bytes(shape) + coded + 32 * (uint64_t)ll_gpu_log_pitch(shape->hidden / 128) + 32 * 4;
}
#define LL_GPU_HEADS_BYTES (8 * LL_GPU_TEAMS * LL_GPU_HEAD)
/* Returns the shared memory of a dispatch of that many tokens, without the heads of messages. */
EP_FUNC uint64_t ll_gpu_dispatch_shared(const ll_shape *shape, int32_t tokens)
{
    const uint64_t firsts = ((uint64_t)shape->ranks + 1) * (uint64_t)shape->local_experts;
    return ll_gpu_words_bytes(shape) + 4 * (firsts + (uint64_t)shape->topk * (uint64_t)ll_gpu_idx_pitch(tokens));
}

#endif
