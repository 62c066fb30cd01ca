/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that finish by themselves: one thread a buffer carries out what the caller does not wait for.
 *
 * A buffer carries one call at a time, so there is never more than one job: the next call waits for it first. */
#include "ep/ep.h"
#include "exec/event.h"

#include <stdlib.h>
#include <string.h>

struct ep_issuer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* Guarded by lock: */
    ep_job_fn run; /* NULL: no job */
    void *context;
    expar_event *event;
    bool closing;
};

static void *issuer_main(void *argument)
{
    ep_issuer *self = argument;
    pthread_mutex_lock(&self->lock);
    while (!self->closing || self->run) {
        if (!self->run) {
            pthread_cond_wait(&self->change, &self->lock);
            continue;
        }
        pthread_mutex_unlock(&self->lock);
        /* Nobody touches the job until run is cleared. */
        expar_status status = self->run(self->context);
        event_finish(self->event, status);
        pthread_mutex_lock(&self->lock);
        self->run = NULL;
        pthread_cond_broadcast(&self->change);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static expar_status issuer_start(ep_issuer **out)
{
    ep_issuer *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for asynchronous calls");
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->change, NULL);
    int error = pthread_create(&self->thread, NULL, issuer_main, self);
    if (error == 0) {
        *out = self;
        return EXPAR_OK;
    }
    pthread_cond_destroy(&self->change);
    pthread_mutex_destroy(&self->lock);
    free(self);
    return error_set(EXPAR_ERR_SYSTEM, "cannot start the thread of asynchronous calls: %s", strerror(error));
}

expar_status ep_issue_prepare(expar_ep *ep, expar_event **event)
{
    expar_status status = ep->issuer ? EXPAR_OK : issuer_start(&ep->issuer);
    return status == EXPAR_OK ? event_create_for_call(event) : status;
}

void ep_issue(expar_ep *ep, ep_job_fn run, void *context, expar_event *event)
{
    ep_issuer *self = ep->issuer;
    pthread_mutex_lock(&self->lock);
    self->run = run;
    self->context = context;
    self->event = event;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
}

void ep_issue_join(expar_ep *ep)
{
    ep_issuer *self = ep->issuer;
    if (!self) return;
    pthread_mutex_lock(&self->lock);
    while (self->run)
        pthread_cond_wait(&self->change, &self->lock);
    pthread_mutex_unlock(&self->lock);
}

void ep_issue_stop(expar_ep *ep)
{
    ep_issuer *self = ep->issuer;
    if (!self) return;
    pthread_mutex_lock(&self->lock);
    self->closing = true;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
    pthread_cond_destroy(&self->change);
    pthread_mutex_destroy(&self->lock);
    free(self);
    ep->issuer = NULL;
}
