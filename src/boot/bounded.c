/* SPDX-License-Identifier: Apache-2.0 */
/* bounded: starts the thread, waits for it, and frees the work item. */
#include "boot/bounded.h"
#include "base/interrupt.h"

#include <signal.h>
#include <string.h>

void bounded_drop(bounded *self)
{
    pthread_mutex_lock(&self->lock);
    bool last = --self->references == 0;
    pthread_mutex_unlock(&self->lock);
    if (!last) return;
    pthread_cond_destroy(&self->ended);
    pthread_mutex_destroy(&self->lock);
    self->dispose(self);
}

static void *bounded_main(void *context)
{
    bounded *self = context;
    self->work(self);
    pthread_mutex_lock(&self->lock);
    self->done = true;
    pthread_cond_signal(&self->ended);
    pthread_mutex_unlock(&self->lock);
    bounded_drop(self);
    return NULL;
}

static void bounded_prepare(bounded *self)
{
    interrupt_cond_init(&self->ended);
    pthread_mutex_init(&self->lock, NULL);
    self->references = 2;
    self->done = false;
}

/* The thread is detached, and blocks signals, which are for the program's threads. */
static int bounded_start_thread(bounded *self)
{
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &detached, bounded_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return error;
}

expar_status bounded_start(bounded *self, void (*work)(bounded *self), void (*dispose)(bounded *self))
{
    self->work = work;
    self->dispose = dispose;
    bounded_prepare(self);
    int error = bounded_start_thread(self);
    if (error == 0) return EXPAR_OK;
    self->references = 1;
    bounded_drop(self);
    return error_set(EXPAR_ERR_SYSTEM, "cannot start a thread: %s", strerror(error));
}

bool bounded_wait(bounded *self, int64_t end_ns)
{
    pthread_mutex_lock(&self->lock);
    while (!self->done && clock_ns() < end_ns && !interrupt_came())
        interrupt_cond_wait(&self->ended, &self->lock);
    bool done = self->done;
    pthread_mutex_unlock(&self->lock);
    return done;
}
