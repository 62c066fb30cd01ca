/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* One MoE layer: tokens go to their experts, which work on the rows, and the sums come back. x, y: [tokens][hidden]. */
expar_status run_layer(expar_ep *ep, expar_tensor x, expar_tensor topk_idx, expar_tensor topk_weights,
                       int32_t num_experts, void (*experts)(const expar_ep_dispatch_result *rows), expar_tensor y)
{
    expar_ep_dispatch_args dispatch = EXPAR_EP_DISPATCH_ARGS_INIT;
    dispatch.x = x;
    dispatch.topk_idx = topk_idx;
    dispatch.topk_weights = topk_weights;
    dispatch.num_experts = num_experts;
    expar_ep_dispatch_result rows = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status = expar_ep_dispatch(ep, &dispatch, &rows);
    if (status != EXPAR_OK) return status;

    experts(&rows); /* weighted, in place */

    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    combine.x = rows.recv_x;
    combine.handle = rows.handle;
    combine.out_y = y;
    status = expar_ep_combine(ep, &combine, NULL);
    expar_ep_output_release(rows.output);
    expar_ep_handle_release(rows.handle);
    return status;
}
