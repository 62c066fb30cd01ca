/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over teams and active sets: expar's own, with an operation for each type of the standard. */
#include "openshmem/shm.h"

#define COMBINE(T, N, name, expression)                                                                                \
    static void name##_##N(void *into, const void *from, size_t count)                                                 \
    {                                                                                                                  \
        T *result = into;                                                                                              \
        const T *other = from;                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const T a = result[i], b = other[i];                                                                       \
            result[i] = (T)(expression);                                                                               \
        }                                                                                                              \
    }
#define OVER_TEAM(T, N, name, expression)                                                                              \
    COMBINE(T, N, name, expression)                                                                                    \
    int shmem_##N##_##name##_reduce(shmem_team_t team, T *dest, const T *source, size_t nreduce)                       \
    {                                                                                                                  \
        return shm_done(expar_reduce(shm_team(team), dest, source, nreduce, sizeof(T), name##_##N));                   \
    }
#define BITS(T, N)                                                                                                     \
    OVER_TEAM(T, N, and, a &b)                                                                                         \
    OVER_TEAM(T, N, or, a | b)                                                                                         \
    OVER_TEAM(T, N, xor, a ^ b)
#define ORDER(T, N)                                                                                                    \
    OVER_TEAM(T, N, min, b < a ? b : a)                                                                                \
    OVER_TEAM(T, N, max, b > a ? b : a)
#define SUMS(T, N)                                                                                                     \
    OVER_TEAM(T, N, sum, a + b)                                                                                        \
    OVER_TEAM(T, N, prod, a *b)
EXPAR_SHMEM_BITS_REDUCE_TYPES(BITS)
EXPAR_SHMEM_RMA_TYPES(ORDER)
EXPAR_SHMEM_RMA_TYPES(SUMS)
EXPAR_SHMEM_COMPLEX(SUMS)

/* The operations of the signed types that only active sets have. */
#define SET_BITS_COMBINE(T, N)                                                                                         \
    COMBINE(T, N, and, a &b)                                                                                           \
    COMBINE(T, N, or, a | b)                                                                                           \
    COMBINE(T, N, xor, a ^ b)
EXPAR_SHMEM_SET_INTS(SET_BITS_COMBINE)

#define TO_ALL(T, N, name)                                                                                             \
    void shmem_##N##_##name##_to_all(T *dest, const T *source, int nreduce, int PE_start, int logPE_stride,            \
                                     int PE_size, T *pWrk, long *pSync)                                                \
    {                                                                                                                  \
        (void)pWrk;                                                                                                    \
        (void)pSync;                                                                                                   \
        if (nreduce < 0) shm_fail("shmem_" #N "_" #name "_to_all: nreduce is negative");                               \
        expar_team *set = shm_set_begin(PE_start, logPE_stride, PE_size);                                              \
        shm_must(expar_reduce(set, dest, source, (size_t)nreduce, sizeof(T), name##_##N));                             \
        shm_set_end(set);                                                                                              \
    }
#define SET_BITS(T, N)                                                                                                 \
    TO_ALL(T, N, and)                                                                                                  \
    TO_ALL(T, N, or)                                                                                                   \
    TO_ALL(T, N, xor)
#define SET_ORDER(T, N)                                                                                                \
    TO_ALL(T, N, min)                                                                                                  \
    TO_ALL(T, N, max)
#define SET_SUMS(T, N)                                                                                                 \
    TO_ALL(T, N, sum)                                                                                                  \
    TO_ALL(T, N, prod)
EXPAR_SHMEM_SET_INTS(SET_BITS)
EXPAR_SHMEM_SET_INTS(SET_ORDER)
EXPAR_SHMEM_SET_INTS(SET_SUMS)
EXPAR_SHMEM_SET_REALS(SET_ORDER)
EXPAR_SHMEM_SET_REALS(SET_SUMS)
EXPAR_SHMEM_COMPLEX(SET_SUMS)
