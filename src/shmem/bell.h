/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell's two ends; how they meet is told at sym_bell. Private to shmem. */
#ifndef EXPAR_SHMEM_BELL_H
#define EXPAR_SHMEM_BELL_H

#include "mem/fence.h"
#include "shmem/sym.h"

/* To be called by the owner, before anybody else uses the bell. */
void bell_open(sym_bell *bell);
/* True once this process has asked for membarrier's fences, so that it needs none to ring a bell whose sleepers make
   them. Written by bell_open (release), read by all who ring (relaxed: who reads false makes a fence too many). */
extern _Atomic bool bell_is_fenced;
/* Says that this thread is about to sleep. The caller looks at its condition once more before bell_sleep(…, *rings, …).
 */
void bell_arm(sym_bell *bell, uint32_t *rings);
/* Sleeps until the bell rings, at most limit_ns; returns at once when it rang since it was armed. local: all who ring
   it are threads of this process. */
void bell_sleep(sym_bell *bell, uint32_t rings, int64_t limit_ns, bool local);
/* Wakes all sleepers. */
void bell_wake(sym_bell *bell, bool local);
/* Wakes all sleepers, if there are any. The caller has stored what they wait for. */
static inline void bell_ring(sym_bell *bell, bool local)
{
    /* Partner: the fence in bell_arm, which this one may be left to. The compiler must keep the order in any case. */
    if (atomic_load_explicit(&bell_is_fenced, memory_order_relaxed) &&
        atomic_load_explicit(&bell->fences, memory_order_relaxed))
        atomic_signal_fence(memory_order_seq_cst);
    else
        fence_full();
    if (atomic_load_explicit(&bell->asleep, memory_order_relaxed)) bell_wake(bell, local);
}

#endif
