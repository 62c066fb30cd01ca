/* SPDX-License-Identifier: Apache-2.0 */
/* Events: when something that runs by itself is done, and how it ended. */
#ifndef EXPAR_EVENT_H
#define EXPAR_EVENT_H

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Happens once. Made by asynchronous calls, or by the caller for a call to wait for. All functions from any thread.
   Events are counted: whoever makes one has the first reference. Using an event after its last reference has gone is
   EXPAR_ERR_HANDLE (in expar_event_release a warning in the log) as long as fewer than 256 others have come to their
   end since. */
typedef struct expar_event expar_event;

/* An event that the caller will signal. EXPAR_ERR_NULL, EXPAR_ERR_MEMORY. */
EXPAR_API expar_status expar_event_create(expar_event **event);
/* Happens now; whatever this thread wrote before is seen by those who have waited. EXPAR_ERR_STATE when it has happened
   already, belongs to a call or was recorded. */
EXPAR_API expar_status expar_event_signal(expar_event *event);
/* An event that happens when all is done that the stream holds now. stream: a CUDA stream (CUstream or cudaStream_t),
   the names of default streams too; NULL where this thread has no CUDA context: there is no stream, as on the CPU
   backend, and the event has happened. Never waits. While the stream is being captured the event is a place in the
   graph: it serves expar_event_stream_wait and wait_event in that capture; waiting for it, or asking, is
   EXPAR_ERR_STATE. EXPAR_ERR_NULL, EXPAR_ERR_MEMORY, EXPAR_ERR_UNSUPPORTED (a stream, but no CUDA), EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_event_record(void *stream, expar_event **event);
/* What is put on the stream from now on waits for the event; this thread does not, and the event may be released right
   away. How a call ended is not looked at: expar_event_wait and expar_ep_query say it. Events that were recorded and
   events of calls on GPUs cost the stream what a CUDA event does. For those that the caller will signal, and those of
   calls on CPUs, the stream polls a word of the host's (cuStreamWaitValue32; EXPAR_ERR_UNSUPPORTED where the GPU
   cannot); it goes on when the event happens, or with its last reference. stream NULL: for an event that lies
   on a stream the default stream of its GPU; for another one there is none, and the thread waits, as expar_event_wait.
   While the stream is being captured: an event of that capture, or one that has happened; else EXPAR_ERR_STATE, before
   anything is put on the stream. EXPAR_ERR_NULL, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_event_stream_wait(expar_event *event, void *stream);
/* Blocks until the event has happened; returns how the call behind it ended (EXPAR_OK for a signalled event), with its
   text as this thread's last error. That of a call on a GPU whose context has failed, by a kernel of the caller's for
   one, ends with EXPAR_ERR_CUDA; so it does when the buffer is destroyed before the GPU has come to it. For an event
   that was recorded in a capture: EXPAR_ERR_STATE. */
EXPAR_API expar_status expar_event_wait(expar_event *event);
/* *done: 1 when it has happened, else 0. Does not block. Fails as expar_event_wait does for a recorded event whose
   context has failed (EXPAR_ERR_CUDA) or which lies in a capture (EXPAR_ERR_STATE). */
EXPAR_API expar_status expar_event_query(expar_event *event, int *done);
/* One more reference, of the caller's. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (it has come to its end). */
EXPAR_API expar_status expar_event_retain(expar_event *event);
/* Drops a reference of the caller's. The call that the event belongs to continues. NULL is allowed. */
EXPAR_API void expar_event_release(expar_event *event);

#ifdef __cplusplus
}
#endif
#endif
