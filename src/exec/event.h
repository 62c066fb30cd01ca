/* SPDX-License-Identifier: Apache-2.0 */
/* Events, for the code that completes them. */
#ifndef EXPAR_EXEC_EVENT_H
#define EXPAR_EXEC_EVENT_H

#include "base/base.h"
#include "cuda/cuda.h"
#include <expar/event.h>

/* An event that belongs to a call, with two references: the caller's and the call's. */
expar_status event_create_for_call(expar_event **out);
void event_retain(expar_event *event);
/* Says whether some owner still holds the event. An event that has ended may still be reported as alive for a while. */
bool event_alive(const expar_event *event);

/* For an event whose call may never finish it. A thread that waits for the event, or asks for it, calls look(context)
   from time to time, without any lock, until the event has happened; look may finish it. drop(context) is called when
   the event is freed. `mark` becomes the event's; it comes after the call's work on its stream. With a mark alone, a
   thread finishes the event, and streams that wait for it follow the mark. */
typedef struct event_keeper {
    void (*look)(void *context);
    void (*drop)(void *context);
    void *context;
    cuda_mark *mark;
} event_keeper;
/* Call this before any thread but its call's knows the event. */
void event_keep(expar_event *event, const event_keeper *keeper);

/* For an event of a call whose failure no thread may ask for. When the event is freed, unheard(context, ended) is
   called if it ended badly and no thread has waited for it. Then drop(context) is called in any case. Both run in any
   thread, without any lock, and only inside expar_event_release and event_finish. Call this before any thread but its
   call's knows the event. */
typedef struct event_hearing {
    void (*unread)(void *context, const error_kept *ended);
    void (*drop)(void *context);
    void *context;
} event_hearing;
void event_hear(expar_event *event, const event_hearing *hearing);

/* ---- streams that wait for events -------------------------------------------------------------------------------- */

/* Says whether a call may leave the waiting to its stream. It may if the event is on a stream, and is not known to have
   happened. capture: that of the call's stream, or 0. An event of a capture serves only in that capture. */
bool event_on_stream(expar_event *event, unsigned long long capture);
/* Returns where its mark is on its stream, or false if it has none, or one in a capture. */
bool event_place(const expar_event *event, cuda_mark_place *out);
/* Says whether it was recorded in that capture. */
bool event_in_capture(const expar_event *event, unsigned long long capture);

/* Ends the event with the call's status; a failure has this thread's last error as its text. Drops the call's
   reference. */
void event_finish(expar_event *event, expar_status status);

#endif
