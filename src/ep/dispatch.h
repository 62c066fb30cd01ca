/* SPDX-License-Identifier: Apache-2.0 */
/* One dispatch on its way; shared by dispatch.c and dispatch_check.c only. */
#ifndef EXPAR_EP_DISPATCH_H
#define EXPAR_EP_DISPATCH_H

#include "ep/ep.h"

typedef struct dispatch_call {
    ep_call base;
    expar_dispatch_args args;
    const expar_ep_handle *given; /* the caller's handle, or NULL */
    expar_ep_handle *made;        /* by a fresh dispatch */
    ep_destination to;
    expar_event *event;        /* with async_finish */
    struct dispatch_call *job; /* with async_finish: room for the call once it runs by itself */
    bool no_wait;              /* on a GPU, with a worst-case size: counts stay on the device */
} dispatch_call;

static inline bool dispatch_cached(const dispatch_call *call)
{
    return call->given != NULL;
}

/* Fills args and given, and looks at everything that can be wrong with them. */
expar_status dispatch_check(dispatch_call *call, const expar_dispatch_args *args, const expar_dispatch_result *result);

#endif
