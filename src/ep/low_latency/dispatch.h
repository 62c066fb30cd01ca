/* SPDX-License-Identifier: Apache-2.0 */
/* One low-latency dispatch on its way; shared by dispatch.c and dispatch_check.c only. */
#ifndef EXPAR_EP_LOW_LATENCY_DISPATCH_H
#define EXPAR_EP_LOW_LATENCY_DISPATCH_H

#include "ep/low_latency/ll.h"

typedef struct ll_dispatch_call {
    ll_op op;
    expar_ll_dispatch_args args;
    /* The results, with their addresses once these are known; recv_scales: none without. */
    expar_tensor recv_x, recv_scales, recv_count;
} ll_dispatch_call;

static inline int32_t ll_dispatch_tokens(const ll_dispatch_call *call)
{
    return (int32_t)call->args.x.shape[0];
}

/* Fills args, and looks at everything that can be wrong with them; then the results are there, but for
   addresses that are not the caller's. */
expar_status ll_dispatch_check(ll_dispatch_call *call, const expar_ll_dispatch_args *args,
                               const expar_ll_dispatch_result *result);

#endif
