/* SPDX-License-Identifier: Apache-2.0 */
/* Events, from the side of those who make them happen. */
#ifndef EXPAR_EXEC_EVENT_H
#define EXPAR_EXEC_EVENT_H

#include "base/base.h"
#include "cuda/cuda.h"
#include <expar/event.h>

/* An event that belongs to a call, with two references: the caller's and the call's. */
expar_status event_create_for_call(expar_event **out);
void event_retain(expar_event *event);
/* Somebody holds it. Of one that has come to its end it can be told for a while. */
bool event_alive(const expar_event *event);

/* For an event that its call may never come to finish. Whoever waits for it or asks for it calls look(context) from
   time to time, with no lock held, until it has happened; look may finish it. drop(context) when the event goes.
   `mark` becomes the event's: behind the call's work on its stream. */
typedef struct event_keeper {
    void (*look)(void *context);
    void (*drop)(void *context);
    void *context;
    cuda_mark *mark;
} event_keeper;
/* Before anybody but its call knows the event. */
void event_keep(expar_event *event, const event_keeper *keeper);

/* For an event of a call whose failure nobody may ask for: when the event goes, unheard(context, ended) if it ended
   badly and nobody has waited for it; then drop(context) in any case. From any thread, with no lock held, and never
   from inside another function here but expar_event_release and event_finish. Before anybody but its call knows the
   event. */
typedef struct event_hearing {
    void (*unheard)(void *context, const error_kept *ended);
    void (*drop)(void *context);
    void *context;
} event_hearing;
void event_hear(expar_event *event, const event_hearing *hearing);

/* ---- streams that wait for events -------------------------------------------------------------------------------- */

/* Whether a call may leave the waiting to its stream: the event lies on a stream, and is not known to have happened.
   capture: of the call's stream, or 0; an event of a capture serves in that one alone. */
bool event_on_stream(expar_event *event, unsigned long long capture);
/* Where its mark lies on its stream; false: it has none, or one in a capture. */
bool event_place(const expar_event *event, cuda_mark_place *out);
/* Whether it was recorded in that capture. */
bool event_in_capture(const expar_event *event, unsigned long long capture);

/* The call has ended with status; on failure with this thread's last error as its text. Drops the call's reference. */
void event_finish(expar_event *event, expar_status status);

#endif
