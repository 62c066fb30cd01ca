/* SPDX-License-Identifier: Apache-2.0 */
/* Events, from the side of those who make them happen. */
#ifndef EXPAR_EXEC_EVENT_H
#define EXPAR_EXEC_EVENT_H

#include "base/base.h"
#include <expar/event.h>

/* An event that belongs to a call, with two references: the caller's and the call's. */
expar_status event_create_for_call(expar_event **out);
void event_retain(expar_event *event);

/* For an event that its call may never come to finish. Whoever waits for it or asks for it calls look(context) from
   time to time, with no lock held, until it has happened; look may finish it. drop(context) when the event goes. */
typedef struct event_keeper {
    void (*look)(void *context);
    void (*drop)(void *context);
    void *context;
} event_keeper;
/* Before anybody but its call knows the event. */
void event_keep(expar_event *event, const event_keeper *keeper);

/* The call has ended with status; on failure with this thread's last error as its text. Drops the call's reference. */
void event_finish(expar_event *event, expar_status status);

#endif
