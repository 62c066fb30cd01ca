/* SPDX-License-Identifier: Apache-2.0 */
/* The generic names of OpenSHMEM in C++: shmem_put(dest, …) chooses by the type of dest, as the macros of
 * expar/shmem_generic.h do in C. Each name has an overload for every type, and one for it with a context first; they
 * call the typed functions and are compiled into the program. Included by expar/shmem.h only. */
#ifndef EXPAR_SHMEM_OVERLOADS_H
#define EXPAR_SHMEM_OVERLOADS_H

#include <expar/shmem.h>

#ifdef __cplusplus

/* EXPAR_SHMEM_OVERLOAD(type, the standard's name for T, name after shmem_, (parameters), (their names)). */
#define EXPAR_SHMEM_OVERLOAD(R, N, name, parameters, arguments)                                                        \
    inline R shmem_##name(EXPAR_SHMEM_UNPACK parameters)                                                               \
    {                                                                                                                  \
        return shmem_##N##_##name(EXPAR_SHMEM_UNPACK arguments);                                                       \
    }
#define EXPAR_SHMEM_OVERLOAD_BOTH(R, N, name, parameters, arguments)                                                   \
    EXPAR_SHMEM_OVERLOAD(R, N, name, parameters, arguments)                                                            \
    inline R shmem_##name(shmem_ctx_t ctx, EXPAR_SHMEM_UNPACK parameters)                                              \
    {                                                                                                                  \
        return shmem_ctx_##N##_##name(ctx, EXPAR_SHMEM_UNPACK arguments);                                              \
    }

/* ---- put and get ------------------------------------------------------------------------------------------------- */

#define EXPAR_SHMEM_OVERLOAD_MOVE(T, N, name)                                                                          \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, name, (T * dest, const T *source, size_t nelems, int pe),                       \
                              (dest, source, nelems, pe))
#define EXPAR_SHMEM_OVERLOAD_STRIDED(T, N, name)                                                                       \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, name,                                                                           \
                              (T * dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe),        \
                              (dest, source, dst, sst, nelems, pe))
#define EXPAR_SHMEM_OVERLOAD_SIGNAL(T, N, name)                                                                        \
    EXPAR_SHMEM_OVERLOAD_BOTH(                                                                                         \
        void, N, name,                                                                                                 \
        (T * dest, const T *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe),           \
        (dest, source, nelems, sig_addr, signal, sig_op, pe))
#define EXPAR_SHMEM_OVERLOAD_RMA(T, N)                                                                                 \
    EXPAR_SHMEM_OVERLOAD_MOVE(T, N, put)                                                                               \
    EXPAR_SHMEM_OVERLOAD_MOVE(T, N, get)                                                                               \
    EXPAR_SHMEM_OVERLOAD_MOVE(T, N, put_nbi)                                                                           \
    EXPAR_SHMEM_OVERLOAD_MOVE(T, N, get_nbi)                                                                           \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, p, (T * dest, T value, int pe), (dest, value, pe))                              \
    EXPAR_SHMEM_OVERLOAD_BOTH(T, N, g, (const T *source, int pe), (source, pe))                                        \
    EXPAR_SHMEM_OVERLOAD_STRIDED(T, N, iput)                                                                           \
    EXPAR_SHMEM_OVERLOAD_STRIDED(T, N, iget)                                                                           \
    EXPAR_SHMEM_OVERLOAD_SIGNAL(T, N, put_signal)                                                                      \
    EXPAR_SHMEM_OVERLOAD_SIGNAL(T, N, put_signal_nbi)
EXPAR_SHMEM_DISTINCT(EXPAR_SHMEM_OVERLOAD_RMA)

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

/* With an operand: without a result, with it, and with a result that comes later. */
#define EXPAR_SHMEM_OVERLOAD_CHANGE(T, N, name)                                                                        \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, name, (T * dest, T value, int pe), (dest, value, pe))
#define EXPAR_SHMEM_OVERLOAD_FETCH(T, N, name)                                                                         \
    EXPAR_SHMEM_OVERLOAD_BOTH(T, N, name, (T * dest, T value, int pe), (dest, value, pe))                              \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, name##_nbi, (T * fetch, T * dest, T value, int pe), (fetch, dest, value, pe))
#define EXPAR_SHMEM_OVERLOAD_SWAP(T, N)                                                                                \
    EXPAR_SHMEM_OVERLOAD_BOTH(T, N, atomic_fetch, (const T *source, int pe), (source, pe))                             \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, atomic_fetch_nbi, (T * fetch, const T *source, int pe), (fetch, source, pe))    \
    EXPAR_SHMEM_OVERLOAD_CHANGE(T, N, atomic_set)                                                                      \
    EXPAR_SHMEM_OVERLOAD_FETCH(T, N, atomic_swap)
#define EXPAR_SHMEM_OVERLOAD_AMO(T, N)                                                                                 \
    EXPAR_SHMEM_OVERLOAD_SWAP(T, N)                                                                                    \
    EXPAR_SHMEM_OVERLOAD_CHANGE(T, N, atomic_add)                                                                      \
    EXPAR_SHMEM_OVERLOAD_FETCH(T, N, atomic_fetch_add)                                                                 \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, atomic_inc, (T * dest, int pe), (dest, pe))                                     \
    EXPAR_SHMEM_OVERLOAD_BOTH(T, N, atomic_fetch_inc, (T * dest, int pe), (dest, pe))                                  \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, atomic_fetch_inc_nbi, (T * fetch, T * dest, int pe), (fetch, dest, pe))         \
    EXPAR_SHMEM_OVERLOAD_BOTH(T, N, atomic_compare_swap, (T * dest, T cond, T value, int pe), (dest, cond, value, pe)) \
    EXPAR_SHMEM_OVERLOAD_BOTH(void, N, atomic_compare_swap_nbi, (T * fetch, T * dest, T cond, T value, int pe),        \
                              (fetch, dest, cond, value, pe))
#define EXPAR_SHMEM_OVERLOAD_BITS(T, N)                                                                                \
    EXPAR_SHMEM_OVERLOAD_CHANGE(T, N, atomic_and)                                                                      \
    EXPAR_SHMEM_OVERLOAD_FETCH(T, N, atomic_fetch_and)                                                                 \
    EXPAR_SHMEM_OVERLOAD_CHANGE(T, N, atomic_or)                                                                       \
    EXPAR_SHMEM_OVERLOAD_FETCH(T, N, atomic_fetch_or)                                                                  \
    EXPAR_SHMEM_OVERLOAD_CHANGE(T, N, atomic_xor)                                                                      \
    EXPAR_SHMEM_OVERLOAD_FETCH(T, N, atomic_fetch_xor)
EXPAR_SHMEM_FLOATS(EXPAR_SHMEM_OVERLOAD_SWAP)
EXPAR_SHMEM_AMO_DISTINCT(EXPAR_SHMEM_OVERLOAD_AMO)
EXPAR_SHMEM_BITS_DISTINCT(EXPAR_SHMEM_OVERLOAD_BITS)

/* ---- waits ------------------------------------------------------------------------------------------------------- */

#define EXPAR_SHMEM_OVERLOAD_ONE(R, T, N, name)                                                                        \
    EXPAR_SHMEM_OVERLOAD(R, N, name, (T * ivar, int cmp, T cmp_value), (ivar, cmp, cmp_value))
#define EXPAR_SHMEM_OVERLOAD_SET(R, T, N, name)                                                                        \
    EXPAR_SHMEM_OVERLOAD(R, N, name, (T * ivars, size_t nelems, const int *status, int cmp, T cmp_value),              \
                         (ivars, nelems, status, cmp, cmp_value))                                                      \
    EXPAR_SHMEM_OVERLOAD(R, N, name##_vector, (T * ivars, size_t nelems, const int *status, int cmp, T *cmp_values),   \
                         (ivars, nelems, status, cmp, cmp_values))
#define EXPAR_SHMEM_OVERLOAD_SOME(T, N, name)                                                                          \
    EXPAR_SHMEM_OVERLOAD(size_t, N, name,                                                                              \
                         (T * ivars, size_t nelems, size_t * indices, const int *status, int cmp, T cmp_value),        \
                         (ivars, nelems, indices, status, cmp, cmp_value))                                             \
    EXPAR_SHMEM_OVERLOAD(size_t, N, name##_vector,                                                                     \
                         (T * ivars, size_t nelems, size_t * indices, const int *status, int cmp, T *cmp_values),      \
                         (ivars, nelems, indices, status, cmp, cmp_values))
#define EXPAR_SHMEM_OVERLOAD_WAIT(T, N)                                                                                \
    EXPAR_SHMEM_OVERLOAD_ONE(void, T, N, wait_until)                                                                   \
    EXPAR_SHMEM_OVERLOAD_ONE(int, T, N, test)                                                                          \
    EXPAR_SHMEM_OVERLOAD_SET(void, T, N, wait_until_all)                                                               \
    EXPAR_SHMEM_OVERLOAD_SET(int, T, N, test_all)                                                                      \
    EXPAR_SHMEM_OVERLOAD_SET(size_t, T, N, wait_until_any)                                                             \
    EXPAR_SHMEM_OVERLOAD_SET(size_t, T, N, test_any)                                                                   \
    EXPAR_SHMEM_OVERLOAD_SOME(T, N, wait_until_some)                                                                   \
    EXPAR_SHMEM_OVERLOAD_SOME(T, N, test_some)
EXPAR_SHMEM_WAIT_DISTINCT(EXPAR_SHMEM_OVERLOAD_WAIT)

/* ---- collectives over teams -------------------------------------------------------------------------------------- */

#define EXPAR_SHMEM_OVERLOAD_TEAM(T, N, name)                                                                          \
    EXPAR_SHMEM_OVERLOAD(int, N, name, (shmem_team_t team, T * dest, const T *source, size_t nelems),                  \
                         (team, dest, source, nelems))
#define EXPAR_SHMEM_OVERLOAD_COLLECTIVE(T, N)                                                                          \
    EXPAR_SHMEM_OVERLOAD(int, N, broadcast,                                                                            \
                         (shmem_team_t team, T * dest, const T *source, size_t nelems, int PE_root),                   \
                         (team, dest, source, nelems, PE_root))                                                        \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, collect)                                                                           \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, fcollect)                                                                          \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, alltoall)                                                                          \
    EXPAR_SHMEM_OVERLOAD(int, N, alltoalls,                                                                            \
                         (shmem_team_t team, T * dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems),  \
                         (team, dest, source, dst, sst, nelems))                                                       \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, min_reduce)                                                                        \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, max_reduce)
#define EXPAR_SHMEM_OVERLOAD_SUMS(T, N)                                                                                \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, sum_reduce)                                                                        \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, prod_reduce)
#define EXPAR_SHMEM_OVERLOAD_BITS_REDUCE(T, N)                                                                         \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, and_reduce)                                                                        \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, or_reduce)                                                                         \
    EXPAR_SHMEM_OVERLOAD_TEAM(T, N, xor_reduce)
EXPAR_SHMEM_DISTINCT(EXPAR_SHMEM_OVERLOAD_COLLECTIVE)
EXPAR_SHMEM_DISTINCT(EXPAR_SHMEM_OVERLOAD_SUMS)
EXPAR_SHMEM_COMPLEX(EXPAR_SHMEM_OVERLOAD_SUMS)
EXPAR_SHMEM_BITS_REDUCE_DISTINCT(EXPAR_SHMEM_OVERLOAD_BITS_REDUCE)

/* Beside the function for an active set. */
inline int shmem_sync(shmem_team_t team)
{
    return shmem_team_sync(team);
}
#endif

#endif
