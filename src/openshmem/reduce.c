/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over teams and active sets: expar's own of the type of the same size and sign, in which integers wrap. For
 * long double and complex numbers, which expar does not know, the operations are here. */
#include "openshmem/shm.h"

#include <limits.h>

/* ---- types that expar does not know ------------------------------------------------------------------------------ */

#define OWN(T, N, name, expression)                                                                                    \
    static void name##_##N(void *into, const void *from, size_t count)                                                 \
    {                                                                                                                  \
        T *result = into;                                                                                              \
        const T *other = from;                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const T a = result[i], b = other[i];                                                                       \
            result[i] = expression;                                                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    static expar_status own_##name##_reduce_##N(expar_team *team, T *dest, const T *source, size_t count)              \
    {                                                                                                                  \
        return expar_reduce(team, dest, source, count, sizeof(T), name##_##N);                                         \
    }
#define OWN_SUMS(T, N)                                                                                                 \
    OWN(T, N, sum, a + b)                                                                                              \
    OWN(T, N, prod, a *b)
OWN(long double, longdouble, min, b < a ? b : a)
OWN(long double, longdouble, max, b > a ? b : a)
OWN_SUMS(long double, longdouble)
EXPAR_SHMEM_COMPLEX(OWN_SUMS)

/* ---- what reduces the types of the standard: what its name begins with, its type, its suffix --------------------- */

#if CHAR_MIN < 0
#define BY_char expar, int8_t, i8
#else
#define BY_char expar, uint8_t, u8
#endif
#define BY_schar      expar, int8_t, i8
#define BY_short      expar, int16_t, i16
#define BY_int        expar, int32_t, i32
#define BY_long       expar, int64_t, i64
#define BY_longlong   expar, int64_t, i64
#define BY_uchar      expar, uint8_t, u8
#define BY_ushort     expar, uint16_t, u16
#define BY_uint       expar, uint32_t, u32
#define BY_ulong      expar, uint64_t, u64
#define BY_ulonglong  expar, uint64_t, u64
#define BY_int8       expar, int8_t, i8
#define BY_int16      expar, int16_t, i16
#define BY_int32      expar, int32_t, i32
#define BY_int64      expar, int64_t, i64
#define BY_uint8      expar, uint8_t, u8
#define BY_uint16     expar, uint16_t, u16
#define BY_uint32     expar, uint32_t, u32
#define BY_uint64     expar, uint64_t, u64
#define BY_size       expar, uint64_t, u64
#define BY_ptrdiff    expar, int64_t, i64
#define BY_float      expar, float, f32
#define BY_double     expar, double, f64
#define BY_longdouble own, long double, longdouble
#define BY_complexf   own, expar_shmem_complexf, complexf
#define BY_complexd   own, expar_shmem_complexd, complexd

/* Passes on what BY_##N stands for. */
#define EXPAND(macro, ...) macro(__VA_ARGS__)

/* ---- over teams -------------------------------------------------------------------------------------------------- */

#define OVER_TEAM(T, N, name) EXPAND(OVER_TEAM_BY, T, N, name, BY_##N)
#define OVER_TEAM_BY(T, N, name, owner, E, S)                                                                          \
    _Static_assert(sizeof(T) == sizeof(E), #N);                                                                        \
    int shmem_##N##_##name##_reduce(shmem_team_t team, T *dest, const T *source, size_t nreduce)                       \
    {                                                                                                                  \
        return shm_done(owner##_##name##_reduce_##S(shm_team(team), (E *)dest, (const E *)source, nreduce));           \
    }
#define BITS(T, N)                                                                                                     \
    OVER_TEAM(T, N, and)                                                                                               \
    OVER_TEAM(T, N, or)                                                                                                \
    OVER_TEAM(T, N, xor)
#define ORDER(T, N)                                                                                                    \
    OVER_TEAM(T, N, min)                                                                                               \
    OVER_TEAM(T, N, max)
#define SUMS(T, N)                                                                                                     \
    OVER_TEAM(T, N, sum)                                                                                               \
    OVER_TEAM(T, N, prod)
EXPAR_SHMEM_BITS_REDUCE_TYPES(BITS)
EXPAR_SHMEM_RMA_TYPES(ORDER)
EXPAR_SHMEM_RMA_TYPES(SUMS)
EXPAR_SHMEM_COMPLEX(SUMS)

/* ---- over active sets -------------------------------------------------------------------------------------------- */

#define TO_ALL(T, N, name) EXPAND(TO_ALL_BY, T, N, name, BY_##N)
#define TO_ALL_BY(T, N, name, owner, E, S)                                                                             \
    void shmem_##N##_##name##_to_all(T *dest, const T *source, int nreduce, int PE_start, int logPE_stride,            \
                                     int PE_size, T *pWrk, long *pSync)                                                \
    {                                                                                                                  \
        (void)pWrk;                                                                                                    \
        (void)pSync;                                                                                                   \
        if (nreduce < 0) shm_fail("shmem_" #N "_" #name "_to_all: nreduce is negative");                               \
        expar_team *set = shm_set_begin(PE_start, logPE_stride, PE_size);                                              \
        shm_must(owner##_##name##_reduce_##S(set, (E *)dest, (const E *)source, (size_t)nreduce));                     \
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
