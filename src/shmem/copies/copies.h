/* SPDX-License-Identifier: Apache-2.0 */
/* copies: how a rank reaches device memory: by copies of the driver, or through the memory's owner.
 *
 * kinds.c, reach.c and rest.c call this folder; it calls the transports, the device heap, the pinned heap, mem and
 * cuda. To callers it is one more transport (sym.copies), for device memory alone. It reads and writes memory of its
 * own GPU, and of peers whose memory is mapped here, by copies (transport.c). All else goes to the owner in messages:
 * data for ranks of other nodes, and the atomics of all ranks (mail.c). A thread of the owner carries them out by
 * copies (owner.c). So all changes of a word take one way, which needs no kernel. Messages lie in pinned memory, and
 * the transports of that memory carry them. */
#ifndef EXPAR_SHMEM_COPIES_H
#define EXPAR_SHMEM_COPIES_H

#include "mem/copier.h"
#include "shmem/device_heap.h"
#include "shmem/pinned_heap.h"
#include "shmem/sym.h"

/* Collective. Takes memory for messages from the pinned heap, and starts the thread that serves other ranks; then
   sym.copies and the ways to device memory are set. The heaps and the copier are borrowed. OK on all ranks, or on
   none. */
expar_status copies_create(sym *sym, const char *what, device_heap *device, pinned_heap *pinned, mem_copier *copier);
/* Ends the thread, and frees all but the memory in the pinned heap. Call it before the transports close. */
void copies_destroy(sym *sym);

/* Returns how many bytes of the pinned heap the messages take; 0: there are none yet. */
uint64_t copies_message_bytes(const sym *sym);
/* Completes this rank's operations on device memory; reports each failure once. */
expar_status copies_quiet(sym *sym);
/* Returns whether this rank copies to and from that memory of pe itself. */
bool copies_reaches(const sym *sym, int32_t pe);
/* Wakes the thread that serves other ranks. Call it if the network may have brought something. */
void copies_wake(sym *sym);

#endif
