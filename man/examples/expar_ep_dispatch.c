/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* x: [tokens][7168] BF16; topk_idx and topk_weights: [tokens][8]. */
expar_status send(expar_ep *ep, void *x, int64_t *topk_idx, float *topk_weights, int64_t tokens,
                  expar_dispatch_result *rows)
{
    expar_dispatch_args args = EXPAR_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(x, EXPAR_BF16, tokens, 7168);
    args.topk_idx = expar_tensor_2d(topk_idx, EXPAR_I64, tokens, 8);
    args.topk_weights = expar_tensor_2d(topk_weights, EXPAR_F32, tokens, 8);
    args.num_experts = 256;
    *rows = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    return expar_dispatch(ep, &args, rows);
}
