/* SPDX-License-Identifier: Apache-2.0 */
/* Routing: which tokens go to which ranks, and the counts that follow. */
#ifndef EXPAR_EP_ROUTING_H
#define EXPAR_EP_ROUTING_H

#include <expar/ep_buffer.h>
#include <expar/ep_handle.h>
#include <expar/event.h>
#include <expar/group.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts that follow from topk_idx alone. Each array belongs to the caller and may be NULL (not wanted). */
typedef struct expar_ep_layout {
    /* set by EXPAR_EP_LAYOUT_INIT */
    size_t struct_size;
    /* [N] a token counts once for a rank, however many of its experts are there */
    int32_t *tokens_per_rank;
    /* [M] a token counts once for a node */
    int32_t *tokens_per_node;
    /* [E] every occurrence counts */
    int32_t *tokens_per_expert;
    /* [T][N] 1 where the token goes to the rank, else 0 */
    uint8_t *token_in_rank;
    /* CUDA: a CUstream of topk_idx's GPU; NULL: the default stream */
    void *stream;
} expar_ep_layout;
#define EXPAR_EP_LAYOUT_INIT EXPAR_STRUCT_INIT(expar_ep_layout)

/* Computes the layout. topk_idx: [T][K] int32 or int64, last dimension contiguous; -1 means none. num_experts: E, at
   most 2^22, as in calls on a buffer. The arrays are where topk_idx is: in host memory, or in the memory of a GPU.
   Local, no communication; any thread. Nothing is written on an error. On a GPU the counts are put on the stream and
   not waited for, also in a graph. An index out of range counts as -1 there; a dispatch rejects it. Errors:
   EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE, EXPAR_ERR_ALIGNMENT,
   EXPAR_ERR_MEMORY, EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_CUDA. EXPAR_ERR_INDEX: an index is outside [-1, E); the text has
   its token and slot. EXPAR_ERR_DEVICE: an array is elsewhere. EXPAR_ERR_STATE: the group has ended. */
EXPAR_API expar_status expar_ep_get_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                           const expar_ep_layout *layout);

/* The counts of rows that a rank receives, for callers that do not return to the host for them. Each array belongs to
   the caller and may be NULL (not wanted). It is where the buffer's tensors are (on a GPU in its memory), and is
   aligned to its elements. On a GPU the counts are written in the order of the call's stream, also with
   num_worst_tokens and in graphs. */
typedef struct expar_ep_recv_counts {
    /* set by EXPAR_EP_RECV_COUNTS_INIT */
    size_t struct_size;
    /* [L] rows for each local expert, not rounded up, including those that were dropped */
    int32_t *tokens_per_expert;
    /* [L+1] the first row of each expert in an expert-major output; the last entry is the number of rows. These are
       sums of counts rounded up to expert_alignment, at most 2^31 - 1 */
    int32_t *expert_prefix;
    /* [N] rows that come from ranks 0..i, including those that were dropped */
    int32_t *rank_prefix;
    /* [1] R, without rows that were dropped */
    int64_t *num_recv_tokens;
    /* [L] the end of each expert's rows there, before those that only round up: expert_prefix[e] +
       tokens_per_expert[e], at most 2^31 - 1 */
    int32_t *expert_ends;
} expar_ep_recv_counts;
#define EXPAR_EP_RECV_COUNTS_INIT EXPAR_STRUCT_INIT(expar_ep_recv_counts)

/* Members mean the same as in expar_ep_dispatch_args. */
typedef struct expar_ep_route_args {
    /* set by EXPAR_EP_ROUTE_ARGS_INIT */
    size_t struct_size;

    /* ---- routing ---- */
    /* [T][K] i32 or i64, K contiguous; or none, with token_in_rank alone */
    expar_tensor topk_idx;
    /* [T][N] u8, N contiguous; or none */
    expar_tensor token_in_rank;
    /* E */
    int32_t num_experts;
    /* [E], with token_in_rank and without topk_idx; NULL: zeros */
    const int32_t *tokens_per_expert;
    /* 0 or 1: none */
    int32_t expert_alignment;
    /* W > 0: dispatches with the handle have W rows, and nothing waits for counts. 0: R rows */
    int64_t num_worst_tokens;
    /* P > 0: expert-major outputs of dispatches with the handle have P rows. Needs topk_idx. 0: as many rows as come */
    int64_t num_expert_rows;

    /* ---- options ---- */
    int32_t keep_slots;
    int32_t num_sms;

    /* ---- the caller's outputs ---- */
    const expar_ep_recv_counts *recv_counts;

    /* ---- completion ---- */
    /* no argument is read before it has happened; or NULL */
    expar_event *wait_event;
    /* 1: result.event says how the call ended. With num_worst_tokens only the event says so, since the call returns at
       once. Without num_worst_tokens the call still waits for counts */
    int32_t async_finish;
    /* CUDA: the CUstream that the call is put on. See "On GPUs" */
    void *stream;
} expar_ep_route_args;
#define EXPAR_EP_ROUTE_ARGS_INIT EXPAR_STRUCT_INIT(expar_ep_route_args)

typedef struct expar_ep_route_result {
    /* set by EXPAR_EP_ROUTE_RESULT_INIT */
    size_t struct_size;
    /* belongs to the caller */
    expar_ep_handle *handle;
    /* R, without rows that will be dropped; -1: not known to the host */
    int64_t num_recv_tokens;
    /* rows of outputs of dispatches with the handle: R, or W */
    int64_t num_rows;
    /* rows of their expert-major outputs */
    int64_t num_expert_rows;
    /* rows that do not fit into W rows, as far as the host knows */
    int64_t num_dropped_tokens;
    /* [L] in host memory, as long as the handle; NULL: not known to the host */
    const int32_t *recv_tokens_per_expert;
    /* L */
    int32_t num_local_experts;
    /* with async_finish: belongs to the caller. Else NULL */
    expar_event *event;
} expar_ep_route_result;
#define EXPAR_EP_ROUTE_RESULT_INIT EXPAR_STRUCT_INIT(expar_ep_route_result)

/* Computes the layout and exchanges counts, as a fresh dispatch does before its rows. So a caller knows how many rows
   come before it allocates memory for them. Dispatches with the handle carry topk_idx, topk_weights and scales like
   fresh ones. Combines with it may come without a dispatch. Collective; returns when the counts are known. It returns
   at once with num_worst_tokens on a GPU, and with num_worst_tokens and async_finish on the CPU. *result is written on
   EXPAR_OK only. Errors as of expar_ep_dispatch, but for EXPAR_ERR_ADDRESS, EXPAR_ERR_BUFFER_SIZE and
   EXPAR_ERR_DROPPED: rows that do not fit are dropped and reported by the dispatches. */
EXPAR_API expar_status expar_ep_route(expar_ep *ep, const expar_ep_route_args *args, expar_ep_route_result *result);

#ifdef __cplusplus
}
#endif
#endif
