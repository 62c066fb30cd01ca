/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a flag under a lock, with how the call behind it ended. */
#include "exec/event.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct expar_event {
    pthread_mutex_t lock; /* guards all below; waiting on `change` gives what was written before the signal */
    pthread_cond_t change;
    int32_t references;
    bool of_call; /* made by a call: the caller cannot signal it */
    bool done;
    error_kept ended;    /* how the call went */
    event_keeper keeper; /* zero without */
    int64_t looked_ns;   /* when it was last asked to look */
};

/* From one look to the next. */
#define LOOK_NS 20000000

static expar_status event_make(bool of_call, expar_event **out)
{
    expar_event *event = calloc(1, sizeof *event);
    if (!event) return error_set(EXPAR_ERR_MEMORY, "no memory for an event");
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->change, &clock);
    pthread_condattr_destroy(&clock);
    event->of_call = of_call;
    event->references = of_call ? 2 : 1;
    *out = event;
    return EXPAR_OK;
}

expar_status event_create_for_call(expar_event **out)
{
    return event_make(true, out);
}

void event_retain(expar_event *event)
{
    pthread_mutex_lock(&event->lock);
    event->references++;
    pthread_mutex_unlock(&event->lock);
}

void event_keep(expar_event *event, const event_keeper *keeper)
{
    pthread_mutex_lock(&event->lock);
    event->keeper = *keeper;
    event->looked_ns = clock_ns();
    pthread_mutex_unlock(&event->lock);
}

/* With the lock, which is given back meanwhile. */
static void event_look(expar_event *event)
{
    event->looked_ns = clock_ns();
    pthread_mutex_unlock(&event->lock);
    event->keeper.look(event->keeper.context);
    pthread_mutex_lock(&event->lock);
}

void event_finish(expar_event *event, expar_status status)
{
    pthread_mutex_lock(&event->lock);
    error_keep(&event->ended, status);
    event->done = true;
    pthread_cond_broadcast(&event->change);
    pthread_mutex_unlock(&event->lock);
    expar_event_destroy(event);
}

expar_status expar_event_create(expar_event **event)
{
    if (!event) return error_set(EXPAR_ERR_NULL, "expar_event_create: event is NULL");
    return event_make(false, event);
}

expar_status expar_event_signal(expar_event *event)
{
    if (!event) return error_set(EXPAR_ERR_NULL, "expar_event_signal: event is NULL");
    pthread_mutex_lock(&event->lock);
    bool allowed = !event->of_call && !event->done;
    bool of_call = event->of_call;
    if (allowed) event->done = true;
    pthread_cond_broadcast(&event->change);
    pthread_mutex_unlock(&event->lock);
    if (allowed) return EXPAR_OK;
    return error_set(EXPAR_ERR_STATE, "expar_event_signal: the event %s",
                     of_call ? "belongs to a call, which signals it itself" : "has happened already");
}

/* With the lock: until something may have changed. */
static void await_change(expar_event *event)
{
    if (!event->keeper.look) {
        pthread_cond_wait(&event->change, &event->lock);
        return;
    }
    int64_t end_ns = clock_ns() + LOOK_NS;
    struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    if (pthread_cond_timedwait(&event->change, &event->lock, &end) == ETIMEDOUT && !event->done) event_look(event);
}

expar_status expar_event_wait(expar_event *event)
{
    if (!event) return error_set(EXPAR_ERR_NULL, "expar_event_wait: event is NULL");
    pthread_mutex_lock(&event->lock);
    while (!event->done)
        await_change(event);
    expar_status status = error_restore(&event->ended);
    pthread_mutex_unlock(&event->lock);
    return status;
}

expar_status expar_event_query(expar_event *event, int *done)
{
    if (!event || !done) return error_set(EXPAR_ERR_NULL, "expar_event_query: %s is NULL", event ? "done" : "event");
    pthread_mutex_lock(&event->lock);
    if (!event->done && event->keeper.look && clock_ns() - event->looked_ns >= LOOK_NS) event_look(event);
    *done = event->done;
    pthread_mutex_unlock(&event->lock);
    return EXPAR_OK;
}

void expar_event_destroy(expar_event *event)
{
    if (!event) return;
    pthread_mutex_lock(&event->lock);
    bool last = --event->references == 0;
    pthread_mutex_unlock(&event->lock);
    if (!last) return;
    if (event->keeper.drop) event->keeper.drop(event->keeper.context);
    pthread_cond_destroy(&event->change);
    pthread_mutex_destroy(&event->lock);
    free(event);
}
