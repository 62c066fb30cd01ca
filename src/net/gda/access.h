/* SPDX-License-Identifier: Apache-2.0 */
/* Ordered accesses to the words that threads of a queue share with each other, with the device and with the host.
 *
 * In C17 each of them carries its order itself. On a GPU a release is a fence and a relaxed store, so that one fence of
 * the right scope serves several stores. Words that the device or the host writes are read at system scope, the others
 * at the scope of the GPU. */
#ifndef EXPAR_NET_GDA_ACCESS_H
#define EXPAR_NET_GDA_ACCESS_H

#include "net/gda/format.h"

/* Says who shares a queue, and so how far the fence before a commit has to reach. */
typedef enum gda_scope {
    GDA_SCOPE_BLOCK, /* threads of one block use the queue */
    GDA_SCOPE_GPU,   /* several blocks do, and the queue and all payload lie in the GPU's memory */
    GDA_SCOPE_SYSTEM /* the queue or some payload lies in host memory; or CPU threads use the queue */
} gda_scope;

#ifdef __CUDACC__

/* Orders all earlier accesses of this thread, and of threads that it has synchronised with, before its later stores. */
PORTABLE_FUNC void gda_release(uint32_t scope)
{
    if (scope == GDA_SCOPE_BLOCK)
        asm volatile("fence.acq_rel.cta;" ::: "memory");
    else if (scope == GDA_SCOPE_GPU)
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    else
        asm volatile("fence.acq_rel.sys;" ::: "memory");
}
PORTABLE_FUNC uint64_t gda_load(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
PORTABLE_FUNC uint32_t gda_load_32(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
PORTABLE_FUNC uint64_t gda_load_system(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
/* Releases at the scope of the GPU. */
PORTABLE_FUNC void gda_store(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/* Releases at system scope. */
PORTABLE_FUNC void gda_store_system(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
PORTABLE_FUNC void gda_store_32(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
/* Stores to a device's register: one access of 8 bytes, after a fence at system scope. */
PORTABLE_FUNC void gda_store_register(uint64_t *reg, uint64_t value)
{
    gda_release(GDA_SCOPE_SYSTEM);
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 2)
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(reg), "l"(value) : "memory");
#else
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(reg), "l"(value) : "memory");
#endif
}
/* Returns the old value. It orders nothing else. */
PORTABLE_FUNC uint64_t gda_add(uint64_t *word, uint64_t value)
{
    return atomicAdd((unsigned long long *)word, (unsigned long long)value);
}
/* Returns 1 if *word was *expected and is `desired` now; else 0, and *expected is the word. It acquires. The caller has
   released. */
PORTABLE_FUNC int gda_swap(uint64_t *word, uint64_t *expected, uint64_t desired)
{
    uint64_t seen = atomicCAS((unsigned long long *)word, (unsigned long long)*expected, (unsigned long long)desired);
    int taken = seen == *expected;
    *expected = seen;
    gda_release(GDA_SCOPE_GPU);
    return taken;
}
/* Raises the word to that value, and releases at system scope: a host thread may read it. */
PORTABLE_FUNC void gda_raise(uint64_t *word, uint64_t value)
{
    gda_release(GDA_SCOPE_SYSTEM);
    atomicMax_system((unsigned long long *)word, (unsigned long long)value);
}
/* Writes one block. The caller's commit orders it before the doorbell. */
PORTABLE_FUNC void gda_store_block(gda_block *to, const gda_block *from)
{
    for (int i = 0; i < GDA_BLOCK_WORDS; i += 4)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to->words + i), "r"(from->words[i]),
                     "r"(from->words[i + 1]), "r"(from->words[i + 2]), "r"(from->words[i + 3])
                     : "memory");
}
PORTABLE_FUNC void gda_rest(void)
{
#ifdef GDA_BETWEEN_POLLS
    GDA_BETWEEN_POLLS();
#endif
}

#else

#include <sched.h>

PORTABLE_FUNC void gda_release(uint32_t scope)
{
    (void)scope; /* the store that follows releases by itself */
}
PORTABLE_FUNC uint64_t gda_load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}
PORTABLE_FUNC uint32_t gda_load_32(const _Atomic uint32_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}
PORTABLE_FUNC uint64_t gda_load_system(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}
PORTABLE_FUNC void gda_store(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}
PORTABLE_FUNC void gda_store_system(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}
PORTABLE_FUNC void gda_store_32(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}
PORTABLE_FUNC void gda_store_register(_Atomic uint64_t *reg, uint64_t value)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    __builtin_ia32_sfence(); /* blocks may lie in write-combining memory */
#endif
    atomic_store_explicit(reg, value, memory_order_release);
}
PORTABLE_FUNC uint64_t gda_add(_Atomic uint64_t *word, uint64_t value)
{
    return atomic_fetch_add_explicit(word, value, memory_order_relaxed);
}
PORTABLE_FUNC int gda_swap(_Atomic uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit(word, expected, desired, memory_order_acq_rel, memory_order_acquire);
}
PORTABLE_FUNC void gda_raise(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while ((int64_t)(value - seen) > 0 &&
           !atomic_compare_exchange_weak_explicit(word, &seen, value, memory_order_acq_rel, memory_order_relaxed)) {
    }
}
PORTABLE_FUNC void gda_store_block(gda_block *to, const gda_block *from)
{
    *to = *from;
}
/* Other threads of this processor may have to run before the wait can end. */
PORTABLE_FUNC void gda_rest(void)
{
#ifdef GDA_BETWEEN_POLLS
    GDA_BETWEEN_POLLS(); /* threads of a simulated GPU */
#endif
    sched_yield();
}

#endif

#endif
