/* SPDX-License-Identifier: Apache-2.0 */
/* Events: they say when an asynchronous operation has ended, and how. */
#ifndef EXPAR_EVENT_H
#define EXPAR_EVENT_H

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An event happens once. Asynchronous calls make events; a caller can also make one for a call to wait for. Any thread
   may use all of these functions. Events are counted: the call that makes one gives the first reference. Using an event
   after its last reference was dropped is EXPAR_ERR_HANDLE (in expar_event_release a warning in the log). This is
   detected as long as fewer than 256 other events have ended since. */
typedef struct expar_event expar_event;

/* Makes an event that the caller will signal. EXPAR_ERR_NULL, EXPAR_ERR_MEMORY. */
EXPAR_API expar_status expar_event_create(expar_event **event);
/* Makes the event happen. Threads that have waited see all earlier writes of this thread. EXPAR_ERR_STATE when it has
   happened already, belongs to a call or was recorded. */
EXPAR_API expar_status expar_event_signal(expar_event *event);
/* Makes an event that happens when all work that the stream holds now is done. Never waits. stream: a CUDA stream
   (CUstream or cudaStream_t), also the names of default streams. NULL where this thread has no CUDA context: there is
   no stream, as on the CPU backend, and the event has happened. While the stream is being captured the event is a place
   in the graph. In that capture it can be given to expar_event_stream_wait or as wait_event; waiting for it, or
   querying it, is EXPAR_ERR_STATE. EXPAR_ERR_NULL, EXPAR_ERR_MEMORY, EXPAR_ERR_UNSUPPORTED (a stream, but no CUDA),
   EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_event_record(void *stream, expar_event **event);
/* Makes later work on the stream wait for the event. This thread does not wait, and may release the event at once. This
   does not look at how a call ended; expar_event_wait and expar_ep_query do.

   Recorded events and events of calls on GPUs cost the stream as much as a CUDA event. For events that the caller will
   signal and events of calls on CPUs, the stream polls a word in host memory (cuStreamWaitValue32;
   EXPAR_ERR_UNSUPPORTED if the GPU cannot do that). It continues when the event happens, or when its last reference is
   dropped. stream NULL means the default stream of the event's GPU if the event lies on a stream. For another event
   there is no such stream, and the thread waits as in expar_event_wait. While the stream is being captured, the event
   must be of that capture or must have happened. Otherwise the call is EXPAR_ERR_STATE before anything is put on the
   stream. EXPAR_ERR_NULL, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_event_stream_wait(expar_event *event, void *stream);
/* Blocks until the event has happened. Returns how the event's call ended (EXPAR_OK for a signalled event), with its
   text as this thread's last error. It is EXPAR_ERR_CUDA for a call on a GPU whose context has failed, for example by a
   kernel of the caller. The same holds if the buffer is destroyed before the GPU has come to the call. For an event
   that was recorded in a capture: EXPAR_ERR_STATE. */
EXPAR_API expar_status expar_event_wait(expar_event *event);
/* Sets *done to 1 when the event has happened, else to 0. Does not block. Fails as expar_event_wait does for a recorded
   event whose context has failed (EXPAR_ERR_CUDA) or which lies in a capture (EXPAR_ERR_STATE). */
EXPAR_API expar_status expar_event_query(expar_event *event, int *done);
/* Adds a reference, which belongs to the caller. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (the last reference was dropped). */
EXPAR_API expar_status expar_event_retain(expar_event *event);
/* Drops a reference of the caller. The call that the event belongs to continues. NULL is allowed. */
EXPAR_API void expar_event_release(expar_event *event);

#ifdef __cplusplus
}
#endif
#endif
