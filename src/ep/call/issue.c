/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that finish by themselves, on the buffer's own thread (issuer.c), which holds the buffer. */
#include "ep/call/call.h"

expar_status ep_issue_prepare(expar_ep *ep)
{
    if (ep->issuer) return EXPAR_OK;
    expar_status status = ep_issuer_start(&ep->issuer);
    if (status == EXPAR_OK) life_hold(&ep->life);
    return status;
}

void ep_issue(ep_call *call, ep_issuer_run run)
{
    call->job = (ep_issuer_job){.call = call, .event = call->event, .run = run};
    ep_issuer_put(call->ep->issuer, &call->job);
}

void ep_issue_reach(expar_ep *ep, ep_phase phase)
{
    ep_issuer_reach(ep->issuer, phase);
}

expar_status ep_issue_await(expar_ep *ep, ep_phase phase)
{
    return ep_issuer_await(ep->issuer, phase);
}

void ep_issue_stop(expar_ep *ep)
{
    if (!ep->issuer) return;
    ep_issuer_stop(ep->issuer);
    ep->issuer = NULL;
    life_drop(&ep->life, EP_MAGIC);
}

static void leave_buffer(void *ep)
{
    ep_leave(ep);
}

/* The record stays until the buffer's last reference goes: others may wait here for the calls. */
void ep_issue_let_go(expar_ep *ep)
{
    if (ep->issuer) ep_issuer_let_go(ep->issuer, leave_buffer, ep);
}

void ep_issue_free(expar_ep *ep)
{
    ep_issuer_free(ep->issuer);
}
