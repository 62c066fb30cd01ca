/* SPDX-License-Identifier: Apache-2.0 */
/* Expert parallelism, normal mode: layout, dispatch and combine.
 *
 * Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows that
 * this rank receives, C channels, M nodes, P ranks a node. Expert e lives on rank e / L and is local expert e % L
 * there.
 *
 * Calls on one group are issued in the same order on all its ranks. One thread at a time is in a call on an EP buffer
 * (EXPAR_ERR_BUSY for a second one); several buffers and groups may be used from several threads.
 *
 * With async_finish a call returns before its rows are there, and its event tells when they are. On the CPU up to two
 * calls of a buffer are in flight: a call begins while the one before is on its way, a third waits in its caller's
 * thread until the first has ended, and a call without async_finish comes behind both. What both use is in use
 * meanwhile, room in the pool included. docs/normal-mode.md, "Asynchronous calls", says which part waits for which.
 *
 * A rank whose arguments are refused returns its own error, and still tells the others: they return EXPAR_ERR_REMOTE
 * with that rank and reason. Arguments that do not fit between ranks (H, dtype, K, E, cached or not) are
 * EXPAR_ERR_MISMATCH on all. Either way the buffer stays usable. After EXPAR_ERR_PEER or EXPAR_ERR_ABORTED in a call,
 * and after EXPAR_ERR_CUDA where other ranks wait for its kernels, it is poisoned: later calls fail at once with the
 * same report. It may be so on some ranks alone; as long as the group is sound all ranks destroy it together all the
 * same, and can create another one.
 *
 * On GPUs (config.device) calls put their work on the stream that they are given, and results are there for what comes
 * behind them in that stream. docs/gpu.md, "Calls, streams and graphs", has the reasons; the facts are:
 *
 * A call waits on the host until it is known whether all ranks go on, a fresh dispatch until its counts are known as
 * well; rows may still be on their way. With async_finish it waits for counts only. With num_worst_tokens a fresh
 * dispatch waits for nothing: num_recv_tokens is -1, recv_tokens_per_expert NULL, and what goes wrong comes with the
 * event, or is logged by a later call where there is none. wait_event is waited for on the host in any case, so
 * somebody else has to make it happen, another thread or a call that was made before.
 *
 * A rank's calls on one GPU follow each other, whatever buffers of the group and streams they use, and a thread's call
 * waits while another one is in a call there; the order on all ranks is that in which calls go on behind their
 * wait_event. Freed memory of outputs and handles is used again in that order: whoever reads an output on another
 * stream keeps it until that is done.
 *
 * A stream that does not come to a call is waited for. Once the group has failed the call, or its event, ends with
 * that, and the tensors of its args must stay until the stream has come past it, for which expar_ep_destroy waits, too.
 * A wait that is given up on the device fails the event and the next call.
 *
 * Ranks that are threads of one process need streams other than the default one. Where they share a GPU as well, a
 * fresh dispatch returns only when all ranks have called it, and a call behind one that was not waited for only when
 * all have called that.
 *
 * On a stream that is being captured, dispatches with num_worst_tokens or a handle and combines become part of the
 * graph; other calls, and those with an event, are EXPAR_ERR_ARGUMENT on that rank, and leave the capture as it was.
 * Calls in a ninth capture that goes on at a time are EXPAR_ERR_STATE. All ranks capture the same calls and launch
 * their graphs in the same order among their calls, as often as they like. A graph keeps the memory that its calls use
 * until it is destroyed, with all that was made of it; it is not launched any more once the buffer is destroyed. */
#ifndef EXPAR_EP_H
#define EXPAR_EP_H

#include <expar/event.h>
#include <expar/group.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct expar_ep expar_ep;               /* an EP buffer: queues and records in the symmetric heap */
typedef struct expar_ep_handle expar_ep_handle; /* what a dispatch leaves for the combine and for later dispatches */
typedef struct expar_ep_output expar_ep_output; /* the memory of one dispatch's results */

/* How rows travel inside a node. AUTO takes DIRECT where the receiver's output (combine: the sender's input) lies in
   symmetric memory, else QUEUE. */
typedef enum expar_path { EXPAR_PATH_AUTO = 0, EXPAR_PATH_DIRECT = 1, EXPAR_PATH_QUEUE = 2 } expar_path;

typedef struct expar_ep_config {
    size_t struct_size;    /* set by EXPAR_EP_CONFIG_INIT */
    int64_t max_tokens;    /* largest T of any rank, ≥ 0 */
    int64_t max_row_bytes; /* largest H · bytes of an element, ≥ 1 */
    int32_t max_topk;      /* largest K, ≥ 1 */
    int32_t max_experts;   /* largest E, a multiple of N */
    int32_t num_channels;  /* C: 0 chooses. Channels share out a rank's tokens among workers */
    int32_t ring_slots;    /* rows in each queue ring, ≥ 1; 0: as many as fit 64 KiB, 4 to 64 */
    int32_t num_threads;   /* worker threads of this rank; 0: EXPAR_THREADS, else 1 when the host's ranks outnumber its
                              cores, else cores / ranks of the host. May differ between ranks */
    int64_t pool_bytes;    /* symmetric memory for outputs; 0: twice the largest output as its rows come, on a GPU with
                              handles and a combine's copies (docs/gpu.md), expert-major outputs not included. When it
                              is used up outputs come from private memory, by the queue; on a GPU the call is
                              EXPAR_ERR_BUFFER_SIZE and says how much would do */
    int32_t max_scales;    /* largest S: scales of 4 bytes a token; 0: max_row_bytes / 64, rounded up */
    expar_device device;   /* type 0 or EXPAR_CPU: the CPU. EXPAR_CUDA with an index: that GPU; then all tensors of all
                              calls lie there. The type is the same on all ranks, the GPU need not be */
    int32_t num_sms;       /* CUDA: SMs for the kernels of a call that wait for other ranks, layout included; 0 chooses.
                              Those beside them, rows to expert-major order and back, are as large as their work. Ranks
                              that share a GPU must fit on it side by side. May differ between ranks */
} expar_ep_config;
#define EXPAR_EP_CONFIG_INIT EXPAR_STRUCT_INIT(expar_ep_config)

/* Bytes of symmetric heap that expar_ep_create takes on each of num_ranks ranks. Local, no group needed.
   Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (also when a size overflows 64 bits). */
EXPAR_API expar_status expar_ep_buffer_size(const expar_ep_config *config, int32_t num_ranks, size_t *bytes);

/* Collective; every member of config but num_threads, num_sms and device.index must be the same on all ranks
   (EXPAR_ERR_MISMATCH). One thread of a rank makes and destroys the group's buffers at a time. *ep is set on success
   only; the group must outlive it. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (names the member and what is expected),
   EXPAR_ERR_UNSUPPORTED (ranks on several nodes, or out of each other's reach; no CUDA, no compiler of kernels),
   EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM, EXPAR_ERR_CUDA; on the other ranks then EXPAR_ERR_REMOTE; EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **ep);
/* Collective while the group is sound, whatever became of calls on the buffer, on this rank or others. Waits for calls
   in flight, and for the other ranks for up to twice the group's time-out; who does not come by then is logged, and the
   group has failed. Where the group has failed nobody is waited for. Outputs of the buffer become invalid (their
   tensors must not be touched), but outputs and handles still have to be freed. NULL is allowed. EXPAR_ERR_BUSY:
   another thread is in a call on it. */
EXPAR_API expar_status expar_ep_destroy(expar_ep *ep);

/* Counts that follow from topk_idx alone. Each array belongs to the caller and may be NULL (not wanted). */
typedef struct expar_layout {
    size_t struct_size;         /* set by EXPAR_LAYOUT_INIT */
    int32_t *tokens_per_rank;   /* [N] a token counts once for a rank, however many of its experts live there */
    int32_t *tokens_per_node;   /* [M] likewise for a node */
    int32_t *tokens_per_expert; /* [E] every occurrence counts */
    uint8_t *token_in_rank;     /* [T][N] 1 where the token goes to the rank, else 0 */
    void *stream;               /* CUDA: a CUstream of topk_idx's GPU; NULL: the default stream */
} expar_layout;
#define EXPAR_LAYOUT_INIT EXPAR_STRUCT_INIT(expar_layout)

/* topk_idx: [T][K] int32 or int64, last dimension contiguous; -1 means none. The arrays lie where it does: in host
   memory, or in the memory of a GPU. Local, no communication; any thread; nothing is written on an error. On a GPU the
   counts are put on the stream and not waited for, also into a graph; an index out of range counts as -1 there (a
   dispatch refuses it). Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE,
   EXPAR_ERR_INDEX (token and slot of an index outside [-1, E)), EXPAR_ERR_DEVICE (an array that lies elsewhere),
   EXPAR_ERR_MEMORY, EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_ep_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                       const expar_layout *layout);

typedef struct expar_dispatch_args {
    size_t struct_size;    /* set by EXPAR_DISPATCH_ARGS_INIT */
    expar_tensor x;        /* [T][H] bf16, f16, f32, f8e4m3 or i8, H contiguous, rows 16-byte aligned multiples of 16
                              bytes */
    expar_tensor topk_idx; /* [T][K] i32 or i64, K contiguous. Absent with a handle, or with token_in_rank alone */
    expar_tensor topk_weights;     /* [T][K] f32, K contiguous; or none. Absent without topk_idx */
    int32_t num_experts;           /* E. Ignored with a handle */
    int32_t expert_alignment;      /* 0 or 1: none. Per-expert counts are rounded up to multiples of it */
    const expar_ep_handle *handle; /* repeat the routing of an earlier dispatch: no layout, no counts */
    expar_path path;               /* DIRECT fails with EXPAR_ERR_BUFFER_SIZE where the pool has no room */
    expar_tensor out_x;            /* the caller's own output, [≥ R][H], contiguous; none: the library allocates */
    expar_tensor x_scales;      /* [T][S] f32, or i32 with four packed exponents each; any strides; carried bit for bit.
                                   For f8e4m3 and i8 rows; or none */
    expar_tensor token_in_rank; /* [T][N] u8, N contiguous: drives the routing, instead of topk_idx; or none. With
                                   topk_idx a slot counts for its expert where the token goes to the expert's rank */
    const int32_t *tokens_per_expert; /* [E] of this rank, with token_in_rank and without topk_idx; NULL: zeros */
    int64_t num_worst_tokens; /* W > 0: outputs have W rows, whatever comes, so that nothing waits for counts. Needs
                                 topk_idx. 0: outputs have R rows */
    int32_t expert_major;     /* 1: recv_x has one row a (token, local expert); see expar_dispatch_result */
    int32_t zero_padding;     /* with expert_major, 1: rows without a slot are zero; 0: they are not written */
    expar_event *wait_event; /* nothing of the arguments is read before it has happened; or NULL. A fresh dispatch waits
                                for it before it returns; on a GPU every call does */
    int32_t async_finish;    /* 1: return once outputs are known; rows are there when result.event has happened */
    void *stream;            /* CUDA: the CUstream that the call is put on. See "On GPUs" */
} expar_dispatch_args;
#define EXPAR_DISPATCH_ARGS_INIT EXPAR_STRUCT_INIT(expar_dispatch_args)

/* Rows are ordered by source rank, then by the source's token number: the same input gives the same bytes, always.
 *
 * With num_worst_tokens W, tensors have W rows where R is said below: rows from R on have recv_topk_idx -1, and their
 * x, scales and weights are not written. Where more than W come, the rows beyond are dropped: this rank's call (or
 * event) ends with EXPAR_ERR_DROPPED, its result is filled all the same, and num_dropped_tokens says how many.
 *
 * Expert-major: recv_x (and recv_x_scales) have one row for each (token, slot) whose expert lives here, sorted by
 * expert, then in the order above, then by slot. The rows of local expert e begin at the sum of
 * recv_tokens_per_expert[0 .. e-1]. recv_topk_* stay [R][K]; recv_row_map says which row belongs to which slot. With
 * num_worst_tokens it has W * K + (expert_alignment - 1) * L rows; counts tell all that was sent, so where rows are
 * dropped, slots whose row would lie beyond that are dropped too: -1 in the map. */
typedef struct expar_dispatch_result {
    size_t struct_size;             /* set by EXPAR_DISPATCH_RESULT_INIT */
    expar_tensor recv_x;            /* [R][H]; expert-major: [sum of recv_tokens_per_expert][H] */
    expar_tensor recv_topk_idx;     /* [R][K], dtype of topk_idx: local expert numbers, -1 where it lives elsewhere.
                                       None for a dispatch without topk_idx */
    expar_tensor recv_topk_weights; /* [R][K] f32, 0 where recv_topk_idx is -1. None without topk_weights */
    const int32_t *recv_tokens_per_expert; /* [L] host memory; NULL for a dispatch with a handle */
    int32_t num_local_experts;             /* L */
    int64_t num_recv_tokens;               /* R, without those that were dropped */
    expar_ep_handle *handle;               /* the caller's; NULL for a dispatch with a handle */
    expar_ep_output *output;    /* the caller's; owns all tensors here and recv_tokens_per_expert, but not out_x */
    expar_path path;            /* how this rank's rows came: DIRECT or QUEUE */
    expar_tensor recv_x_scales; /* [R][S] contiguous, dtype of x_scales; none without */
    expar_tensor recv_row_map;  /* expert-major: [R][K] i32, row of recv_x, or -1. Else none */
    int64_t num_dropped_tokens;
    expar_event *event; /* with async_finish: the caller's. Else NULL */
} expar_dispatch_result;
#define EXPAR_DISPATCH_RESULT_INIT EXPAR_STRUCT_INIT(expar_dispatch_result)

/* Carries each token to the ranks that hold its experts. Collective; returns when the rows are there, or with
   async_finish when the outputs are known: then all tensors of args and result must be left alone until result.event
   has happened. *result is written on EXPAR_OK and EXPAR_ERR_DROPPED only. Its backward is expar_combine with the same
   handle. The protocol is the library's own (docs/normal-mode.md).

   Errors of this rank's arguments: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE,
   EXPAR_ERR_STRIDE, EXPAR_ERR_ALIGNMENT, EXPAR_ERR_DEVICE, EXPAR_ERR_INDEX, EXPAR_ERR_LIMIT (names the member of config
   to raise), EXPAR_ERR_HANDLE, EXPAR_ERR_ADDRESS, EXPAR_ERR_BUFFER_SIZE, EXPAR_ERR_STATE (wait_event ended badly, or a
   ninth capture), EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM, EXPAR_ERR_UNSUPPORTED (no kernels for the shape), EXPAR_ERR_CUDA.
   Of all ranks together: EXPAR_ERR_REMOTE, EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED; and EXPAR_ERR_BUSY,
   EXPAR_ERR_DROPPED. */
EXPAR_API expar_status expar_dispatch(expar_ep *ep, const expar_dispatch_args *args, expar_dispatch_result *result);

/* Gives the results' memory back; the tensors of the dispatch must not be used after. A dispatch in flight keeps it
   until it has ended. Not collective; any thread. NULL is allowed. */
EXPAR_API void expar_ep_output_release(expar_ep_output *output);

typedef struct expar_combine_args {
    size_t struct_size;            /* set by EXPAR_COMBINE_ARGS_INIT */
    expar_tensor x;                /* [R][H] bf16, f16 or f32, H contiguous: weighted and summed over local experts */
    expar_tensor topk_weights;     /* [R][K] f32, K contiguous; or none */
    const expar_ep_handle *handle; /* of the dispatch that brought the rows */
    expar_path path;               /* DIRECT needs x (and topk_weights) in symmetric memory, on a GPU in an output of
                                      the library: EXPAR_ERR_ADDRESS */
    expar_tensor y;                /* out: [T][H], dtype of x, H contiguous, on a GPU rows 16-byte aligned; the caller's
                                      memory, any kind */
    expar_tensor out_topk_weights; /* out: [T][K] f32, contiguous; required with topk_weights, else none */
    expar_tensor bias[2];          /* [T][H], as y; each or none: added before all rows */
    int32_t expert_major;          /* 1: x is expert-major, as an expert-major dispatch gave it (the handle knows) */
    expar_tensor expert_weights;   /* with expert_major: [R][K] f32, weight of each slot's row; none: 1 */
    expar_event *wait_event;       /* as in expar_dispatch_args */
    int32_t async_finish; /* 1: returns at once (on a GPU: once wait_event has happened); y is there when *event
                             has happened */
    expar_event **event;  /* out, with async_finish: the caller's */
    void *stream;         /* CUDA: the CUstream that the call is put on. See "On GPUs" */
} expar_combine_args;
#define EXPAR_COMBINE_ARGS_INIT EXPAR_STRUCT_INIT(expar_combine_args)

/* y[t] = biases, then the rows of the ranks that had token t, in rank order: FP32 from +0, one rounding (to nearest
 * even; every NaN becomes the positive quiet NaN with all mantissa bits set). Weights likewise, slot by slot. Rows of
 * tokens that went nowhere are the biases' sum. Deterministic to the bit. Collective. x may be reused when the call
 * (its event) is done.
 *
 * Expert-major: x is [sum of recv_tokens_per_expert][H]. Each token's rows are first summed here: FP32 from +0, slots
 * ascending, each product weight · x rounded before it is added, and the sum rounded once to x's dtype; that row then
 * travels. Its backward is expar_dispatch with the handle. Errors as of expar_dispatch, but for EXPAR_ERR_INDEX and
 * EXPAR_ERR_DROPPED. */
EXPAR_API expar_status expar_combine(expar_ep *ep, const expar_combine_args *args);

/* What a handle knows; pointers last as long as the handle. On a GPU tokens_per_node is NULL: there is one node, and
   how many tokens go anywhere is not counted. Of a dispatch with num_worst_tokens there, whose counts nobody has waited
   for, num_recv_tokens is -1, and rank_prefix and channel_prefix are NULL. */
typedef struct expar_handle_info {
    size_t struct_size;             /* set by EXPAR_HANDLE_INFO_INIT */
    int64_t num_tokens;             /* T of the dispatch */
    int64_t num_recv_tokens;        /* R */
    int32_t num_experts;            /* E */
    int32_t num_topk;               /* K */
    int32_t num_channels;           /* C */
    const int32_t *rank_prefix;     /* [N] rows that this rank receives from ranks 0..i */
    const int32_t *channel_prefix;  /* [N][C] (i, c): tokens that this rank's channels 0..c send to rank i */
    int32_t num_nodes;              /* M */
    const int32_t *tokens_per_node; /* [M] tokens that this rank sends to each node, each counted once */
} expar_handle_info;
#define EXPAR_HANDLE_INFO_INIT EXPAR_STRUCT_INIT(expar_handle_info)
/* Fills as much as info->struct_size says that there is. Local; any thread. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT
   (struct_size), EXPAR_ERR_HANDLE (destroyed). */
EXPAR_API expar_status expar_ep_handle_info(const expar_ep_handle *handle, expar_handle_info *info);
/* May outlive the buffer; calls in flight keep it until they have ended. Not collective; any thread. NULL is
   allowed. */
EXPAR_API void expar_ep_handle_destroy(expar_ep_handle *handle);

#ifdef __cplusplus
}
#endif
#endif
