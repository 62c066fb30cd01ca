/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics on words of the symmetric heap, each sequentially consistent with all others on the same word. Arguments and
 * errors as in expar/rma.h. */
#ifndef EXPAR_ATOMICS_H
#define EXPAR_ATOMICS_H

#include <expar/memory.h>
#include <expar/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `old` gets the value before. The nbi forms may return sooner: *old is valid after expar_quiet. */
#define EXPAR_ATOMICS_SWAP_DECLARE(T, S)                                                                               \
    EXPAR_API expar_status expar_atomic_fetch_##S(expar_group *group, const T *word, int32_t pe, T *value);            \
    EXPAR_API expar_status expar_atomic_fetch_nbi_##S(expar_group *group, const T *word, int32_t pe, T *value);        \
    EXPAR_API expar_status expar_atomic_set_##S(expar_group *group, T *word, T value, int32_t pe);                     \
    EXPAR_API expar_status expar_atomic_swap_##S(expar_group *group, T *word, T value, int32_t pe, T *old);            \
    EXPAR_API expar_status expar_atomic_swap_nbi_##S(expar_group *group, T *word, T value, int32_t pe, T *old);

/* One operation: plain, fetching, and fetching without waiting. */
#define EXPAR_ATOMICS_OPERATION_DECLARE(T, S, operation)                                                               \
    EXPAR_API expar_status expar_atomic_##operation##_##S(expar_group *group, T *word, T value, int32_t pe);           \
    EXPAR_API expar_status expar_atomic_fetch_##operation##_##S(expar_group *group, T *word, T value, int32_t pe,      \
                                                                T *old);                                               \
    EXPAR_API expar_status expar_atomic_fetch_##operation##_nbi_##S(expar_group *group, T *word, T value, int32_t pe,  \
                                                                    T *old);

#define EXPAR_ATOMICS_DECLARE(T, S)                                                                                    \
    EXPAR_ATOMICS_SWAP_DECLARE(T, S)                                                                                   \
    EXPAR_API expar_status expar_atomic_compare_swap_##S(expar_group *group, T *word, T expected, T desired,           \
                                                         int32_t pe, T *old);                                          \
    EXPAR_API expar_status expar_atomic_compare_swap_nbi_##S(expar_group *group, T *word, T expected, T desired,       \
                                                             int32_t pe, T *old);                                      \
    EXPAR_ATOMICS_OPERATION_DECLARE(T, S, add)                                                                         \
    EXPAR_ATOMICS_OPERATION_DECLARE(T, S, and)                                                                         \
    EXPAR_ATOMICS_OPERATION_DECLARE(T, S, or)                                                                          \
    EXPAR_ATOMICS_OPERATION_DECLARE(T, S, xor)                                                                         \
    EXPAR_API expar_status expar_atomic_inc_##S(expar_group *group, T *word, int32_t pe);                              \
    EXPAR_API expar_status expar_atomic_fetch_inc_##S(expar_group *group, T *word, int32_t pe, T *old);                \
    EXPAR_API expar_status expar_atomic_fetch_inc_nbi_##S(expar_group *group, T *word, int32_t pe, T *old);

EXPAR_FLOAT_TYPES(EXPAR_ATOMICS_SWAP_DECLARE)
EXPAR_WORD_TYPES(EXPAR_ATOMICS_DECLARE)
#undef EXPAR_ATOMICS_DECLARE
#undef EXPAR_ATOMICS_OPERATION_DECLARE
#undef EXPAR_ATOMICS_SWAP_DECLARE

#ifdef __cplusplus
}
#endif
#endif
