/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch: tokens go to the ranks that hold their experts. */
#ifndef EXPAR_EP_DISPATCH_H
#define EXPAR_EP_DISPATCH_H

#include <expar/ep_buffer.h>
#include <expar/ep_handle.h>
#include <expar/ep_output.h>
#include <expar/ep_routing.h>
#include <expar/event.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How rows move inside a node. DIRECT: senders write rows to their places in the output (combine: receivers read rows
   from the input). QUEUE: rows pass a ring. AUTO takes DIRECT if peers reach the receiver's output (combine: the
   sender's input). On a GPU AUTO also takes DIRECT if the library can copy the rows through the pool. Otherwise it
   takes QUEUE. On GPUs whose ranks do not all map each other's memory, peers reach all rows, in copies that the host
   has. */
typedef enum expar_ep_path { EXPAR_EP_PATH_AUTO = 0, EXPAR_EP_PATH_DIRECT = 1, EXPAR_EP_PATH_QUEUE = 2 } expar_ep_path;

typedef struct expar_ep_dispatch_args {
    /* set by EXPAR_EP_DISPATCH_ARGS_INIT */
    size_t struct_size;

    /* ---- inputs ---- */
    /* [T][H] bf16, f16, f32, f8e4m3 or i8, H contiguous; rows are 16-byte aligned and a multiple of 16 bytes long */
    expar_tensor x;
    /* [T][S] f32, or i32 with four packed exponents each; any strides; or none. Only for f8e4m3 and i8 rows. Scales are
       carried bit for bit */
    expar_tensor x_scales;
    /* [T][K] i32 or i64, K contiguous. May be absent with a handle or token_in_rank */
    expar_tensor topk_idx;
    /* [T][K] f32, K contiguous; or none. Absent without topk_idx */
    expar_tensor topk_weights;

    /* ---- routing ---- */
    /* E. Ignored with a handle */
    int32_t num_experts;
    /* [T][N] u8, N contiguous; or none. A token goes to the ranks whose entries are not 0, whatever topk_idx says. If
       topk_idx is given, too, a slot counts for its expert only if the token goes to the expert's rank */
    expar_tensor token_in_rank;
    /* [E]: the number of this rank's tokens for each expert, in host memory or where the tensors are. NULL: all are 0.
       Only with token_in_rank and without topk_idx */
    const int32_t *tokens_per_expert;
    /* the routing of an earlier dispatch or route; or NULL. With a handle this call computes no layout and exchanges no
       counts. The handle decides where rows go; topk_idx (with the handle's K) and topk_weights are carried as data */
    const expar_ep_handle *handle;
    /* the count of each expert is rounded up to a multiple of this number; 0 or 1: no rounding. Ignored with a handle,
       which has its own */
    int32_t expert_alignment;
    /* W > 0: outputs have W rows, however many come, so the call does not wait for counts. Needs topk_idx. 0: outputs
       have R rows. May differ between ranks */
    int64_t num_worst_tokens;
    /* P > 0, with expert_major: recv_x, its scales and its weights have P rows, however many come. Rows have the places
       that they would have without this limit. A row whose place is P or more is dropped, which is no error: its slots
       have -1 in recv_row_map, and add nothing in a combine. 0: as many rows as come. May differ between ranks */
    int64_t num_expert_rows;

    /* ---- options ---- */
    /* with DIRECT the call fails if the output does not fit into the pool: with EXPAR_ERR_BUFFER_SIZE, or with
       EXPAR_ERR_MEMORY if only the machine limits the pool */
    expar_ep_path path;
    /* 1: recv_x has one row for each (token, local expert); see expar_ep_dispatch_result. Needs topk_idx, or a handle
       from an expert-major dispatch */
    int32_t expert_major;
    /* with expert_major, 1: padding rows, which belong to no slot, are zero; 0: they are not written */
    int32_t zero_padding;
    /* 1: the handle keeps the rank of each slot's expert, 2 bytes for each slot. A combine needs this if its sum_order
       is not BY_RANK, or if its weights_of is OWNER. Needs topk_idx. Ignored with a handle. Across nodes all ranks must
       set the same value. A forwarder's handle then also keeps 2 bytes for each slot of the tokens that it receives */
    int32_t keep_slots;
    /* 1, on all ranks: recv_topk_idx has global expert numbers, as in topk_idx, -1 where the expert is on another rank;
       0: local numbers */
    int32_t global_experts;
    /* 1, on all ranks: the result has recv_src_token */
    int32_t src_tokens;
    /* M > 0, on all ranks: the result has recv_src_metadata and recv_src_token. M is at least T and at most (2^31 - 1)
       / N. It is the same on all ranks, so that no number stands for two tokens */
    int32_t src_stride;
    /* 1: the result has recv_row_weights. Needs expert_major and topk_weights */
    int32_t row_weights;
    /* 1: recv_scales is column-major, with strides (1, the number of its rows rounded up to a multiple of 4). Each
       column then begins at a multiple of 16 bytes, as TMA needs it. Needs x_scales. out_scales then has strides (1, a
       multiple of 4), and is aligned to 16 bytes */
    int32_t column_scales;
    /* CUDA: the number of SMs for those kernels of this call that wait for other ranks. CPU: the number of threads for
       this call, the calling thread included. The bounds are those of the buffer's config. 0: the number of the buffer.
       May differ between ranks */
    int32_t num_sms;

    /* ---- the caller's outputs ---- */
    /* the caller's own tensor for recv_x, [≥ R][H], contiguous; none: the library allocates. If peers cannot reach it,
       rows come by QUEUE, or into the pool, from where the library copies them. With path DIRECT the call then fails
       with EXPAR_ERR_ADDRESS. With expert_major any memory will do, since this rank itself writes those rows */
    expar_tensor out_x;
    /* the caller's own tensor for recv_scales, with at least as many rows, contiguous; or none. If peers cannot reach
       it, all rows come as for such an out_x. With expert_major or column_scales any memory will do */
    expar_tensor out_scales;
    /* the caller's own tensor for recv_topk_idx, with at least as many rows, contiguous; or none. If peers cannot reach
       it, all rows come as for such an out_x */
    expar_tensor out_topk_idx;
    /* the caller's own tensor for recv_topk_weights, with at least as many rows, contiguous; or none. If peers cannot
       reach it, all rows come as for such an out_x */
    expar_tensor out_topk_weights;
    /* the caller's own tensor for recv_row_map, with at least as many rows, contiguous; or none. Any memory will do,
       since this rank itself writes the map */
    expar_tensor out_row_map;
    /* the caller's own tensor for recv_src_token, [≥ R] i32, contiguous; giving it also requests the result; or none.
       If peers cannot reach it, all rows come as for such an out_x */
    expar_tensor out_src_token;
    /* the caller's own tensor for recv_src_metadata, [≥ R][2 + K] i32, contiguous; or none. Needs src_stride */
    expar_tensor out_src_metadata;
    /* the caller's own tensor for recv_row_weights, f32, with at least as many rows as recv_x, contiguous; giving it
       also requests the result; or none */
    expar_tensor out_row_weights;
    /* the caller's own tensor, [T][K], dtype of topk_idx, contiguous; or none. The call copies the values of topk_idx
       into it as it reads them, so the caller may then overwrite topk_idx. Needs topk_idx, and no handle */
    expar_tensor topk_idx_copy;
    /* arrays on the device of the tensors, which the call fills with counts; or NULL */
    const expar_ep_recv_counts *recv_counts;

    /* ---- completion ---- */
    /* no argument is read before this event has happened; or NULL. A fresh dispatch that waits for counts returns only
       after the event. On a GPU every call returns only after the event, unless the event lies on a stream
       (expar_event_record, events of calls on GPUs). In that case the call's stream waits for it */
    expar_event *wait_event;
    /* 1: the call returns once it knows the addresses of the outputs. With num_worst_tokens or a handle it knows them
       at once. Rows have arrived when result.event has happened */
    int32_t async_finish;
    /* CUDA: the CUstream that the call is put on. See "On GPUs" in expar/ep.h */
    void *stream;
} expar_ep_dispatch_args;
#define EXPAR_EP_DISPATCH_ARGS_INIT EXPAR_STRUCT_INIT(expar_ep_dispatch_args)

/* Rows are ordered by source rank, then by the source's token number. The same input always gives the same bytes.
 *
 * With num_worst_tokens W, tensors have W rows where the shapes below say R. Rows from R on have recv_topk_idx -1, and
 * their x, scales and weights are not written. If more than W rows come, the rows beyond W are dropped. This rank's
 * call (or event) then ends with EXPAR_ERR_DROPPED. Its result is filled all the same, and num_dropped_tokens has the
 * number of dropped rows.
 *
 * Expert-major: recv_x (and recv_scales) have one row for each (token, slot) whose expert is on this rank. Rows are
 * sorted by expert, then in the order above, then by slot. The rows of local expert e begin at the sum of
 * recv_tokens_per_expert[0 .. e-1]. recv_topk_idx and recv_topk_weights stay [R][K]; recv_row_map says which row
 * belongs to which slot. With num_worst_tokens recv_x has W * K + (expert_alignment - 1) * L rows, and with
 * num_expert_rows that many. recv_tokens_per_expert also counts dropped rows, so some rows may have no place in that
 * size. Such rows are dropped, too, and their slots have -1 in the map. num_dropped_tokens does not count them. */
typedef struct expar_ep_dispatch_result {
    /* set by EXPAR_EP_DISPATCH_RESULT_INIT */
    size_t struct_size;

    /* ---- tensors ---- */
    /* [R][H]; expert-major: [sum of recv_tokens_per_expert][H] */
    expar_tensor recv_x;
    /* [R][S] contiguous, or as column_scales says; dtype of x_scales. None without x_scales */
    expar_tensor recv_scales;
    /* [R][K], dtype of topk_idx: local expert numbers, -1 for experts of other ranks. None for a dispatch without
       topk_idx */
    expar_tensor recv_topk_idx;
    /* [R][K] f32, 0 where recv_topk_idx is -1. None without topk_weights */
    expar_tensor recv_topk_weights;
    /* expert-major: [R][K] i32, the row of recv_x, or -1. Else none */
    expar_tensor recv_row_map;
    /* [R] i32: the token number of each row at its source, if it was requested; else none. The handle's rank_prefix
       tells the source of a row. With num_worst_tokens, entries from R on are -1 */
    expar_tensor recv_src_token;
    /* with src_stride: [R][2 + K] i32; else none. Each row has source rank · M + token number there, then the source
       rank, then the K entries of recv_row_map, -1 where there is none. With num_worst_tokens, rows from R on are -1 */
    expar_tensor recv_src_metadata;
    /* expert-major: [rows of recv_x] f32, the weight of the slot that each row belongs to, bit for bit. Entries of
       padding rows are zero with zero_padding, else they are not written. None if it was not requested */
    expar_tensor recv_row_weights;

    /* ---- numbers ---- */
    /* [L] in host memory; NULL for a dispatch with a handle, and for a call that has not waited for its counts */
    const int32_t *recv_tokens_per_expert;
    /* L */
    int32_t num_local_experts;
    /* R, without dropped rows; -1: the host does not know it */
    int64_t num_recv_tokens;
    /* the number of dropped rows that the host knows of */
    int64_t num_dropped_tokens;
    /* how this rank's rows came: DIRECT or QUEUE */
    expar_ep_path path;

    /* ---- objects ---- */
    /* belongs to the caller; NULL for a dispatch with a handle */
    expar_ep_handle *handle;
    /* belongs to the caller; owns recv_tokens_per_expert and all tensors here that the library allocated */
    expar_ep_output *output;
    /* with async_finish: belongs to the caller. Else NULL */
    expar_event *event;
} expar_ep_dispatch_result;
#define EXPAR_EP_DISPATCH_RESULT_INIT EXPAR_STRUCT_INIT(expar_ep_dispatch_result)

/* Carries each token to the ranks that hold its experts. Collective. The call returns when the rows have arrived; with
   async_finish it returns when it knows the addresses of the outputs. In that case do not touch any tensor of args and
   result before result.event has happened. *result is written on EXPAR_OK and EXPAR_ERR_DROPPED only. The backward pass
   is expar_ep_combine with the same handle. docs/internals/normal-mode.md describes the protocol. Counts must fit 31
   bits, so expert_alignment is at most 2^30, T · K · N is at most 2^30, and each of tokens_per_expert is at most 2^30 /
   N.

   Errors of this rank's arguments: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE,
   EXPAR_ERR_STRIDE, EXPAR_ERR_ALIGNMENT, EXPAR_ERR_DEVICE, EXPAR_ERR_INDEX, EXPAR_ERR_HANDLE, EXPAR_ERR_ADDRESS,
   EXPAR_ERR_BUFFER_SIZE, EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM, EXPAR_ERR_CUDA. Also EXPAR_ERR_LIMIT (the text names the
   member of config to raise), EXPAR_ERR_STATE (wait_event ended with an error, or eight other captures are open) and
   EXPAR_ERR_UNSUPPORTED (no kernels for the shape). Other errors: EXPAR_ERR_REMOTE, EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED, EXPAR_ERR_BUSY, EXPAR_ERR_DROPPED. */
EXPAR_API expar_status expar_ep_dispatch(expar_ep *ep, const expar_ep_dispatch_args *args,
                                         expar_ep_dispatch_result *result);

#ifdef __cplusplus
}
#endif
#endif
