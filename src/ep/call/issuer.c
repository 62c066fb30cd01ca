/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of a buffer that carries out calls that the caller does not wait for. It carries out any number of them,
 * one after the other, in the order in which they were issued. Buffers of both modes use it. */
#include "base/interrupt.h"
#include "ep/call/call.h"
#include "exec/event.h"

#include <stdlib.h>
#include <string.h>

struct ep_issuer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* Guarded by lock: */
    ep_issuer_job *first, *last; /* jobs that wait for their turn; each is stored in its call */
    bool carries;                /* a job is running, and has reached this phase */
    ep_phase phase;
    bool closing;
    bool gone; /* the thread takes no more */
    /* Set if no thread joins this one: it gives the buffer back itself. Else NULL. */
    void (*leave)(void *owner);
    void *owner;
};

/* Call this with the lock held; it is released while the job runs. Running the job frees the call's memory. */
static void carry_out_first(ep_issuer *self)
{
    const ep_issuer_job one = *self->first;
    self->first = one.next;
    self->carries = true;
    self->phase = EP_CALL_BEGUN;
    pthread_mutex_unlock(&self->lock);
    expar_status status = one.run(one.call);
    if (one.event) event_finish(one.event, status);
    pthread_mutex_lock(&self->lock);
    self->carries = false;
    pthread_cond_broadcast(&self->change);
}

void ep_issuer_free(ep_issuer *self)
{
    if (!self) return;
    pthread_cond_destroy(&self->change);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void *issuer_main(void *argument)
{
    ep_issuer *self = argument;
    pthread_mutex_lock(&self->lock);
    while (!self->closing || self->first)
        if (self->first)
            carry_out_first(self);
        else
            pthread_cond_wait(&self->change, &self->lock);
    self->gone = true;
    void (*leave)(void *owner) = self->leave;
    void *owner = self->owner;
    pthread_mutex_unlock(&self->lock);
    if (leave) {
        pthread_detach(self->thread);
        leave(owner);
    }
    return NULL;
}

expar_status ep_issuer_start(ep_issuer **out)
{
    ep_issuer *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for asynchronous calls");
    pthread_mutex_init(&self->lock, NULL);
    interrupt_cond_init(&self->change);
    int error = pthread_create(&self->thread, NULL, issuer_main, self);
    if (error != 0) {
        ep_issuer_free(self);
        return error_set(EXPAR_ERR_SYSTEM, "cannot start the thread of asynchronous calls: %s", strerror(error));
    }
    *out = self;
    return EXPAR_OK;
}

void ep_issuer_put(ep_issuer *self, ep_issuer_job *job)
{
    pthread_mutex_lock(&self->lock);
    job->next = NULL;
    if (self->first)
        self->last->next = job;
    else
        self->first = job;
    self->last = job;
    if (self->gone)
        carry_out_first(self); /* given up by another thread meanwhile: it ends here, and its event with it */
    else
        pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
}

void ep_issuer_reach(ep_issuer *self, ep_phase phase)
{
    pthread_mutex_lock(&self->lock);
    self->phase = phase;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
}

/* Call this with the lock held. A job that has ended is not in the queue any more. */
static bool all_reached(const ep_issuer *self, ep_phase phase)
{
    return !self->first && !(self->carries && self->phase < phase);
}

expar_status ep_issuer_await(ep_issuer *self, ep_phase phase)
{
    expar_status status = EXPAR_OK;
    int64_t asked_ns = 0;
    if (!self) return EXPAR_OK;
    pthread_mutex_lock(&self->lock);
    thread_rest_begin();
    while (!all_reached(self, phase) && status == EXPAR_OK) {
        interrupt_cond_wait(&self->change, &self->lock);
        if (all_reached(self, phase)) break;
        pthread_mutex_unlock(&self->lock);
        status = interrupt_look(&asked_ns, "the call before");
        pthread_mutex_lock(&self->lock);
    }
    thread_rest_end();
    pthread_mutex_unlock(&self->lock);
    return status;
}

static void issuer_close(ep_issuer *self, void (*leave)(void *owner), void *owner)
{
    pthread_mutex_lock(&self->lock);
    self->closing = true;
    self->leave = leave;
    self->owner = owner;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
}

void ep_issuer_stop(ep_issuer *self)
{
    issuer_close(self, NULL, NULL);
    pthread_join(self->thread, NULL);
    ep_issuer_free(self);
}

void ep_issuer_let_go(ep_issuer *self, void (*leave)(void *owner), void *owner)
{
    issuer_close(self, leave, owner);
}
