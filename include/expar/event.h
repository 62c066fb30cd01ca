/* SPDX-License-Identifier: Apache-2.0 */
/* Events: when something that runs by itself is done, and how it ended. */
#ifndef EXPAR_EVENT_H
#define EXPAR_EVENT_H

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Happens once. Made by asynchronous calls, or by the caller for a call to wait for. All functions from any thread. */
typedef struct expar_event expar_event;

/* An event that the caller will signal. EXPAR_ERR_NULL, EXPAR_ERR_MEMORY. */
EXPAR_API expar_status expar_event_create(expar_event **event);
/* Happens now; whatever this thread wrote before is seen by those who have waited. EXPAR_ERR_STATE when it has happened
   already or belongs to a call. */
EXPAR_API expar_status expar_event_signal(expar_event *event);
/* Blocks until the event has happened; returns how the call behind it ended (EXPAR_OK for a signalled event), with its
   text as this thread's last error. That of a call on a GPU whose context has failed, by a kernel of the caller's for
   one, ends with EXPAR_ERR_CUDA; so it does when the buffer is destroyed before the GPU has come to it. */
EXPAR_API expar_status expar_event_wait(expar_event *event);
/* *done: 1 when it has happened, else 0. Does not block. */
EXPAR_API expar_status expar_event_query(expar_event *event, int *done);
/* Gives the caller's hold back; the call behind it goes on. NULL is allowed. */
EXPAR_API void expar_event_destroy(expar_event *event);

#ifdef __cplusplus
}
#endif
#endif
