/* SPDX-License-Identifier: Apache-2.0 */
/* Interrupts: how a program ends waits of the library, for the sake of a signal for example. */
#ifndef EXPAR_INTERRUPT_H
#define EXPAR_INTERRUPT_H

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Asked while a call waits: 0 lets it wait on, any other value ends the wait. */
typedef int (*expar_interrupt_fn)(void *context);

/* From now on every wait on the host asks fn(context), at least every 100 ms, joining a group included; NULL: none
   does, as at the start. Where it gives anything but 0 the wait ends with EXPAR_ERR_INTERRUPTED. A call that had not
   begun, or that changes nothing by waiting (expar_event_wait, expar_wait_until_…), may be made again. A call that
   has begun is lost: an EP buffer is poisoned by it, and a group whose collective call was interrupted has failed on
   this rank; the other ranks learn of it, and their calls end with EXPAR_ERR_PEER. What a put, a get or quiet has under
   way over a network is given up: it may still arrive, and of a large one the network may read or write the caller's
   memory until the group is destroyed. fn is called by whatever thread waits, by several at a time, those of the
   library's own too, and must not call the library. Whoever wants one thread's waits alone to end looks which thread it
   is in. A call of the earlier fn may still be under way when this returns. Any thread. Returns EXPAR_OK. */
EXPAR_API expar_status expar_interrupt_set(expar_interrupt_fn fn, void *context);
/* Likewise, but fn is asked by the calling thread's waits alone, beside the function that all waits ask: for a program
   whose signals belong to one thread, such as that of Python's interpreter. It ends what other threads do for that
   call, too. NULL: this thread has none, as at the start. Any thread. Returns EXPAR_OK. */
EXPAR_API expar_status expar_interrupt_set_thread(expar_interrupt_fn fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
