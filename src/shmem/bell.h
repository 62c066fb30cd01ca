/* SPDX-License-Identifier: Apache-2.0 */
/* The bell's two ends; how they meet is told at sym_bell. Called by shmem, and by the short way of pgas
 * (pgas/direct.h), which rings as fast as it stores. */
#ifndef EXPAR_SHMEM_BELL_H
#define EXPAR_SHMEM_BELL_H

#include "mem/fence.h"
#include "shmem/sym.h"

/* To be called by the owner, before anybody else uses the bell. */
void bell_open(sym_bell *bell);
/* True once this process has asked for membarrier's fences, so that it needs none to ring a bell whose sleepers make
   them. Written by bell_open (release), read by all who ring (relaxed: who reads false makes a fence too many). */
extern _Atomic bool bell_is_fenced;

/* Part of a heap, in granules: the first, and above 32 bits one past the last. Never 0. */
enum { BELL_GRANULE_SHIFT = 8, BELL_BOUND_SHIFT = 32 };
static inline uint64_t bell_range(uint64_t offset, uint64_t bytes)
{
    const uint64_t first = offset >> BELL_GRANULE_SHIFT, bound = ((offset + bytes) >> BELL_GRANULE_SHIFT) + 1;
    /* Too far out for the word: everything. */
    return bound <= UINT32_MAX ? bound << BELL_BOUND_SHIFT | first : (uint64_t)UINT32_MAX << BELL_BOUND_SHIFT;
}
static inline bool bell_ranges_meet(uint64_t a, uint64_t b)
{
    return (uint32_t)a < b >> BELL_BOUND_SHIFT && (uint32_t)b < a >> BELL_BOUND_SHIFT;
}

/* Says that this thread is about to sleep and what it watches. The caller looks at its condition once more before
   bell_sleep(…, *rings, …). */
void bell_arm(sym_bell *bell, uint64_t range, uint32_t *rings);
/* Sleeps until the bell rings, at most limit_ns; returns at once when it rang since it was armed. local: all who ring
   it are threads of this process. */
void bell_sleep(sym_bell *bell, uint32_t rings, int64_t limit_ns, bool local);
/* Wakes all sleepers. */
void bell_wake(sym_bell *bell, bool local);
/* What sleepers watch, as seen after the caller's earlier stores. */
static inline uint64_t bell_look(const sym_bell *bell)
{
    /* Partner: the fence in bell_arm, which this one may be left to. The compiler must keep the order in any case. */
    if (atomic_load_explicit(&bell_is_fenced, memory_order_relaxed) &&
        atomic_load_explicit(&bell->fences, memory_order_relaxed))
        atomic_signal_fence(memory_order_seq_cst);
    else
        fence_full();
    return atomic_load_explicit(&bell->watched, memory_order_relaxed);
}
/* Wakes all sleepers, if there are any. The caller has stored what they wait for. */
static inline void bell_ring(sym_bell *bell, bool local)
{
    if (bell_look(bell)) bell_wake(bell, local);
}
/* The same, if they watch some of [offset, offset + bytes), where the caller has stored. */
static inline void bell_ring_put(sym_bell *bell, uint64_t offset, uint64_t bytes, bool local)
{
    const uint64_t watched = bell_look(bell);
    if (watched && bell_ranges_meet(watched, bell_range(offset, bytes))) bell_wake(bell, local);
}

#endif
