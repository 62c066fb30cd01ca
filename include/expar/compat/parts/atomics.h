/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's atomics. */
#ifndef EXPAR_COMPAT_PARTS_ATOMICS_H
#define EXPAR_COMPAT_PARTS_ATOMICS_H

#include <expar/compat/parts/target.h>

/* A call of expar's, without a result and with one. `E` is expar's type. */
#define EXPAR_NV_ATOMIC(E, S, call, ...)                                                                               \
    EXPAR_NV_BODY(expar_kernel_atomic_##call##_##S(EXPAR_NV_WORLD, (E *)dest, __VA_ARGS__),                            \
                  expar_nvshmem_must(expar_atomic_##call##_##S(expar_nvshmem_group(), (E *)dest, __VA_ARGS__)))
#define EXPAR_NV_FETCHING(E, S, call, ...)                                                                             \
    EXPAR_NV_BODY(old = expar_kernel_atomic_##call##_##S(EXPAR_NV_WORLD, (E *)dest, __VA_ARGS__),                      \
                  expar_nvshmem_must(expar_atomic_##call##_##S(expar_nvshmem_group(), (E *)dest, __VA_ARGS__, &old)))

#define EXPAR_NV_ATOMIC_SWAPS(T, N, S)                                                                                 \
    EXPAR_NV_CALL T nvshmem_##N##_atomic_fetch(const T *dest, int pe)                                                  \
    {                                                                                                                  \
        expar_nv_##S old = 0;                                                                                          \
        EXPAR_NV_FETCHING(const expar_nv_##S, S, fetch, pe);                                                           \
        return (T)old;                                                                                                 \
    }                                                                                                                  \
    EXPAR_NV_CALL void nvshmem_##N##_atomic_set(T *dest, T value, int pe)                                              \
    {                                                                                                                  \
        EXPAR_NV_ATOMIC(expar_nv_##S, S, set, (expar_nv_##S)value, pe);                                                \
    }                                                                                                                  \
    EXPAR_NV_CALL T nvshmem_##N##_atomic_swap(T *dest, T value, int pe)                                                \
    {                                                                                                                  \
        expar_nv_##S old = 0;                                                                                          \
        EXPAR_NV_FETCHING(expar_nv_##S, S, swap, (expar_nv_##S)value, pe);                                             \
        return (T)old;                                                                                                 \
    }
EXPAR_NV_WORDS(EXPAR_NV_ATOMIC_SWAPS)
EXPAR_NV_FLOATS(EXPAR_NV_ATOMIC_SWAPS)

#define EXPAR_NV_ATOMIC_CHANGE(T, N, S, change)                                                                        \
    EXPAR_NV_CALL void nvshmem_##N##_atomic_##change(T *dest, T value, int pe)                                         \
    {                                                                                                                  \
        EXPAR_NV_ATOMIC(expar_nv_##S, S, change, (expar_nv_##S)value, pe);                                             \
    }                                                                                                                  \
    EXPAR_NV_CALL T nvshmem_##N##_atomic_fetch_##change(T *dest, T value, int pe)                                      \
    {                                                                                                                  \
        expar_nv_##S old = 0;                                                                                          \
        EXPAR_NV_FETCHING(expar_nv_##S, S, fetch_##change, (expar_nv_##S)value, pe);                                   \
        return (T)old;                                                                                                 \
    }
#define EXPAR_NV_ATOMIC_WORDS(T, N, S)                                                                                 \
    EXPAR_NV_CALL T nvshmem_##N##_atomic_compare_swap(T *dest, T cond, T value, int pe)                                \
    {                                                                                                                  \
        expar_nv_##S old = 0;                                                                                          \
        EXPAR_NV_FETCHING(expar_nv_##S, S, compare_swap, (expar_nv_##S)cond, (expar_nv_##S)value, pe);                 \
        return (T)old;                                                                                                 \
    }                                                                                                                  \
    EXPAR_NV_CALL void nvshmem_##N##_atomic_inc(T *dest, int pe)                                                       \
    {                                                                                                                  \
        EXPAR_NV_ATOMIC(expar_nv_##S, S, inc, pe);                                                                     \
    }                                                                                                                  \
    EXPAR_NV_CALL T nvshmem_##N##_atomic_fetch_inc(T *dest, int pe)                                                    \
    {                                                                                                                  \
        expar_nv_##S old = 0;                                                                                          \
        EXPAR_NV_FETCHING(expar_nv_##S, S, fetch_inc, pe);                                                             \
        return (T)old;                                                                                                 \
    }                                                                                                                  \
    EXPAR_NV_ATOMIC_CHANGE(T, N, S, add)
EXPAR_NV_WORDS(EXPAR_NV_ATOMIC_WORDS)

#define EXPAR_NV_ATOMIC_BITS(T, N, S)                                                                                  \
    EXPAR_NV_ATOMIC_CHANGE(T, N, S, and)                                                                               \
    EXPAR_NV_ATOMIC_CHANGE(T, N, S, or)                                                                                \
    EXPAR_NV_ATOMIC_CHANGE(T, N, S, xor)
EXPAR_NV_BIT_WORDS(EXPAR_NV_ATOMIC_BITS)

#endif
