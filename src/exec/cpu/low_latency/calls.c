/* SPDX-License-Identifier: Apache-2.0 */
/* The two phases of a call. Both kinds open, hear from the other ranks, and close alike; the rest is in dispatch.c and
 * combine.c. */
#include "exec/cpu/low_latency/far.h"

expar_status ll_cpu_send(executor *base, exec_call *exec, ll_call *call)
{
    static const char *const sending[] = {"low-latency dispatch: sending", "low-latency combine: sending"};
    ll_cpu *self = ll_cpu_of(base);
    (void)exec;
    expar_status status = call->kind == LL_DISPATCH ? ll_dispatch_send(self, (ll_dispatch_step *)call)
                                                    : ll_combine_send(self, (ll_combine_step *)call);
    if (!self->far) return status;
    if (status == EXPAR_OK && call->open) status = self->far->check(self, sending[call->kind]);
    self->far->flush(self);
    return status;
}

static expar_status receive_data(ll_cpu *self, ll_call *call)
{
    return call->kind == LL_DISPATCH ? ll_dispatch_receive(self, (ll_dispatch_step *)call)
                                     : ll_combine_receive(self, (ll_combine_step *)call);
}

expar_status ll_cpu_receive(executor *base, exec_call *exec, ll_call *call)
{
    static const char *const ends[] = {"low-latency dispatch: the end", "low-latency combine: the end"};
    ll_cpu *self = ll_cpu_of(base);
    (void)exec;
    expar_status status = ll_headers_await(self, call);
    if (status != EXPAR_OK) return status;
    ll_call_judge(self, call);
    const bool mismatched = ll_call_mismatches(self, call);
    if (!mismatched) status = receive_data(self, call);
    if (status != EXPAR_OK) return status;
    ll_call_close(self, call, mismatched);
    return self->far ? self->far->check(self, ends[call->kind]) : EXPAR_OK;
}
