/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps failures of calls that no caller has asked about, until expar_ep_query reports them. A call with an event gets
 * here when the event is freed and no thread has waited for it. A call without an event gets here when a look at the
 * executor finds its failure. */
#include "ep/call/call.h"

#include <stdlib.h>

/* Shared by the buffer and the events of its calls, which may outlive it. */
struct ep_unread {
    atomic_int references; /* who gives the last one back (acq_rel) frees it */
    pthread_mutex_t lock;
    error_kept first; /* since the last that was told; OK: none. Guarded by lock */
};

ep_unread *ep_unread_make(void)
{
    ep_unread *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    atomic_init(&self->references, 1);
    pthread_mutex_init(&self->lock, NULL);
    return self;
}

void ep_unread_release(ep_unread *self)
{
    if (!self || atomic_fetch_sub_explicit(&self->references, 1, memory_order_acq_rel) > 1) return;
    pthread_mutex_destroy(&self->lock);
    free(self);
}

void ep_unread_note(ep_unread *self, const error_kept *ended)
{
    pthread_mutex_lock(&self->lock);
    if (self->first.status == EXPAR_OK) self->first = *ended;
    pthread_mutex_unlock(&self->lock);
}

expar_status ep_unread_take(ep_unread *self)
{
    pthread_mutex_lock(&self->lock);
    expar_status status = error_restore(&self->first);
    self->first.status = EXPAR_OK;
    pthread_mutex_unlock(&self->lock);
    return status;
}

static void note_of_event(void *context, const error_kept *ended)
{
    ep_unread_note(context, ended);
}

static void release_of_event(void *context)
{
    ep_unread_release(context);
}

void ep_unread_hear(ep_unread *self, expar_event *event)
{
    atomic_fetch_add_explicit(&self->references, 1, memory_order_relaxed);
    event_hear(event, &(event_hearing){.unread = note_of_event, .drop = release_of_event, .context = self});
}
