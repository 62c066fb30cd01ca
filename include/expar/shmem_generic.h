/* SPDX-License-Identifier: Apache-2.0 */
/* The C11 generic names of OpenSHMEM: shmem_put(dest, …) chooses by the type of dest, and so does the form with a
 * context first. In C++ they are overloaded functions: expar/shmem_overloads.h. Included by expar/shmem.h only. */
#ifndef EXPAR_SHMEM_GENERIC_H
/* Tables of types, on which clang-format does not settle. */
/* clang-format off */
#define EXPAR_SHMEM_GENERIC_H

/* First and second argument, whatever follows. */
#define EXPAR_SHMEM_FIRST(...)           EXPAR_SHMEM_FIRST_(__VA_ARGS__, 0)
#define EXPAR_SHMEM_FIRST_(a, ...)       a
#define EXPAR_SHMEM_SECOND(...)          EXPAR_SHMEM_SECOND_(__VA_ARGS__, 0, 0)
#define EXPAR_SHMEM_SECOND_(a, b, ...)   b

/* A call with wrong types chooses this. It is no function, so the compiler rejects the call. */
typedef struct expar_shmem_no_such_type {
    int none;
} expar_shmem_no_such_type;

#define EXPAR_SHMEM_CASE(T, function) , T * : function, const T * : function

/* cases(prefix, suffix) lists a function for every type. A pointer chooses among those without a context, a context
   among the others, by the argument after it. */
#define EXPAR_SHMEM_CHOOSE(cases, suffix, ...)                                                                         \
    _Generic((EXPAR_SHMEM_FIRST(__VA_ARGS__)),                                                                         \
        shmem_ctx_t: _Generic((EXPAR_SHMEM_SECOND(__VA_ARGS__)),                                                       \
            default: (expar_shmem_no_such_type){0} cases(shmem_ctx_, suffix)),                                         \
        default: _Generic((EXPAR_SHMEM_FIRST(__VA_ARGS__)),                                                            \
            default: (expar_shmem_no_such_type){0} cases(shmem_, suffix)))(__VA_ARGS__)
/* By the first argument alone: waits. */
#define EXPAR_SHMEM_CHOOSE_FIRST(cases, suffix, ...)                                                                   \
    _Generic((EXPAR_SHMEM_FIRST(__VA_ARGS__)),                                                                         \
        default: (expar_shmem_no_such_type){0} cases(shmem_, suffix))(__VA_ARGS__)
/* By the second argument alone, after a team: collectives. */
#define EXPAR_SHMEM_CHOOSE_SECOND(cases, suffix, ...)                                                                  \
    _Generic((EXPAR_SHMEM_SECOND(__VA_ARGS__)),                                                                        \
        default: (expar_shmem_no_such_type){0} cases(shmem_, suffix))(__VA_ARGS__)

/* A macro cannot pass its arguments through the tables of types, so these lists stand by themselves. */
#define EXPAR_SHMEM_AMO_CASES(p, s)                                                                                    \
    EXPAR_SHMEM_CASE(int, p##int_##s) EXPAR_SHMEM_CASE(long, p##long_##s)                                              \
    EXPAR_SHMEM_CASE(long long, p##longlong_##s) EXPAR_SHMEM_BITS_CASES(p, s)
#define EXPAR_SHMEM_WAIT_CASES(p, s)                                                                                   \
    EXPAR_SHMEM_CASE(short, p##short_##s) EXPAR_SHMEM_CASE(unsigned short, p##ushort_##s) EXPAR_SHMEM_AMO_CASES(p, s)
#define EXPAR_SHMEM_BITS_CASES(p, s)                                                                                   \
    EXPAR_SHMEM_CASE(unsigned int, p##uint_##s) EXPAR_SHMEM_CASE(unsigned long, p##ulong_##s)                          \
    EXPAR_SHMEM_CASE(unsigned long long, p##ulonglong_##s)
/* and, or and xor know the signed types of fixed width, too. */
#define EXPAR_SHMEM_BITS_AMO_CASES(p, s)                                                                               \
    EXPAR_SHMEM_BITS_CASES(p, s) EXPAR_SHMEM_CASE(int32_t, p##int32_##s) EXPAR_SHMEM_CASE(int64_t, p##int64_##s)
#define EXPAR_SHMEM_SWAP_CASES(p, s)                                                                                   \
    EXPAR_SHMEM_CASE(float, p##float_##s) EXPAR_SHMEM_CASE(double, p##double_##s) EXPAR_SHMEM_AMO_CASES(p, s)
#define EXPAR_SHMEM_RMA_CASES(p, s)                                                                                    \
    EXPAR_SHMEM_SWAP_CASES(p, s) EXPAR_SHMEM_CASE(long double, p##longdouble_##s) EXPAR_SHMEM_CASE(char, p##char_##s)  \
    EXPAR_SHMEM_CASE(signed char, p##schar_##s) EXPAR_SHMEM_CASE(short, p##short_##s)                                  \
    EXPAR_SHMEM_CASE(unsigned char, p##uchar_##s) EXPAR_SHMEM_CASE(unsigned short, p##ushort_##s)
#define EXPAR_SHMEM_SUM_CASES(p, s)                                                                                    \
    EXPAR_SHMEM_RMA_CASES(p, s) EXPAR_SHMEM_CASE(expar_shmem_complexf, p##complexf_##s)                                \
    EXPAR_SHMEM_CASE(expar_shmem_complexd, p##complexd_##s)
#define EXPAR_SHMEM_BITS_REDUCE_CASES(p, s)                                                                            \
    EXPAR_SHMEM_BITS_AMO_CASES(p, s) EXPAR_SHMEM_CASE(unsigned char, p##uchar_##s)                                     \
    EXPAR_SHMEM_CASE(unsigned short, p##ushort_##s) EXPAR_SHMEM_CASE(int8_t, p##int8_##s)                              \
    EXPAR_SHMEM_CASE(int16_t, p##int16_##s)

#define shmem_put(...)            EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, put, __VA_ARGS__)
#define shmem_get(...)            EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, get, __VA_ARGS__)
#define shmem_put_nbi(...)        EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, put_nbi, __VA_ARGS__)
#define shmem_get_nbi(...)        EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, get_nbi, __VA_ARGS__)
#define shmem_p(...)              EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, p, __VA_ARGS__)
#define shmem_g(...)              EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, g, __VA_ARGS__)
#define shmem_iput(...)           EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, iput, __VA_ARGS__)
#define shmem_iget(...)           EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, iget, __VA_ARGS__)
#define shmem_put_signal(...)     EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, put_signal, __VA_ARGS__)
#define shmem_put_signal_nbi(...) EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_RMA_CASES, put_signal_nbi, __VA_ARGS__)

#define shmem_atomic_fetch(...)         EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_SWAP_CASES, atomic_fetch, __VA_ARGS__)
#define shmem_atomic_set(...)           EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_SWAP_CASES, atomic_set, __VA_ARGS__)
#define shmem_atomic_swap(...)          EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_SWAP_CASES, atomic_swap, __VA_ARGS__)
#define shmem_atomic_fetch_nbi(...)     EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_SWAP_CASES, atomic_fetch_nbi, __VA_ARGS__)
#define shmem_atomic_swap_nbi(...)      EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_SWAP_CASES, atomic_swap_nbi, __VA_ARGS__)
#define shmem_atomic_compare_swap(...)  EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_compare_swap, __VA_ARGS__)
#define shmem_atomic_compare_swap_nbi(...)                                                                             \
    EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_compare_swap_nbi, __VA_ARGS__)
#define shmem_atomic_inc(...)           EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_inc, __VA_ARGS__)
#define shmem_atomic_fetch_inc(...)     EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_fetch_inc, __VA_ARGS__)
#define shmem_atomic_fetch_inc_nbi(...) EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_fetch_inc_nbi, __VA_ARGS__)
#define shmem_atomic_add(...)           EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_add, __VA_ARGS__)
#define shmem_atomic_fetch_add(...)     EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_fetch_add, __VA_ARGS__)
#define shmem_atomic_fetch_add_nbi(...) EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_AMO_CASES, atomic_fetch_add_nbi, __VA_ARGS__)
#define shmem_atomic_and(...)           EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_and, __VA_ARGS__)
#define shmem_atomic_fetch_and(...)     EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_fetch_and, __VA_ARGS__)
#define shmem_atomic_fetch_and_nbi(...)                                                                                \
    EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_fetch_and_nbi, __VA_ARGS__)
#define shmem_atomic_or(...)            EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_or, __VA_ARGS__)
#define shmem_atomic_fetch_or(...)      EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_fetch_or, __VA_ARGS__)
#define shmem_atomic_fetch_or_nbi(...)                                                                                 \
    EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_fetch_or_nbi, __VA_ARGS__)
#define shmem_atomic_xor(...)           EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_xor, __VA_ARGS__)
#define shmem_atomic_fetch_xor(...)     EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_fetch_xor, __VA_ARGS__)
#define shmem_atomic_fetch_xor_nbi(...)                                                                                \
    EXPAR_SHMEM_CHOOSE(EXPAR_SHMEM_BITS_AMO_CASES, atomic_fetch_xor_nbi, __VA_ARGS__)

#define EXPAR_SHMEM_WAIT(name, ...) EXPAR_SHMEM_CHOOSE_FIRST(EXPAR_SHMEM_WAIT_CASES, name, __VA_ARGS__)
#define shmem_wait_until(...)             EXPAR_SHMEM_WAIT(wait_until, __VA_ARGS__)
#define shmem_wait_until_all(...)         EXPAR_SHMEM_WAIT(wait_until_all, __VA_ARGS__)
#define shmem_wait_until_any(...)         EXPAR_SHMEM_WAIT(wait_until_any, __VA_ARGS__)
#define shmem_wait_until_some(...)        EXPAR_SHMEM_WAIT(wait_until_some, __VA_ARGS__)
#define shmem_wait_until_all_vector(...)  EXPAR_SHMEM_WAIT(wait_until_all_vector, __VA_ARGS__)
#define shmem_wait_until_any_vector(...)  EXPAR_SHMEM_WAIT(wait_until_any_vector, __VA_ARGS__)
#define shmem_wait_until_some_vector(...) EXPAR_SHMEM_WAIT(wait_until_some_vector, __VA_ARGS__)
#define shmem_test(...)                   EXPAR_SHMEM_WAIT(test, __VA_ARGS__)
#define shmem_test_all(...)               EXPAR_SHMEM_WAIT(test_all, __VA_ARGS__)
#define shmem_test_any(...)               EXPAR_SHMEM_WAIT(test_any, __VA_ARGS__)
#define shmem_test_some(...)              EXPAR_SHMEM_WAIT(test_some, __VA_ARGS__)
#define shmem_test_all_vector(...)        EXPAR_SHMEM_WAIT(test_all_vector, __VA_ARGS__)
#define shmem_test_any_vector(...)        EXPAR_SHMEM_WAIT(test_any_vector, __VA_ARGS__)
#define shmem_test_some_vector(...)       EXPAR_SHMEM_WAIT(test_some_vector, __VA_ARGS__)

#define shmem_broadcast(...)   EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_RMA_CASES, broadcast, __VA_ARGS__)
#define shmem_collect(...)     EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_RMA_CASES, collect, __VA_ARGS__)
#define shmem_fcollect(...)    EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_RMA_CASES, fcollect, __VA_ARGS__)
#define shmem_alltoall(...)    EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_RMA_CASES, alltoall, __VA_ARGS__)
#define shmem_alltoalls(...)   EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_RMA_CASES, alltoalls, __VA_ARGS__)
#define shmem_and_reduce(...)  EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_BITS_REDUCE_CASES, and_reduce, __VA_ARGS__)
#define shmem_or_reduce(...)   EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_BITS_REDUCE_CASES, or_reduce, __VA_ARGS__)
#define shmem_xor_reduce(...)  EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_BITS_REDUCE_CASES, xor_reduce, __VA_ARGS__)
#define shmem_min_reduce(...)  EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_RMA_CASES, min_reduce, __VA_ARGS__)
#define shmem_max_reduce(...)  EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_RMA_CASES, max_reduce, __VA_ARGS__)
#define shmem_sum_reduce(...)  EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_SUM_CASES, sum_reduce, __VA_ARGS__)
#define shmem_prod_reduce(...) EXPAR_SHMEM_CHOOSE_SECOND(EXPAR_SHMEM_SUM_CASES, prod_reduce, __VA_ARGS__)

/* shmem_sync(team) beside shmem_sync(PE_start, logPE_stride, PE_size, pSync). */
#define shmem_sync(...) EXPAR_SHMEM_SYNC(__VA_ARGS__, shmem_sync, 0, 0, shmem_team_sync, 0)(__VA_ARGS__)
#define EXPAR_SHMEM_SYNC(a, b, c, d, name, ...) name

/* clang-format on */

#endif
