/* SPDX-License-Identifier: Apache-2.0 */
/* One dispatch on its way; shared by dispatch.c, dispatch_check.c and dispatch_gpu.c only. */
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
    expar_ep_output *ahead;    /* on a GPU: made before it is known how many rows come, with room for them; or NULL */
    bool launched_ahead;       /* they fit: all that is left is to learn how the dispatch goes */
    int32_t dropped;           /* on a GPU: rows that find no room, where the call waited to know */
} dispatch_call;

static inline bool dispatch_cached(const dispatch_call *call)
{
    return call->given != NULL;
}

static inline const expar_ep_handle *dispatch_handle(const dispatch_call *call)
{
    return dispatch_cached(call) ? call->given : call->made;
}

static inline int64_t dispatch_row_bytes(const dispatch_call *call)
{
    const expar_tensor *x = &call->args.x;
    return x->shape[1] * (int64_t)expar_dtype_bytes(x->dtype);
}

/* Fills args and given, and looks at everything that can be wrong with them. */
expar_status dispatch_check(dispatch_call *call, const expar_dispatch_args *args, const expar_dispatch_result *result);

/* ---- dispatch.c ---- */
/* What the results are to be, as far as rows are known. */
ep_wish dispatch_wish(const dispatch_call *call);
/* Offers and rows, as a step. */
ep_dispatch_step dispatch_step(const dispatch_call *call);
/* Takes the memory of all results, once rows are known. */
expar_status dispatch_make_output(dispatch_call *call);
/* Offers, and the rows; or this rank's refusal. Of a dispatch that was launched ahead only the verdict. */
expar_status dispatch_move_rows(dispatch_call *call);

/* ---- dispatch_gpu.c ---- */
/* The output of a dispatch with a handle or with a worst-case size, before anything is put on the stream. */
expar_status dispatch_gpu_make_output(dispatch_call *call);
/* Makes the output of a fresh dispatch, with room for what may come, where the pool has some and nothing can go wrong
   with it afterwards: an offer of room is binding where the rows fit. */
void dispatch_gpu_make_ahead(dispatch_call *call);
/* That offer. */
ep_room dispatch_gpu_room(const dispatch_call *call);
/* Puts the kernel that brings the rows into that room on the stream, behind notify, and waits for the counts. */
expar_status dispatch_gpu_launch_ahead(dispatch_call *call, ep_notify_step *step);
/* Leaves the room what the rows need, which are known now, or gives it back where they do not fit. */
void dispatch_gpu_settle_room(dispatch_call *call);
/* All that is left once the outputs are known. */
expar_status dispatch_gpu_finish(dispatch_call *call);
/* Behind all of it: the event, or what is known now. */
expar_status dispatch_gpu_end(const dispatch_call *call);

#endif
