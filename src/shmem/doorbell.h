/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides of the doorbell; sym_doorbell says how they meet. Called by shmem, and by the fast path of pgas
 * (pgas/direct.h), which rings as fast as it stores. */
#ifndef EXPAR_SHMEM_DOORBELL_H
#define EXPAR_SHMEM_DOORBELL_H

#include "mem/fence.h"
#include "shmem/sym.h"

/* The owner calls this before other threads use the doorbell. */
void doorbell_open(sym_doorbell *doorbell);
/* True once this process has registered for membarrier's fences. It then needs no fence to ring a doorbell whose
   sleepers make them. doorbell_open writes it (release), all threads that ring read it. Relaxed, because a thread that
   reads false only makes a needless fence. */
extern _Atomic bool doorbell_is_fenced;

/* A part of a heap, in granules: the first one, and above 32 bits the one after the last. Never 0. */
enum { DOORBELL_GRANULE_SHIFT = 8, DOORBELL_BOUND_SHIFT = 32 };
static inline uint64_t doorbell_range(uint64_t offset, uint64_t bytes)
{
    const uint64_t first = offset >> DOORBELL_GRANULE_SHIFT, bound = ((offset + bytes) >> DOORBELL_GRANULE_SHIFT) + 1;
    /* The range lies beyond what the word can say: it means everything. */
    return bound <= UINT32_MAX ? bound << DOORBELL_BOUND_SHIFT | first : (uint64_t)UINT32_MAX << DOORBELL_BOUND_SHIFT;
}
static inline bool doorbell_ranges_meet(uint64_t a, uint64_t b)
{
    return (uint32_t)a < b >> DOORBELL_BOUND_SHIFT && (uint32_t)b < a >> DOORBELL_BOUND_SHIFT;
}

/* Announces that this thread is about to sleep, and what it watches. The caller checks its condition once more before
   doorbell_sleep(…, *rings, …). */
void doorbell_arm(sym_doorbell *doorbell, uint64_t range, uint32_t *rings);
/* Sleeps until a writer rings, at most limit_ns; returns at once if a writer rang since it was armed. local: all
   writers that ring are threads of this process. */
void doorbell_sleep(sym_doorbell *doorbell, uint32_t rings, int64_t limit_ns, bool local);
/* Wakes all sleepers. */
void doorbell_wake(sym_doorbell *doorbell, bool local);
/* Returns the word that sleepers watch, read after the caller's earlier stores. */
static inline uint64_t doorbell_look(const sym_doorbell *doorbell)
{
    /* Partner: the fence in doorbell_arm, which may stand for this one. The compiler must keep the order in any case.
       */
    if (atomic_load_explicit(&doorbell_is_fenced, memory_order_relaxed) &&
        atomic_load_explicit(&doorbell->fences, memory_order_relaxed))
        atomic_signal_fence(memory_order_seq_cst);
    else
        fence_full();
    return atomic_load_explicit(&doorbell->watched, memory_order_relaxed);
}
/* Wakes all sleepers, if there are any. Call it after storing what they wait for. */
static inline void doorbell_ring(sym_doorbell *doorbell, bool local)
{
    if (doorbell_look(doorbell)) doorbell_wake(doorbell, local);
}
/* The same, if they watch some of [offset, offset + bytes), where the caller has stored. */
static inline void doorbell_ring_put(sym_doorbell *doorbell, uint64_t offset, uint64_t bytes, bool local)
{
    const uint64_t watched = doorbell_look(doorbell);
    if (watched && doorbell_ranges_meet(watched, doorbell_range(offset, bytes))) doorbell_wake(doorbell, local);
}

#endif
