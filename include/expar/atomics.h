/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics on words of the symmetric heap, each sequentially consistent with all others on the same word. Arguments and
 * errors as in expar/rma.h. On device memory they are atomic with those of kernels and streams, too. They may need a
 * thread of an SM there (EXPAR_DEVICE_ATOMICS); reading and setting a word do not. */
#ifndef EXPAR_ATOMICS_H
#define EXPAR_ATOMICS_H

#include <expar/memory.h>
#include <expar/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `old` gets the value before. The nbi forms return when the operation has been started: *old is valid after
   expar_quiet. P is the beginning of the names, ON the object on which they act (a group, or a context). */
#define EXPAR_ATOMICS_SWAP_DECLARE_ON(P, ON, T, S)                                                                     \
    EXPAR_API expar_status P##atomic_fetch_##S(ON, const T *word, int32_t pe, T *value);                               \
    EXPAR_API expar_status P##atomic_fetch_nbi_##S(ON, const T *word, int32_t pe, T *value);                           \
    EXPAR_API expar_status P##atomic_set_##S(ON, T *word, T value, int32_t pe);                                        \
    EXPAR_API expar_status P##atomic_swap_##S(ON, T *word, T value, int32_t pe, T *old);                               \
    EXPAR_API expar_status P##atomic_swap_nbi_##S(ON, T *word, T value, int32_t pe, T *old);

/* One operation: plain, fetching, and fetching without waiting. */
#define EXPAR_ATOMICS_OPERATION_DECLARE_ON(P, ON, T, S, operation)                                                     \
    EXPAR_API expar_status P##atomic_##operation##_##S(ON, T *word, T value, int32_t pe);                              \
    EXPAR_API expar_status P##atomic_fetch_##operation##_##S(ON, T *word, T value, int32_t pe, T *old);                \
    EXPAR_API expar_status P##atomic_fetch_##operation##_nbi_##S(ON, T *word, T value, int32_t pe, T *old);

#define EXPAR_ATOMICS_DECLARE_ON(P, ON, T, S)                                                                          \
    EXPAR_ATOMICS_SWAP_DECLARE_ON(P, ON, T, S)                                                                         \
    EXPAR_API expar_status P##atomic_compare_swap_##S(ON, T *word, T expected, T desired, int32_t pe, T *old);         \
    EXPAR_API expar_status P##atomic_compare_swap_nbi_##S(ON, T *word, T expected, T desired, int32_t pe, T *old);     \
    EXPAR_ATOMICS_OPERATION_DECLARE_ON(P, ON, T, S, add)                                                               \
    EXPAR_ATOMICS_OPERATION_DECLARE_ON(P, ON, T, S, and)                                                               \
    EXPAR_ATOMICS_OPERATION_DECLARE_ON(P, ON, T, S, or)                                                                \
    EXPAR_ATOMICS_OPERATION_DECLARE_ON(P, ON, T, S, xor)                                                               \
    EXPAR_API expar_status P##atomic_inc_##S(ON, T *word, int32_t pe);                                                 \
    EXPAR_API expar_status P##atomic_fetch_inc_##S(ON, T *word, int32_t pe, T *old);                                   \
    EXPAR_API expar_status P##atomic_fetch_inc_nbi_##S(ON, T *word, int32_t pe, T *old);

#define EXPAR_ATOMICS_SWAP_DECLARE(T, S) EXPAR_ATOMICS_SWAP_DECLARE_ON(expar_, expar_group *group, T, S)
#define EXPAR_ATOMICS_DECLARE(T, S)      EXPAR_ATOMICS_DECLARE_ON(expar_, expar_group *group, T, S)
EXPAR_FLOAT_TYPES(EXPAR_ATOMICS_SWAP_DECLARE)
EXPAR_WORD_TYPES(EXPAR_ATOMICS_DECLARE)
#undef EXPAR_ATOMICS_DECLARE
#undef EXPAR_ATOMICS_SWAP_DECLARE

#ifdef __cplusplus
}
#endif
#endif
