/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that changes a word for the host, as simulated GPUs run it: the library has it as text for a real one. */
#ifndef TESTS_CUDA_FAKE_CHANGE_WORD_H
#define TESTS_CUDA_FAKE_CHANGE_WORD_H

#include "proto/change.h"

#define CHANGE_WORD(T, bits)                                                                                           \
    static inline uint64_t change_word_##bits(const change_args *a, T *word)                                           \
    {                                                                                                                  \
        T seen = (T)a->compare;                                                                                        \
        const T operand = (T)a->operand;                                                                               \
        switch (a->op) {                                                                                               \
        case CHANGE_COMPARE_SWAP:                                                                                      \
            __atomic_compare_exchange_n(word, &seen, operand, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                  \
            return seen;                                                                                               \
        case CHANGE_ADD:                                                                                               \
            return __atomic_fetch_add(word, operand, __ATOMIC_SEQ_CST);                                                \
        case CHANGE_AND:                                                                                               \
            return __atomic_fetch_and(word, operand, __ATOMIC_SEQ_CST);                                                \
        case CHANGE_OR:                                                                                                \
            return __atomic_fetch_or(word, operand, __ATOMIC_SEQ_CST);                                                 \
        case CHANGE_XOR:                                                                                               \
            return __atomic_fetch_xor(word, operand, __ATOMIC_SEQ_CST);                                                \
        default:                                                                                                       \
            return __atomic_exchange_n(word, operand, __ATOMIC_SEQ_CST);                                               \
        }                                                                                                              \
    }
CHANGE_WORD(uint32_t, 32)
CHANGE_WORD(uint64_t, 64)

/* word: where this process reaches a->word. */
static inline void fake_change_word(const change_args *a, void *word)
{
    uint64_t *former = (uint64_t *)(uintptr_t)a->former;
    *former = a->bytes == 8 ? change_word_64(a, word) : change_word_32(a, word);
}

#endif
