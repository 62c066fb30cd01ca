/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: the experts' results come back and are summed. */
#ifndef EXPAR_EP_COMBINE_H
#define EXPAR_EP_COMBINE_H

#include <expar/ep_dispatch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The rows that a token's sum is made of, and the order in which they are added. See expar_ep_combine. */
typedef enum expar_ep_sum_order {
    /* one row of each rank; ranks ascending */
    EXPAR_EP_SUM_ORDER_BY_RANK = 0,
    /* one row of each rank; ranks by ascending s(r), the highest slot whose expert is on rank r */
    EXPAR_EP_SUM_ORDER_BY_SLOT = 1,
    /* expert-major: one row of each slot; slots ascending, whichever rank they are on */
    EXPAR_EP_SUM_ORDER_EACH_SLOT = 2
} expar_ep_sum_order;

/* The meaning of out_topk_weights[t][k]. */
typedef enum expar_ep_weights_of {
    EXPAR_EP_WEIGHTS_OF_ALL = 0,  /* the sum of slot k over all ranks that had token t */
    EXPAR_EP_WEIGHTS_OF_OWNER = 1 /* the value that the rank of the slot's expert gave; 0 for a slot without expert */
} expar_ep_weights_of;

/* Where ranks are on several nodes: the part of a token's rows that crosses the network. */
typedef enum expar_ep_nodes_sum {
    EXPAR_EP_NODES_SUM_ROUNDED = 0,   /* the sum of each node's rows, rounded to x's dtype */
    EXPAR_EP_NODES_SUM_EXACT = 1,     /* the same sum as FP32: only the whole sum is rounded */
    EXPAR_EP_NODES_SUM_ONE_ORDER = 2, /* every row by itself: all nodes' rows are added in one order, as on one node */
    EXPAR_EP_NODES_SUM_OWN_FIRST = 3  /* the rounded sum of each node, but single rows of the token's own node */
} expar_ep_nodes_sum;

typedef struct expar_ep_combine_args {
    /* set by EXPAR_EP_COMBINE_ARGS_INIT */
    size_t struct_size;

    /* ---- inputs ---- */
    /* [R][H] bf16, f16 or f32, H contiguous: rows that are already weighted and summed over local experts */
    expar_tensor x;
    /* [R][K] f32, K contiguous; expert-major with weights_of the owner: [rows of x][1], one for each row; or none */
    expar_tensor topk_weights;
    /* with expert_major: [R][K] f32, the weight of each slot's row; none: 1 */
    expar_tensor expert_weights;
    /* [T][H], as out_y, each or none: added before all rows */
    expar_tensor bias[2];

    /* ---- routing ---- */
    /* of the dispatch that brought the rows */
    const expar_ep_handle *handle;

    /* ---- options ---- */
    /* DIRECT needs x (and topk_weights) in symmetric memory, on a GPU in an output of the library; else
       EXPAR_ERR_ADDRESS */
    expar_ep_path path;
    /* 1: x is expert-major, in the layout of an expert-major dispatch (the handle knows it) */
    int32_t expert_major;
    /* other than BY_RANK: needs a handle whose dispatch had keep_slots */
    expar_ep_sum_order sum_order;
    /* with topk_weights; OWNER also needs such a handle */
    expar_ep_weights_of weights_of;
    /* the same on all ranks; without effect on one node */
    expar_ep_nodes_sum nodes_sum;
    /* as in expar_ep_dispatch_args */
    int32_t num_sms;

    /* ---- the caller's outputs ---- */
    /* [T][H], dtype of x, H contiguous, on a GPU rows 16-byte aligned; any memory */
    expar_tensor out_y;
    /* [T][K] f32, contiguous; required with topk_weights, else none */
    expar_tensor out_topk_weights;

    /* ---- completion ---- */
    /* as in expar_ep_dispatch_args */
    expar_event *wait_event;
    /* 1: returns at once (on a GPU after a wait_event that is on no stream has happened); out_y is filled when
       result.event has happened */
    int32_t async_finish;
    /* CUDA: the CUstream that the call is put on. See "On GPUs" */
    void *stream;
} expar_ep_combine_args;
#define EXPAR_EP_COMBINE_ARGS_INIT EXPAR_STRUCT_INIT(expar_ep_combine_args)

typedef struct expar_ep_combine_result {
    /* set by EXPAR_EP_COMBINE_RESULT_INIT */
    size_t struct_size;
    /* with async_finish: belongs to the caller. Else NULL */
    expar_event *event;
} expar_ep_combine_result;
#define EXPAR_EP_COMBINE_RESULT_INIT EXPAR_STRUCT_INIT(expar_ep_combine_result)

/* Brings the experts' results back and sums them. Sum y[t] = biases, then the rows of the ranks that had token t, in
 * rank order: FP32 from +0, one rounding to nearest even. Every NaN becomes the positive quiet NaN with all mantissa
 * bits set. Weights are summed in the same way, slot by slot. For tokens that went nowhere y[t] is the sum of the
 * biases. Results are deterministic to the bit. Collective. x may be reused when the call (its event) is done. result
 * may be NULL without async_finish. *result is written on EXPAR_OK only.
 *
 * Expert-major: x is [sum of recv_tokens_per_expert][H]. Each token's rows are first summed here: FP32 from +0, slots
 * ascending. Each product weight · x is rounded before it is added, and the sum is rounded once to x's dtype. That row
 * then travels. Its backward pass is expar_ep_dispatch with the handle.
 *
 * If ranks are on several nodes, each node's rows are added there, FP32 from +0, ranks ascending. That sum is rounded
 * to x's dtype, unless nodes_sum is EXPAR_EP_NODES_SUM_EXACT. Then y[t] = biases, then the nodes' sums ascending, with
 * one rounding. With EXPAR_EP_NODES_SUM_ONE_ORDER y is to the bit the result of one node. Each row then crosses the
 * network by itself, which takes longer. Sums of weights are always the nodes' sums ascending, FP32.
 *
 * With EXPAR_EP_NODES_SUM_OWN_FIRST let m be the token's own node of M. y[t] = biases, then the rows of node m as on
 * one node. The rounded sums of the nodes m - 1, m - 2, ... modulo M follow. All are added in FP32 from +0, with one
 * rounding.
 *
 * sum_order and weights_of are the same on all ranks. The sums of token t, with x_r the row of rank r, are in FP32 from
 * +0, with one rounding at the end (round):
 *
 *     BY_RANK     y[t] = round(bias 0 + bias 1 + Σ x_r, r ascending)
 *     BY_SLOT     y[t] = round(bias 0 + bias 1 + Σ x_r, s(r) ascending), s(r) = max {k: expert of slot k lives on r};
 *                 ranks that have the token without such an expert (token_in_rank) come first, r ascending
 *     EACH_SLOT   y[t] = round(bias 0 + bias 1 + Σ x(t, k), k ascending), x(t, k) the expert-major row of slot k
 *
 * Over several nodes, with EXPAR_EP_NODES_SUM_ROUNDED or _EXACT, each node adds its ranks' rows, or its slots'
 * rows, in that order. It rounds the sum as above. Then y[t] = round(biases + the nodes' sums). BY_RANK adds nodes
 * ascending. The other orders add them by the highest slot whose expert is on the node; nodes without such a slot come
 * first.
 *
 * Expert-major x_r = round(Σ weight · x(t, k), k ascending on r), on each rank that has expert_major set. EACH_SLOT
 * needs expert_major on all ranks, and takes no expert_weights. It multiplies and rounds nothing before the end, and
 * every row travels. Slots of -1, and slots of rows that were dropped, add nothing. OWNER's weights are carried bit for
 * bit.
 *
 * Errors as of expar_ep_dispatch, but for EXPAR_ERR_INDEX and EXPAR_ERR_DROPPED; EXPAR_ERR_HANDLE also if the handle
 * does not keep its slots. */
EXPAR_API expar_status expar_ep_combine(expar_ep *ep, const expar_ep_combine_args *args,
                                        expar_ep_combine_result *result);

/* ---- sums that are made later ------------------------------------------------------------------------------------ */

/* A combine adds biases first, so all of its sums need them at the call. A caller whose biases come later makes the
 * same sums in two steps. First the rows of each token return to its rank by themselves, by a dispatch whose topk_idx
 * names the rank of each row's token. Then that rank adds them. Both calls here are local, for any thread, and need no
 * buffer. They work where their tensors are, in host memory or on a GPU. There they are put on the stream and not
 * waited for, also in a graph. */
typedef struct expar_ep_terms_args {
    /* set by EXPAR_EP_TERMS_ARGS_INIT */
    size_t struct_size;
    /* [T][K] i32 or i64, K contiguous: that of the dispatch that brought the tokens */
    expar_tensor topk_idx;
    /* E, at most 2^22 */
    int32_t num_experts;
    /* BY_SLOT: one row of each rank returns, and rows come by rank, then by token. EACH_SLOT: one row of each slot
       returns, and rows come by expert, then by token, then by slot. Not BY_RANK */
    expar_ep_sum_order sum_order;
    /* ROUNDED or ONE_ORDER; without effect on one node */
    expar_ep_nodes_sum nodes_sum;
    /* [T][K] i64, K contiguous */
    expar_tensor out_terms;
    /* CUDA: a CUstream of the tensors' GPU; NULL: the default stream */
    void *stream;
} expar_ep_terms_args;
#define EXPAR_EP_TERMS_ARGS_INIT EXPAR_STRUCT_INIT(expar_ep_terms_args)

/* Finds the terms of each token's sum: the row at each slot, or -1. Bits 32 and up of a term have the number of its
 * node plus 1, or 0 if the row is added by itself. Nothing is written on an error. An index out of range counts as -1
 * on a GPU. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE,
 * EXPAR_ERR_ALIGNMENT, EXPAR_ERR_MEMORY, EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_CUDA. EXPAR_ERR_INDEX: an index is outside
 * [-1, E). EXPAR_ERR_DEVICE: a tensor is elsewhere. EXPAR_ERR_STATE: the group has ended. */
EXPAR_API expar_status expar_ep_find_terms(const expar_group *group, const expar_ep_terms_args *args);

typedef struct expar_ep_sum_args {
    /* set by EXPAR_EP_SUM_ARGS_INIT */
    size_t struct_size;
    /* [rows][H] bf16, f16 or f32, H contiguous */
    expar_tensor x;
    /* [T][K] i64 as expar_ep_find_terms makes them, or i32, which are rows that are added by themselves; K contiguous.
       What is less than 0, or names no row of x, adds nothing */
    expar_tensor terms;
    /* [T][H], as out_y, each or none: added before all rows */
    expar_tensor bias[2];
    /* [T][H], dtype of x, H contiguous */
    expar_tensor out_y;
    /* CUDA: a CUstream of the tensors' GPU; NULL: the default stream */
    void *stream;
} expar_ep_sum_args;
#define EXPAR_EP_SUM_ARGS_INIT EXPAR_STRUCT_INIT(expar_ep_sum_args)

/* Sums rows: y[t] = round(bias 0 + bias 1 + Σ x[terms[t][k]], k ascending), in FP32 from +0, with one rounding to
 * nearest even. Rows of one node are first summed by themselves, from +0, and rounded. That sum is added at the last of
 * their slots. With terms of expar_ep_find_terms y has the bits of an expar_ep_combine with these biases and orders.
 * All rows are aligned to 16 bytes, and have a multiple of 16 bytes. Errors as of expar_ep_find_terms. */
EXPAR_API expar_status expar_ep_sum_terms(const expar_group *group, const expar_ep_sum_args *args);

#ifdef __cplusplus
}
#endif
#endif
