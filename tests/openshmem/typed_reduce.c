/* SPDX-License-Identifier: Apache-2.0 */
/* Every reduction of every type, by name and by type, over a team, and by name over an active set. Sums and products of
 * integers leave the type's range, and wrap. */
#include "forms.h"

enum { COUNT = 3, MOST = 16 };

alignas(16) static unsigned char source[COUNT * 16], dest[COUNT * 16];
static long p_sync[SHMEM_REDUCE_SYNC_SIZE];
static long double p_wrk[SHMEM_REDUCE_MIN_WRKDATA_SIZE + COUNT];
static int me, n;

/* Input of PE pe, in the low bytes: the largest number of every signed type, and one whose square is too large for
   every unsigned type and for int. */
static uint64_t pattern(int pe, size_t bytes, int i)
{
    const uint64_t largest = UINT64_MAX >> 1 >> (64 - 8 * bytes), odd = UINT64_C(0xfedbfedbfedbfedb);
    return i == 0 ? largest - (uint64_t)pe : i == 1 ? odd + 2 * (uint64_t)pe : (uint64_t)pe;
}

#define OVER_TEAM(CALL, T, N, operation, to, from) CALL(N, operation##_reduce, SHMEM_TEAM_WORLD, to, from, COUNT)
#define OVER_SET(CALL, T, N, operation, to, from)                                                                      \
    (CALL(N, operation##_to_all, to, from, COUNT, 0, 0, n, (T *)(void *)p_wrk, p_sync), 0)

/* EXPR: the result for a and b, words of all their bits. A PE may lag the others by one call at most. */
#define CHECK(T, N, OVER, CALL, operation, value, EXPR)                                                                \
    for (int i = 0; i < COUNT; i++)                                                                                    \
        from[i] = (T)value(0 + me, sizeof(T), i);                                                                      \
    shmem_barrier_all();                                                                                               \
    EXPECT(OVER(CALL, T, N, operation, to, from) == 0);                                                                \
    for (int i = 0; i < COUNT; i++) {                                                                                  \
        T a = (T)value(0, sizeof(T), i);                                                                               \
        for (int pe = 1; pe < n; pe++) {                                                                               \
            const T b = (T)value(pe, sizeof(T), i);                                                                    \
            a = (T)(EXPR);                                                                                             \
        }                                                                                                              \
        EXPECT(to[i] == a);                                                                                            \
    }                                                                                                                  \
    shmem_barrier_all();

#define DEFINE(kind, T, N, form, body)                                                                                 \
    static void check_##kind##_##N##_##form(void)                                                                      \
    {                                                                                                                  \
        T *from = (T *)(void *)source, *to = (T *)(void *)dest;                                                        \
        body                                                                                                           \
    }
#define BITS(T, N, OVER, CALL)                                                                                         \
    CHECK(T, N, OVER, CALL, and, pattern, a &b)                                                                        \
    CHECK(T, N, OVER, CALL, or, pattern, a | b)                                                                        \
    CHECK(T, N, OVER, CALL, xor, pattern, a ^ b)
#define ORDER(T, N, OVER, CALL, value)                                                                                 \
    CHECK(T, N, OVER, CALL, min, value, b < a ? b : a)                                                                 \
    CHECK(T, N, OVER, CALL, max, value, b > a ? b : a)
#define WRAPS(T, N, OVER, CALL)                                                                                        \
    CHECK(T, N, OVER, CALL, sum, pattern, (uint64_t)a + (uint64_t)b)                                                   \
    CHECK(T, N, OVER, CALL, prod, pattern, (uint64_t)a *(uint64_t)b)
#define SUMS(T, N, OVER, CALL, value)                                                                                  \
    CHECK(T, N, OVER, CALL, sum, value, a + b)                                                                         \
    CHECK(T, N, OVER, CALL, prod, value, a *b)
/* Multiples of 0.5, whose sums and products are exact. */
#define REAL(pe, bytes, i)    ((i)-1 + (pe) / 2.0)
#define COMPLEX(pe, bytes, i) COMPLEX_NUMBER((i)-1, (pe) / 2.0)

#define BITS_CHECK(T, N, form, CALL) DEFINE(bits, T, N, form, BITS(T, N, OVER_TEAM, CALL))
#define INTEGER_CHECK(T, N, form, CALL)                                                                                \
    DEFINE(sums, T, N, form, ORDER(T, N, OVER_TEAM, CALL, pattern) WRAPS(T, N, OVER_TEAM, CALL))
#define REAL_CHECK(T, N, form, CALL)                                                                                   \
    DEFINE(sums, T, N, form, ORDER(T, N, OVER_TEAM, CALL, REAL) SUMS(T, N, OVER_TEAM, CALL, REAL))
#define COMPLEX_CHECK(T, N, form, CALL) DEFINE(sums, T, N, form, SUMS(T, N, OVER_TEAM, CALL, COMPLEX))
#define BITS_CHECKS(T, N)               TWO(BITS_CHECK, T, N)
#define INTEGER_CHECKS(T, N)            TWO(INTEGER_CHECK, T, N)
#define REAL_CHECKS(T, N)               TWO(REAL_CHECK, T, N)
#define COMPLEX_CHECKS(T, N)            TWO(COMPLEX_CHECK, T, N)
BITS_REDUCE_TYPES(BITS_CHECKS)
INTEGER_TYPES(INTEGER_CHECKS)
LONG_REAL_TYPES(REAL_CHECKS)
COMPLEX_TYPES(COMPLEX_CHECKS)

#define SET_INTEGER_CHECK(T, N)                                                                                        \
    DEFINE(set, T, N, name,                                                                                            \
           BITS(T, N, OVER_SET, BY_NAME) ORDER(T, N, OVER_SET, BY_NAME, pattern) WRAPS(T, N, OVER_SET, BY_NAME))
#define SET_REAL_CHECK(T, N)                                                                                           \
    DEFINE(set, T, N, name, ORDER(T, N, OVER_SET, BY_NAME, REAL) SUMS(T, N, OVER_SET, BY_NAME, REAL))
#define SET_COMPLEX_CHECK(T, N) DEFINE(set, T, N, name, SUMS(T, N, OVER_SET, BY_NAME, COMPLEX))
SET_INTEGER_TYPES(SET_INTEGER_CHECK)
LONG_REAL_TYPES(SET_REAL_CHECK)
COMPLEX_TYPES(SET_COMPLEX_CHECK)

#define RUN_BITS(T, N)                                                                                                 \
    check_bits_##N##_name();                                                                                           \
    check_bits_##N##_type();
#define RUN_SUMS(T, N)                                                                                                 \
    check_sums_##N##_name();                                                                                           \
    check_sums_##N##_type();
#define RUN_SET(T, N) check_set_##N##_name();

int main(void)
{
    shmem_init();
    me = shmem_my_pe();
    n = shmem_n_pes();
    if (n > MOST) shmem_global_exit(2);
    BITS_REDUCE_TYPES(RUN_BITS)
    RMA_TYPES(RUN_SUMS)
    COMPLEX_TYPES(RUN_SUMS)
    SET_INTEGER_TYPES(RUN_SET)
    LONG_REAL_TYPES(RUN_SET)
    COMPLEX_TYPES(RUN_SET)
    shmem_finalize();
    return 0;
}
