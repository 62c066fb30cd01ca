/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides of the doorbell; sym_bell says how they meet. Called by shmem, and by the fast path of pgas
 * (pgas/direct.h), which rings as fast as it stores. */
#ifndef EXPAR_SHMEM_BELL_H
#define EXPAR_SHMEM_BELL_H

#include "mem/fence.h"
#include "shmem/sym.h"

/* The owner calls this before other threads use the doorbell. */
void bell_open(sym_bell *bell);
/* True once this process has registered for membarrier's fences. It then needs no fence to ring a doorbell whose
   sleepers make them. bell_open writes it (release), all threads that ring read it. Relaxed, because a thread that
   reads false only makes a needless fence. */
extern _Atomic bool bell_is_fenced;

/* A part of a heap, in granules: the first one, and above 32 bits the one after the last. Never 0. */
enum { BELL_GRANULE_SHIFT = 8, BELL_BOUND_SHIFT = 32 };
static inline uint64_t bell_range(uint64_t offset, uint64_t bytes)
{
    const uint64_t first = offset >> BELL_GRANULE_SHIFT, bound = ((offset + bytes) >> BELL_GRANULE_SHIFT) + 1;
    /* The range lies beyond what the word can say: it means everything. */
    return bound <= UINT32_MAX ? bound << BELL_BOUND_SHIFT | first : (uint64_t)UINT32_MAX << BELL_BOUND_SHIFT;
}
static inline bool bell_ranges_meet(uint64_t a, uint64_t b)
{
    return (uint32_t)a < b >> BELL_BOUND_SHIFT && (uint32_t)b < a >> BELL_BOUND_SHIFT;
}

/* Announces that this thread is about to sleep, and what it watches. The caller checks its condition once more before
   bell_sleep(…, *rings, …). */
void bell_arm(sym_bell *bell, uint64_t range, uint32_t *rings);
/* Sleeps until a writer rings, at most limit_ns; returns at once if a writer rang since it was armed. local: all
   writers that ring are threads of this process. */
void bell_sleep(sym_bell *bell, uint32_t rings, int64_t limit_ns, bool local);
/* Wakes all sleepers. */
void bell_wake(sym_bell *bell, bool local);
/* Returns the word that sleepers watch, read after the caller's earlier stores. */
static inline uint64_t bell_look(const sym_bell *bell)
{
    /* Partner: the fence in bell_arm, which may stand for this one. The compiler must keep the order in any case. */
    if (atomic_load_explicit(&bell_is_fenced, memory_order_relaxed) &&
        atomic_load_explicit(&bell->fences, memory_order_relaxed))
        atomic_signal_fence(memory_order_seq_cst);
    else
        fence_full();
    return atomic_load_explicit(&bell->watched, memory_order_relaxed);
}
/* Wakes all sleepers, if there are any. Call it after storing what they wait for. */
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
