/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a flag under a lock, with the result of the call. An event on a GPU's stream has a mark there, and other
 * streams wait for that without the host. For other events streams wait at a gate, which is opened when the event
 * happens. */
#include "exec/event.h"
#include "base/interrupt.h"
#include "base/knobs.h"
#include "base/life.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

struct expar_event {
    life_record life;     /* the caller's reference, and one for each call that makes it happen or waits for it */
    pthread_mutex_t lock; /* guards all members below; waiters for `change` see what was written before the signal */
    pthread_cond_t change;
    bool of_call;  /* made by a call: the caller cannot signal it */
    bool recorded; /* by expar_event_record: the mark says when it happens */
    bool done;
    bool heard;            /* a thread has waited for it, and knows how it ended */
    error_kept ended;      /* the result of the call */
    event_keeper keeper;   /* zero if there is none; its mark is also that of a recorded event */
    event_hearing hearing; /* zero if there is none */
    cuda_gate *gate;       /* the first stream that waits for an event without a mark makes it; else NULL */
    int64_t looked_ns;     /* when a thread last called look */
};

static const life_kind events = {0x746e657665u, "event", "retained"};
static life_spent spent = LIFE_SPENT_NONE;

bool event_alive(const expar_event *event)
{
    return life_alive(&event->life, events.magic);
}

static void event_end(void *object)
{
    expar_event *event = object;
    const event_hearing *hearing = &event->hearing;
    if (hearing->unread && !event->heard && event->ended.status != EXPAR_OK)
        hearing->unread(hearing->context, &event->ended);
    if (hearing->drop) hearing->drop(hearing->context);
    if (event->keeper.drop) event->keeper.drop(event->keeper.context);
    cuda_mark_give(event->keeper.mark);
    cuda_gate_give(event->gate);
    pthread_cond_destroy(&event->change);
    pthread_mutex_destroy(&event->lock);
    life_keep(&spent, event);
}

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
    event->life = life_begin(events.magic, event_end);
    if (of_call) life_hold(&event->life);
    *out = event;
    return EXPAR_OK;
}

expar_status event_create_for_call(expar_event **out)
{
    return event_make(true, out);
}

void event_retain(expar_event *event)
{
    life_hold(&event->life);
}

void event_keep(expar_event *event, const event_keeper *keeper)
{
    pthread_mutex_lock(&event->lock);
    event->keeper = *keeper;
    event->looked_ns = clock_ns();
    pthread_mutex_unlock(&event->lock);
}

void event_hear(expar_event *event, const event_hearing *hearing)
{
    event->hearing = *hearing;
}

/* Lets the streams that wait for the event go on. The caller holds the lock. */
static void happen(expar_event *event)
{
    event->done = true;
    cuda_gate_open(event->gate);
    pthread_cond_broadcast(&event->change);
}

/* The caller holds the lock, which is released meanwhile. */
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
    happen(event);
    pthread_mutex_unlock(&event->lock);
    expar_event_release(event);
}

expar_status expar_event_create(expar_event **event)
{
    if (!event) return call_ended(error_set(EXPAR_ERR_NULL, "expar_event_create: event is NULL"));
    return call_ended(event_make(false, event));
}

expar_status expar_event_signal(expar_event *event)
{
    expar_status status = life_check(&events, "expar_event_signal", event);
    if (status != EXPAR_OK) return call_ended(status);
    pthread_mutex_lock(&event->lock);
    bool allowed = !event->of_call && !event->recorded && !event->done;
    const char *why = event->of_call    ? "belongs to a call, which signals it itself"
                      : event->recorded ? "was recorded on a stream, which comes to it itself"
                                        : "has happened already";
    if (allowed) happen(event);
    pthread_mutex_unlock(&event->lock);
    return call_ended(allowed ? EXPAR_OK : error_set(EXPAR_ERR_STATE, "expar_event_signal: the event %s", why));
}

/* Waits until something may have changed. The caller holds the lock. */
static void await_change(expar_event *event)
{
    if (!event->keeper.look) {
        interrupt_cond_wait(&event->change, &event->lock);
        return;
    }
    int64_t end_ns = clock_ns() + knob(KNOB_EVENT_LOOK_NS);
    struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    if (pthread_cond_timedwait(&event->change, &event->lock, &end) == ETIMEDOUT && !event->done) event_look(event);
}

/* The caller holds the lock. The result is kept, since the context may be gone the next time. */
static expar_status look_at_mark(expar_event *event)
{
    bool passed = false;
    expar_status status = cuda_mark_query(event->keeper.mark, &passed);
    if (!passed) return status;
    error_keep(&event->ended, cuda_failure_before(event->keeper.mark));
    happen(event);
    return status;
}

/* Says whether its call has left a mark, so that a thread that asks for the event must look at it. */
static bool is_looked_at(const expar_event *event)
{
    return event->keeper.look && event->keeper.mark;
}

/* The caller holds the lock, which is released meanwhile. */
static expar_status await_mark(expar_event *event, int32_t looks)
{
    expar_status status = EXPAR_OK;
    if (event->recorded)
        status = look_at_mark(event);
    else
        event_look(event);
    if (status != EXPAR_OK || event->done) return status;
    pthread_mutex_unlock(&event->lock);
    if (looks < knob(KNOB_EVENT_MARK_LOOKS))
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = knob(KNOB_EVENT_MARK_SLEEP_NS)}, NULL);
    pthread_mutex_lock(&event->lock);
    return EXPAR_OK;
}

/* The caller holds the lock, which is released meanwhile. */
static expar_status look_for_interrupt(expar_event *event, int64_t *asked_ns)
{
    pthread_mutex_unlock(&event->lock);
    expar_status status = interrupt_look(asked_ns, "expar_event_wait");
    pthread_mutex_lock(&event->lock);
    return status;
}

expar_status expar_event_wait(expar_event *event)
{
    expar_status status = life_check(&events, "expar_event_wait", event);
    if (status != EXPAR_OK) return call_ended(status);
    int64_t asked_ns = 0;
    pthread_mutex_lock(&event->lock);
    thread_rest_begin();
    for (int32_t looks = 0; !event->done && status == EXPAR_OK; looks++) {
        if (event->recorded || is_looked_at(event))
            status = await_mark(event, looks);
        else
            await_change(event);
        if (!event->done && status == EXPAR_OK) status = look_for_interrupt(event, &asked_ns);
    }
    thread_rest_end();
    if (event->done && status == EXPAR_OK) {
        event->heard = true;
        status = error_restore(&event->ended);
    }
    pthread_mutex_unlock(&event->lock);
    return call_ended(status == EXPAR_OK || !event->recorded ? status : error_prefix(status, "expar_event_wait"));
}

expar_status expar_event_query(expar_event *event, int *done)
{
    expar_status status = life_check(&events, "expar_event_query", event);
    if (status == EXPAR_OK && !done) status = error_set(EXPAR_ERR_NULL, "expar_event_query: done is NULL");
    if (status != EXPAR_OK) return call_ended(status);
    pthread_mutex_lock(&event->lock);
    if (!event->done && event->recorded) status = look_at_mark(event);
    if (!event->done && event->keeper.look &&
        (is_looked_at(event) || clock_ns() - event->looked_ns >= knob(KNOB_EVENT_LOOK_NS)))
        event_look(event);
    if (status == EXPAR_OK) *done = event->done;
    pthread_mutex_unlock(&event->lock);
    return call_ended(status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "expar_event_query"));
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* Without a stream there is nothing to wait for. */
static expar_status event_record(void *stream, expar_event *event)
{
    event->recorded = stream || cuda_context_is_current();
    event->done = !event->recorded;
    return event->recorded ? cuda_mark_make(stream, &event->keeper.mark) : EXPAR_OK;
}

expar_status expar_event_record(void *stream, expar_event **event)
{
    static const char name[] = "expar_event_record";
    expar_event *made;
    if (!event) return call_ended(error_set(EXPAR_ERR_NULL, "%s: event is NULL", name));
    expar_status status = event_make(false, &made);
    if (status != EXPAR_OK) return call_ended(status);
    status = event_record(stream, made);
    if (status != EXPAR_OK) {
        expar_event_release(made);
        return call_ended(error_prefix(status, "%s", name));
    }
    *event = made;
    return EXPAR_OK;
}

expar_status expar_event_stream_wait(expar_event *event, void *stream)
{
    static const char name[] = "expar_event_stream_wait";
    expar_status status = life_check(&events, name, event);
    if (status != EXPAR_OK) return call_ended(status);
    pthread_mutex_lock(&event->lock);
    const cuda_mark *mark = event->keeper.mark;
    bool done = event->done;
    if (!done && !mark && stream) status = cuda_gate_hold(&event->gate, stream);
    pthread_mutex_unlock(&event->lock);
    if (!mark && !stream) return call_ended(expar_event_wait(event));
    /* The lock is not held here, since the driver may take long. */
    if (!done && mark) status = cuda_mark_follow(mark, stream);
    return call_ended(status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", name));
}

bool event_on_stream(expar_event *event, unsigned long long capture)
{
    pthread_mutex_lock(&event->lock);
    const cuda_mark *mark = event->keeper.mark;
    bool on = mark && !event->done && cuda_mark_capture(mark) == capture;
    pthread_mutex_unlock(&event->lock);
    return on;
}

bool event_place(const expar_event *event, cuda_mark_place *out)
{
    const cuda_mark *mark = event->keeper.mark;
    if (!mark || cuda_mark_capture(mark)) return false;
    *out = cuda_mark_place_of(mark);
    return true;
}

bool event_in_capture(const expar_event *event, unsigned long long capture)
{
    const cuda_mark *mark = event->keeper.mark;
    return mark && cuda_mark_capture(mark) == capture;
}

expar_status expar_event_retain(expar_event *event)
{
    return call_ended(life_retain(&events, "expar_event_retain", event));
}

void expar_event_release(expar_event *event)
{
    life_release(&events, "expar_event_release", event);
}
