/* SPDX-License-Identifier: Apache-2.0 */
/* access: how mapped memory is read and written, for the transport and for the fast path of pgas. */
#ifndef EXPAR_NET_P2P_ACCESS_H
#define EXPAR_NET_P2P_ACCESS_H

#include "net/transport.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool p2p_is_word(const void *a, const void *b, size_t bytes, size_t word_bytes)
{
    return bytes == word_bytes && ((uintptr_t)a | (uintptr_t)b) % word_bytes == 0;
}

/* Aligned words travel whole and in order: release here, acquire in the target's wait. Programs that put a flag after
   their data, and wait for it there, need that. Longer copies are ordered by fence, quiet or a signal. */
static inline void p2p_store(void *dest, const void *source, size_t bytes)
{
    if (p2p_is_word(dest, source, bytes, 8))
        atomic_store_explicit((_Atomic uint64_t *)dest, *(const uint64_t *)source, memory_order_release);
    else if (p2p_is_word(dest, source, bytes, 4))
        atomic_store_explicit((_Atomic uint32_t *)dest, *(const uint32_t *)source, memory_order_release);
    else if (p2p_is_word(dest, source, bytes, 2))
        atomic_store_explicit((_Atomic uint16_t *)dest, *(const uint16_t *)source, memory_order_release);
    else if (bytes > 0)
        memmove(dest, source, bytes);
}

static inline void p2p_load(void *dest, const void *source, size_t bytes)
{
    if (p2p_is_word(dest, source, bytes, 8))
        *(uint64_t *)dest = atomic_load_explicit((const _Atomic uint64_t *)source, memory_order_acquire);
    else if (p2p_is_word(dest, source, bytes, 4))
        *(uint32_t *)dest = atomic_load_explicit((const _Atomic uint32_t *)source, memory_order_acquire);
    else if (p2p_is_word(dest, source, bytes, 2))
        *(uint16_t *)dest = atomic_load_explicit((const _Atomic uint16_t *)source, memory_order_acquire);
    else if (bytes > 0)
        memmove(dest, source, bytes);
}

/* One function for each width; all sequentially consistent, as the public atomics promise. */
#define P2P_ATOMIC_DEFINE(T, name)                                                                                     \
    static inline T name(_Atomic T *word, transport_atomic_op op, T operand, T compare)                                \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
        case TRANSPORT_SET:                                                                                            \
        case TRANSPORT_SWAP:                                                                                           \
            return atomic_exchange(word, operand);                                                                     \
        case TRANSPORT_COMPARE_SWAP:                                                                                   \
            atomic_compare_exchange_strong(word, &compare, operand);                                                   \
            return compare;                                                                                            \
        case TRANSPORT_ADD:                                                                                            \
            return atomic_fetch_add(word, operand);                                                                    \
        case TRANSPORT_AND:                                                                                            \
            return atomic_fetch_and(word, operand);                                                                    \
        case TRANSPORT_OR:                                                                                             \
            return atomic_fetch_or(word, operand);                                                                     \
        case TRANSPORT_XOR:                                                                                            \
            return atomic_fetch_xor(word, operand);                                                                    \
        case TRANSPORT_FETCH:                                                                                          \
            break;                                                                                                     \
        }                                                                                                              \
        return atomic_load(word);                                                                                      \
    }
P2P_ATOMIC_DEFINE(uint32_t, p2p_atomic_u32)
P2P_ATOMIC_DEFINE(uint64_t, p2p_atomic_u64)

static inline uint64_t p2p_change_word(void *word, size_t bytes, transport_atomic_op op, uint64_t operand,
                                       uint64_t compare)
{
    return bytes == 8 ? p2p_atomic_u64(word, op, operand, compare)
                      : p2p_atomic_u32(word, op, (uint32_t)operand, (uint32_t)compare);
}

#endif
