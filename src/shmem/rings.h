/* SPDX-License-Identifier: Apache-2.0 */
/* Command rings of a rank for kernels: EXPAR_PROXY_RINGS of them for each user (sym_rings_user), with a thread each.
 *
 * They are made when they are first asked for, and live as long as the group. Kernels take the ports, which lie in the
 * GPU's memory, or the process's if the CPU runs the kernels. The library's kernels use link/device/ring.h, the
 * program's expar/device.h. Commands name offsets in the heaps. For the library's kernels their sources lie where the
 * CPU reads them, as in the pinned heap. For handles of a GPU they lie in any memory that the rank knows
 * (kinds_knows). */
#ifndef EXPAR_SHMEM_RINGS_H
#define EXPAR_SHMEM_RINGS_H

#include "shmem/sym.h"

/* Read-only after it was made. */
typedef struct sym_rings {
    /* NULL: the CPU runs the kernels */
    cuda_device *device;
    proxy_crew *crew;
    proxy *proxies[SYM_MOST_RINGS];
    /* addresses of each ring's proxy_port */
    cu_address ports[SYM_MOST_RINGS];
    int32_t count;
} sym_rings;

/* Gives the library's rings for GPU `index` of this process. Any thread; not collective. EXPAR_ERR_DEVICE: they were
   made for another GPU. EXPAR_ERR_UNSUPPORTED: the driver cannot pin them. */
expar_status sym_rings_get(sym *self, int32_t index, const sym_rings **out);
/* Gives the rings of handles for that GPU (-1: the CPU), as sym_rings_get. All callers pass the same function, which is
   proxy_plan.failed of the rings; its context is the sym. */
expar_status sym_rings_get_for_handles(sym *self, int32_t index,
                                       void (*failed)(void *context, const proxy_command *command, expar_status status),
                                       const sym_rings **out);
/* Reads how long a thread naps at most that looks at a ring of kernels, as the program wants it (EXPAR_PROXY_NAP); 0:
   it never naps. */
expar_status sym_rings_read_nap(int64_t *nap_ns);
/* Returns the user's rings; NULL: there are none. */
const sym_rings *sym_rings_of(const sym *self, sym_rings_user user);
/* Ends the threads of the user's rings, before what they use ends. The rings stay. */
void sym_rings_end(sym *self, sym_rings_user user);
/* Call this before a launch: the threads spin until the call's last command on each ring (ring_rest). */
void sym_rings_expect(const sym_rings *rings);
/* The same for a kernel that uses one of the rings, and does not say when it has ended: the thread spins for a while
   (proxy.spin) at least. */
void sym_ring_rouse(const sym_rings *rings, int32_t ring);
/* The call has ended without ring_rest. */
void sym_rings_release(const sym_rings *rings);
/* Waits until all commands that kernels have issued before have ended, with success or not. One thread of the rank at a
   time. */
expar_status sym_rings_quiet(const sym_rings *rings, const char *what);
/* Returns how many commands have failed since the rings were made. If some have, *last says why one of the last ones
   did (proxy_failure). Any thread. */
uint64_t sym_rings_failures(const sym_rings *rings, uint64_t *last);
/* The ring of the PE: kernels pass all commands to it there. */
static inline int32_t sym_ring_to(const sym_rings *rings, int32_t pe)
{
    return pe % rings->count;
}
/* The three calls of proxy.h for one PE, on the ring of that PE. Any thread. */
expar_status sym_rings_failed_to(const sym_rings *rings, int32_t pe);
void sym_rings_forgive(const sym_rings *rings, int32_t pe);
bool sym_rings_have_ended_to(const sym_rings *rings, int32_t pe, uint64_t number);
/* Returns what all rings have passed to transports so far. Any thread. */
proxy_sent sym_rings_sent(const sym_rings *rings);
/* Returns EXPAR_OK, or the status with which one of the rings has ended. Any thread. */
expar_status sym_rings_ending(const sym_rings *rings);
/* Ends all waits of kernels on the rings, and all their commands, for good. For a GPU whose context has failed. */
void sym_rings_poison(const sym_rings *rings, expar_status status);

#endif
