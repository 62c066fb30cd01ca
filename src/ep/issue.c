/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that finish by themselves: one thread a buffer carries out what the caller does not wait for, one call after
 * the other, in the order in which they were issued. */
#include "base/interrupt.h"
#include "ep/ep.h"
#include "exec/event.h"

#include <stdlib.h>
#include <string.h>

typedef struct job {
    ep_call *call; /* the thread's from when it begins to carry it out */
    expar_status (*run)(ep_call *call);
    ep_phase phase;
} job;

struct ep_issuer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* Guarded by lock: */
    job jobs[EP_OPEN_CALLS]; /* a ring; jobs[first] is the one that is being carried out */
    uint32_t first, count;
    bool closing;
    expar_ep *let_go; /* nobody joins the thread: it gives this buffer back itself. Else NULL */
};

static job *job_at(ep_issuer *self, uint32_t i)
{
    return &self->jobs[(self->first + i) % EP_OPEN_CALLS];
}

/* With the lock, which is given back meanwhile. */
static void carry_out_first(ep_issuer *self)
{
    const job one = *job_at(self, 0);
    pthread_mutex_unlock(&self->lock);
    expar_event *event = one.call->event;
    event_finish(event, one.run(one.call));
    pthread_mutex_lock(&self->lock);
    self->first++;
    self->count--;
    pthread_cond_broadcast(&self->change);
}

static void issuer_free(ep_issuer *self)
{
    pthread_cond_destroy(&self->change);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void *issuer_main(void *argument)
{
    ep_issuer *self = argument;
    pthread_mutex_lock(&self->lock);
    while (!self->closing || self->count)
        if (self->count)
            carry_out_first(self);
        else
            pthread_cond_wait(&self->change, &self->lock);
    expar_ep *let_go = self->let_go;
    pthread_mutex_unlock(&self->lock);
    if (let_go) {
        pthread_detach(self->thread);
        ep_leave(let_go);
    }
    return NULL;
}

expar_status ep_issue_prepare(expar_ep *ep)
{
    if (ep->issuer) return EXPAR_OK;
    ep_issuer *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for asynchronous calls");
    pthread_mutex_init(&self->lock, NULL);
    interrupt_cond_init(&self->change);
    int error = pthread_create(&self->thread, NULL, issuer_main, self);
    if (error != 0) {
        issuer_free(self);
        return error_set(EXPAR_ERR_SYSTEM, "cannot start the thread of asynchronous calls: %s", strerror(error));
    }
    life_hold(&ep->life);
    ep->issuer = self;
    return EXPAR_OK;
}

void ep_issue(ep_call *call, expar_status (*run)(ep_call *call))
{
    ep_issuer *self = call->ep->issuer;
    pthread_mutex_lock(&self->lock);
    *job_at(self, self->count++) = (job){.call = call, .run = run, .phase = EP_CALL_BEGUN};
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
}

void ep_issue_reach(expar_ep *ep, ep_phase phase)
{
    ep_issuer *self = ep->issuer;
    pthread_mutex_lock(&self->lock);
    job_at(self, 0)->phase = phase;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
}

/* With the lock. One that has ended is no job any more. */
static uint32_t count_before(ep_issuer *self, ep_phase phase)
{
    uint32_t before = 0;
    for (uint32_t i = 0; i < self->count; i++)
        before += job_at(self, i)->phase < phase;
    return before;
}

expar_status ep_issue_await(expar_ep *ep, ep_phase phase, uint32_t open)
{
    ep_issuer *self = ep->issuer;
    expar_status status = EXPAR_OK;
    int64_t asked_ns = 0;
    if (!self) return EXPAR_OK;
    pthread_mutex_lock(&self->lock);
    thread_rest_begin();
    while (count_before(self, phase) > open && status == EXPAR_OK) {
        interrupt_cond_wait(&self->change, &self->lock);
        if (count_before(self, phase) <= open) break;
        pthread_mutex_unlock(&self->lock);
        status = interrupt_look(&asked_ns, "the call before");
        pthread_mutex_lock(&self->lock);
    }
    thread_rest_end();
    pthread_mutex_unlock(&self->lock);
    return status;
}

static void issuer_close(ep_issuer *self, expar_ep *let_go)
{
    pthread_mutex_lock(&self->lock);
    self->closing = true;
    self->let_go = let_go;
    pthread_cond_broadcast(&self->change);
    pthread_mutex_unlock(&self->lock);
}

void ep_issue_stop(expar_ep *ep)
{
    ep_issuer *self = ep->issuer;
    if (!self) return;
    issuer_close(self, NULL);
    pthread_join(self->thread, NULL);
    issuer_free(self);
    ep->issuer = NULL;
    life_drop(&ep->life, EP_MAGIC);
}

/* The record stays until the buffer's last reference goes: others may wait here for the calls. */
void ep_issue_let_go(expar_ep *ep)
{
    if (ep->issuer) issuer_close(ep->issuer, ep);
}

void ep_issue_free(expar_ep *ep)
{
    if (ep->issuer) issuer_free(ep->issuer);
}
