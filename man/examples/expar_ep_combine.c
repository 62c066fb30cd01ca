/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* Sends the experts' rows back, where the dispatch has left them; y: [tokens][7168] BF16. */
expar_status bring_back(expar_ep *ep, const expar_ep_dispatch_result *rows, void *y, int64_t tokens)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = rows->recv_x;
    args.handle = rows->handle;
    args.out_y = expar_tensor_2d(y, EXPAR_BF16, tokens, 7168);
    return expar_ep_combine(ep, &args, NULL);
}
