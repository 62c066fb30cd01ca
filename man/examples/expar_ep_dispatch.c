/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* x: [tokens][7168] BF16; topk_idx and topk_weights: [tokens][8]. */
expar_status send(expar_ep *ep, void *x, int64_t *topk_idx, float *topk_weights, int64_t tokens,
                  expar_ep_dispatch_result *rows)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(x, EXPAR_BF16, tokens, 7168);
    args.topk_idx = expar_tensor_2d(topk_idx, EXPAR_I64, tokens, 8);
    args.topk_weights = expar_tensor_2d(topk_weights, EXPAR_F32, tokens, 8);
    args.num_experts = 256;
    *rows = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return expar_ep_dispatch(ep, &args, rows);
}

/* Arguments of a grouped GEMM of FP8. x: [tokens][7168] F8E4M3; scales: [tokens][56]; ends: [256 / ranks], where the
   tensors lie. Rows of an expert begin at multiples of 128; 4096 is the most tokens that any rank sends. */
expar_status send_by_expert(expar_ep *ep, void *x, float *scales, int64_t *topk_idx, float *topk_weights,
                            int64_t tokens, int32_t *ends, expar_ep_dispatch_result *rows)
{
    expar_ep_recv_counts counts = EXPAR_EP_RECV_COUNTS_INIT;
    counts.expert_ends = ends;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(x, EXPAR_F8E4M3, tokens, 7168);
    args.x_scales = expar_tensor_2d(scales, EXPAR_F32, tokens, 56);
    args.topk_idx = expar_tensor_2d(topk_idx, EXPAR_I64, tokens, 8);
    args.topk_weights = expar_tensor_2d(topk_weights, EXPAR_F32, tokens, 8);
    args.num_experts = 256;
    args.expert_alignment = 128;
    args.expert_major = 1;
    args.column_scales = 1; /* rows->recv_scales: strides (1, rows rounded up to a multiple of 4) */
    args.row_weights = 1;   /* rows->recv_row_weights: one a row of recv_x */
    args.src_stride = 4096; /* rows->recv_src_metadata: source * 4096 + token, source, rows of the slots */
    args.recv_counts = &counts;
    *rows = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return expar_ep_dispatch(ep, &args, rows);
}
