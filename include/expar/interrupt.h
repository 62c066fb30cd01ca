/* SPDX-License-Identifier: Apache-2.0 */
/* Interrupts: a program uses them to end waits of the library, for example after a signal. */
#ifndef EXPAR_INTERRUPT_H
#define EXPAR_INTERRUPT_H

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A waiting call asks this function: 0 lets it wait on, any other value ends the wait. */
typedef int (*expar_interrupt_fn)(void *context);

/* Sets the function that every wait on the host asks from now on, at least every 100 ms. Waits in joining a group are
   included. NULL, as at the start: waits ask none. If fn(context) returns anything but 0, the wait ends with
   EXPAR_ERR_INTERRUPTED.

   A call that had not begun, or that changes nothing by waiting (expar_event_wait, expar_wait_until_…), may be made
   again. A call that has begun is lost. It poisons an EP buffer. A group whose collective call was interrupted has
   failed on this rank; the other ranks learn of it, and their calls end with EXPAR_ERR_PEER. Pending puts and gets over
   a network are given up, also those that quiet waits for. They may still arrive, and the network may read or write the
   caller's memory for a large one until the group is destroyed.

   Any waiting thread calls fn, also threads of the library, and several at a time. fn must not call the library. To end
   the waits of one thread only, fn has to look which thread it runs in. A call of the earlier fn may still run when
   this returns. Any thread. Returns EXPAR_OK. */
EXPAR_API expar_status expar_interrupt_set(expar_interrupt_fn fn, void *context);
/* Like expar_interrupt_set, but only the waits of the calling thread ask fn, in addition to the function that all waits
   ask. This is for a program whose signals belong to one thread, such as that of Python's interpreter. It also ends
   work that other threads do for that call. NULL: this thread has none, as at the start. Any thread. Returns
   EXPAR_OK. */
EXPAR_API expar_status expar_interrupt_set_thread(expar_interrupt_fn fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
