/* SPDX-License-Identifier: Apache-2.0 */
/* Rejection of a call by this rank, and how the other ranks learn of it. */
#include "ep/call/call.h"

#include <stdlib.h>

static void keep_own_rejection(const ep_call *call)
{
    ep_buffer *buffer = call->buffer;
    pthread_mutex_lock(&buffer->poison_lock);
    buffer->own_rejection = call->rejection;
    pthread_mutex_unlock(&buffer->poison_lock);
}

expar_status ep_call_reject(ep_call *call, expar_status status)
{
    call->rejection = ep_rejection_of(status);
    if (!call->issued) keep_own_rejection(call);
    return ep_call_prefix(call, status);
}

expar_status ep_call_rejected(ep_call *call, const ep_rejection *rejection)
{
    call->rejection = *rejection;
    if (!call->issued) keep_own_rejection(call);
    return ep_call_prefix(call, error_set((expar_status)rejection->status, "%s", rejection->text));
}

/* Queues the rejection for the buffer's own thread, without an event, since the caller has its error. False: it has to
   be told from here. That is so if graphs have calls of the buffer: the caller may launch one after this call. */
static bool issue_rejection(ep_call *call)
{
    if (call->buffer->exec->in_turns) return false;
    if (!call->by_itself || call->issued || call->buffer->exec->ops->streams ||
        ep_call_prepare_issue(call->buffer) != EXPAR_OK)
        return false;
    ep_call *own = malloc(call->parts->bytes);
    if (!own) return false;
    ep_call_issue(call, own);
    own->wait_event = NULL;
    own->event = own->job.event = NULL;
    own->exec.own = NULL; /* this call's end frees it */
    ep_issuer_put(own->buffer->issuer, &own->job);
    return true;
}

expar_status ep_call_tell_rejection(ep_call *call, expar_status rejected)
{
    ep_call_reject(call, rejected);
    error_kept kept;
    error_keep(&kept, (expar_status)call->rejection.status);
    /* A graph would tell it at every launch. */
    if (call->exec.captured) ep_call_note_uncaptured(call, kept.status);
    if (call->exec.captured || issue_rejection(call)) return error_restore(&kept);
    expar_status status = ep_call_open(call);
    if (status == EXPAR_OK) status = call->parts->reject(call);
    return status == EXPAR_OK ? error_restore(&kept) : status;
}
