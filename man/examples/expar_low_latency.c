/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* One layer of a decoding step: x and y are [tokens][7168] BF16, the experts' GEMM writes where it reads. */
expar_status decode_layer(expar_ll *ll, void *x, void *y, int64_t *topk_idx, float *topk_weights, int64_t tokens,
                          void (*experts)(expar_tensor *rows, const expar_tensor *counts))
{
    expar_ll_dispatch_args out = EXPAR_LL_DISPATCH_ARGS_INIT;
    expar_ll_dispatch_result rows = EXPAR_LL_DISPATCH_RESULT_INIT;
    out.x = expar_tensor_2d(x, EXPAR_BF16, tokens, 7168);
    out.topk_idx = expar_tensor_2d(topk_idx, EXPAR_I64, tokens, 8);
    expar_status status = expar_ll_dispatch(ll, &out, &rows);
    if (status != EXPAR_OK) return status;
    experts(&rows.recv_x, &rows.recv_count);

    expar_ll_combine_args back = EXPAR_LL_COMBINE_ARGS_INIT;
    expar_ll_combine_result sums = EXPAR_LL_COMBINE_RESULT_INIT;
    back.x = rows.recv_x;
    back.topk_idx = out.topk_idx;
    back.topk_weights = expar_tensor_2d(topk_weights, EXPAR_F32, tokens, 8);
    back.handle = rows.handle;
    back.out_y = expar_tensor_2d(y, EXPAR_BF16, tokens, 7168);
    status = expar_ll_combine(ll, &back, &sums);
    expar_ll_handle_release(rows.handle);
    expar_ep_output_release(rows.output);
    return status;
}

/* Call this after each step of a buffer with masks: is one of up to 64 ranks missing? When the program of that rank is
   back, it calls expar_ll_mask_clean, and so do all others, with no call open. */
expar_status find_missing(expar_ll *ll, int32_t ranks, int32_t *missing)
{
    int32_t masked[64];
    const expar_tensor masks = expar_tensor_1d(masked, EXPAR_I32, ranks);
    expar_status status = expar_ll_mask_query(ll, &masks, NULL);
    *missing = -1;
    for (int32_t rank = 0; status == EXPAR_OK && rank < ranks; rank++)
        if (masked[rank]) *missing = rank;
    return status;
}
