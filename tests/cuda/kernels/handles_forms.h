/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of expar/device.h that the other bodies of handles_bodies.h, which includes this file, do not use: each scope,
 * all widths, sets of words and vectors, every atomic. Each rank works on memory of the next one, and nobody else
 * writes there, so every result is known. */
#ifndef TESTS_CUDA_KERNELS_HANDLES_FORMS_H
#define TESTS_CUDA_KERNELS_HANDLES_FORMS_H

/* A function each, since compilers take minutes where all waits are inline. */
#ifdef __CUDACC__
#define FORMS_FUNC static __noinline__ __device__
#else
#define FORMS_FUNC static __attribute__((noinline, unused))
#endif

/* Words of a call, after those of the other bodies. */
enum { FORMS_SIGNAL = 200, FORMS_SET, FORMS_ADDED, FORMS_ATOMIC, FORMS_SINGLE, FORMS_SETS };

/* Returns whether the thread takes part in calls of the scope. */
BODY_FUNC int forms_take_part(int scope)
{
    return scope == EXPAR_DEV_BLOCK || body_thread() == 0 || (scope == EXPAR_DEV_WARP && body_thread() < 32);
}

/* ---- puts, gets and signals -------------------------------------------------------------------------------------- */

enum { FORMS_SHORTS = 51, FORMS_DOUBLES_AT = 104, FORMS_DOUBLES = 20, FORMS_INTS_AT = 400, FORMS_INTS = 9 };
#define FORMS_DOUBLES_END (FORMS_DOUBLES_AT + FORMS_DOUBLES * 8)
/* In `own`, after the source: what comes back. */
#define FORMS_BACK 512

BODY_FUNC void forms_clear_back(const handles_call *c)
{
    for (int i = (int)body_thread(); i < FORMS_DOUBLES_END; i += (int)body_threads())
        c->own[FORMS_BACK + i] = 0;
    body_meet();
}
BODY_FUNC void forms_compare_back(const handles_call *c, int begin, int end)
{
    for (int i = begin; i < end; i++)
        body_expect(c, c->own[FORMS_BACK + i] == c->own[i]);
}

#define FORMS_MOVES(suffix)                                                                                            \
    FORMS_FUNC void forms_moves##suffix(const expar_device_handle *h, const handles_call *c, unsigned char *part,      \
                                        int to, expar_uint64 turn)                                                     \
    {                                                                                                                  \
        unsigned char *const back = c->own + FORMS_BACK;                                                               \
        const int ints = FORMS_INTS_AT;                                                                                \
        expar_uint64 seen = 0;                                                                                         \
        expar_kernel_put_nbi_u16##suffix(h, (expar_uint16 *)part, (const expar_uint16 *)c->own, FORMS_SHORTS, to);     \
        expar_kernel_put_nbi_f64##suffix(h, (double *)(part + FORMS_DOUBLES_AT),                                       \
                                         (const double *)(c->own + FORMS_DOUBLES_AT), FORMS_DOUBLES, to);              \
        body_expect(c, expar_kernel_quiet##suffix(h) == EXPAR_OK);                                                     \
        expar_kernel_get_nbi_u16##suffix(h, (expar_uint16 *)back, (const expar_uint16 *)part, FORMS_SHORTS, to);       \
        expar_kernel_get_nbi##suffix(h, back + FORMS_DOUBLES_AT, part + FORMS_DOUBLES_AT, FORMS_DOUBLES * 8, to);      \
        body_expect(c, expar_kernel_quiet##suffix(h) == EXPAR_OK);                                                     \
        forms_compare_back(c, 0, FORMS_SHORTS * 2);                                                                    \
        forms_compare_back(c, FORMS_DOUBLES_AT, FORMS_DOUBLES_END);                                                    \
        expar_kernel_put_signal_nbi_i32##suffix(h, (expar_int32 *)(part + ints), (const expar_int32 *)c->own,          \
                                                FORMS_INTS, c->words + FORMS_SIGNAL, turn, EXPAR_SIGNAL_SET, to);      \
        expar_kernel_fence##suffix(h);                                                                                 \
        expar_kernel_signal_op##suffix(h, c->words + FORMS_SET, turn, EXPAR_SIGNAL_SET, to);                           \
        expar_kernel_signal_op##suffix(h, c->words + FORMS_ADDED, 1, EXPAR_SIGNAL_ADD, to);                            \
        expar_kernel_wait_until_u64##suffix(h, c->words + FORMS_ADDED, EXPAR_CMP_GE, turn, 0);                         \
        expar_kernel_signal_wait_until##suffix(h, c->words + FORMS_SET, EXPAR_CMP_GE, turn, &seen);                    \
        body_expect(c, seen == turn);                                                                                  \
        /* The fence was between them, so both signals and the data before it are here. */                             \
        body_expect(c, expar_kernel_signal_fetch(h, c->words + FORMS_SIGNAL) == turn);                                 \
        body_expect(c, expar_kernel_quiet##suffix(h) == EXPAR_OK);                                                     \
        expar_kernel_get_i32##suffix(h, (expar_int32 *)back, (const expar_int32 *)(part + ints), FORMS_INTS, to);      \
        forms_compare_back(c, 0, FORMS_INTS * 4);                                                                      \
    }
FORMS_MOVES()
FORMS_MOVES(_warp)
FORMS_MOVES(_block)

/* One element of every type, at rank `to` and back. */
#define FORMS_SINGLE_OF(T, S, W)                                                                                       \
    FORMS_FUNC void forms_single_##S(const expar_device_handle *h, const handles_call *c, int to)                      \
    {                                                                                                                  \
        T *const at = (T *)(void *)(c->words + FORMS_SINGLE);                                                          \
        const T value = (T)((T)(0 - (T)113) / (T)2);                                                                   \
        expar_kernel_p_##S(h, at, value, to);                                                                          \
        body_expect(c, expar_kernel_quiet(h) == EXPAR_OK);                                                             \
        body_expect(c, expar_kernel_g_##S(h, at, to) == value);                                                        \
    }
EXPAR_DEV_DATA_TYPES(FORMS_SINGLE_OF)

BODY_FUNC void forms_moves_in(const expar_device_handle *h, const handles_call *c, int to)
{
    unsigned char *part = c->data + (expar_uint64)expar_kernel_my_pe(h) * c->bytes;
    for (int round = 1; round <= c->rounds; round++) {
        for (int i = (int)body_thread(); i < FORMS_BACK; i += (int)body_threads())
            c->own[i] = handles_byte(expar_kernel_my_pe(h), round, (expar_uint64)i);
        forms_clear_back(c);
        if (c->scope == EXPAR_DEV_BLOCK) forms_moves_block(h, c, part, to, (expar_uint64)round);
        if (c->scope == EXPAR_DEV_WARP && forms_take_part(c->scope))
            forms_moves_warp(h, c, part, to, (expar_uint64)round);
        if (c->scope == EXPAR_DEV_THREAD && forms_take_part(c->scope)) forms_moves(h, c, part, to, (expar_uint64)round);
        expar_kernel_barrier_block(h);
    }
#define FORMS_CALL_SINGLE(T, S, W) forms_single_##S(h, c, to);
    if (body_thread() == 0) {
        EXPAR_DEV_DATA_TYPES(FORMS_CALL_SINGLE)
    }
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

/* Those without a result may overtake each other, so each is completed. The upper bits of a word take part. */
#define FORMS_COMPLETE body_expect(c, expar_kernel_quiet(h) == EXPAR_OK)
#define FORMS_ATOMICS(T, S, W)                                                                                         \
    FORMS_FUNC void forms_atomics_##S(const expar_device_handle *h, const handles_call *c, int to)                     \
    {                                                                                                                  \
        T *const at = (T *)(void *)(c->words + FORMS_ATOMIC);                                                          \
        const T high = (T)((T)1 << (W - 2));                                                                           \
        expar_kernel_atomic_set_##S(h, at, (T)(high | 5), to);                                                         \
        FORMS_COMPLETE;                                                                                                \
        body_expect(c, expar_kernel_atomic_swap_##S(h, at, (T)(high | 9), to) == (T)(high | 5));                       \
        body_expect(c,                                                                                                 \
                    expar_kernel_atomic_compare_swap_##S(h, at, (T)(high | 9), (T)(high | 12), to) == (T)(high | 9));  \
        body_expect(c, expar_kernel_atomic_compare_swap_##S(h, at, (T)(high | 9), 1, to) == (T)(high | 12));           \
        body_expect(c, expar_kernel_atomic_fetch_or_##S(h, at, 3, to) == (T)(high | 12));                              \
        expar_kernel_atomic_or_##S(h, at, 16, to);                                                                     \
        FORMS_COMPLETE;                                                                                                \
        body_expect(c, expar_kernel_atomic_fetch_and_##S(h, at, (T) ~(T)1, to) == (T)(high | 31));                     \
        expar_kernel_atomic_and_##S(h, at, (T)(high | 24), to);                                                        \
        FORMS_COMPLETE;                                                                                                \
        body_expect(c, expar_kernel_atomic_fetch_xor_##S(h, at, 25, to) == (T)(high | 24));                            \
        expar_kernel_atomic_xor_##S(h, at, 7, to);                                                                     \
        FORMS_COMPLETE;                                                                                                \
        body_expect(c, expar_kernel_atomic_fetch_inc_##S(h, at, to) == (T)(high | 6));                                 \
        expar_kernel_atomic_inc_##S(h, at, to);                                                                        \
        FORMS_COMPLETE;                                                                                                \
        body_expect(c, expar_kernel_atomic_fetch_add_##S(h, at, (T)(0 - (T)3), to) == (T)(high | 8));                  \
        expar_kernel_atomic_add_##S(h, at, 2, to);                                                                     \
        FORMS_COMPLETE;                                                                                                \
        body_expect(c, expar_kernel_atomic_fetch_##S(h, at, to) == (T)(high | 7));                                     \
    }
EXPAR_DEV_WORD_TYPES(FORMS_ATOMICS)

#define FORMS_FLOATS(T, S, W)                                                                                          \
    FORMS_FUNC void forms_atomics_##S(const expar_device_handle *h, const handles_call *c, int to)                     \
    {                                                                                                                  \
        T *const at = (T *)(void *)(c->words + FORMS_ATOMIC);                                                          \
        expar_kernel_atomic_set_##S(h, at, (T)-1.5, to);                                                               \
        FORMS_COMPLETE;                                                                                                \
        body_expect(c, expar_kernel_atomic_swap_##S(h, at, (T)2.25, to) == (T)-1.5);                                   \
        body_expect(c, expar_kernel_atomic_fetch_##S(h, at, to) == (T)2.25);                                           \
    }
EXPAR_DEV_FLOAT_TYPES(FORMS_FLOATS)

BODY_FUNC void forms_atomics_in(const expar_device_handle *h, const handles_call *c, int to)
{
#define FORMS_CALL_ATOMICS(T, S, W) forms_atomics_##S(h, c, to);
    if (body_thread() != 0) return;
    EXPAR_DEV_WORD_TYPES(FORMS_CALL_ATOMICS)
    EXPAR_DEV_FLOAT_TYPES(FORMS_CALL_ATOMICS)
}

/* ---- sets of words ----------------------------------------------------------------------------------------------- */

/* In `own`, whose threads share it. Words 0 and 6 take no part. Signed words compare with 5 otherwise than unsigned
   ones, since the first three values are negative. */
enum { FORMS_WORDS = 8, FORMS_SKIP_AT = 128, FORMS_INDICES_AT = 192, FORMS_PART = 6 };
#define FORMS_VALUE(T, i)  ((T)((i)*5 - 12))
#define FORMS_IS_SIGNED(T) ((T) ~(T)0 < (T)1)
/* Words above 5 that take part. */
#define FORMS_ABOVE(T) (FORMS_IS_SIGNED(T) ? 3u : 5u)

/* Before the words are sent, nothing holds. */
#define FORMS_SETS_BEFORE(T, S, suffix)                                                                                \
    FORMS_FUNC void forms_before_##S##suffix(const expar_device_handle *h, const handles_call *c)                      \
    {                                                                                                                  \
        const T *const words = (const T *)(void *)(c->words + FORMS_SETS), *const values = (const T *)(void *)c->own;  \
        const int *const skip = (const int *)(void *)(c->own + FORMS_SKIP_AT);                                         \
        expar_size *const indices = (expar_size *)(void *)(c->own + FORMS_INDICES_AT), index = 77, number = 77;        \
        int holds = 77;                                                                                                \
        body_expect(c, expar_kernel_test_##S##suffix(h, words + 3, EXPAR_CMP_NE, 0, &holds) == 0 && holds == 0);       \
        holds = 77;                                                                                                    \
        expar_kernel_test_all_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_NE, 0, &holds);                       \
        body_expect(c, holds == 0);                                                                                    \
        holds = 77;                                                                                                    \
        expar_kernel_test_all_vector_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_EQ, values, &holds);           \
        body_expect(c, holds == 0);                                                                                    \
        expar_kernel_test_any_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_NE, 0, &index);                       \
        body_expect(c, index == EXPAR_DEVICE_NO_INDEX);                                                                \
        index = 77;                                                                                                    \
        expar_kernel_test_any_vector_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_EQ, values, &index);           \
        body_expect(c, index == EXPAR_DEVICE_NO_INDEX);                                                                \
        expar_kernel_test_some_##S##suffix(h, words, FORMS_WORDS, indices, skip, EXPAR_CMP_NE, 0, &number);            \
        body_expect(c, number == 0);                                                                                   \
        number = 77;                                                                                                   \
        expar_kernel_test_some_vector_##S##suffix(h, words, FORMS_WORDS, indices, skip, EXPAR_CMP_EQ, values,          \
                                                  &number);                                                            \
        body_expect(c, number == 0);                                                                                   \
    }
/* While they come. */
#define FORMS_SETS_WAITS(T, S, suffix)                                                                                 \
    FORMS_FUNC void forms_wait_##S##suffix(const expar_device_handle *h, const handles_call *c)                        \
    {                                                                                                                  \
        const T *const words = (const T *)(void *)(c->words + FORMS_SETS), *const values = (const T *)(void *)c->own;  \
        const int *const skip = (const int *)(void *)(c->own + FORMS_SKIP_AT);                                         \
        expar_size *const indices = (expar_size *)(void *)(c->own + FORMS_INDICES_AT), index = 77, number = 77;        \
        T seen = 0;                                                                                                    \
        int status = expar_kernel_wait_until_any_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_NE, 0, &index);    \
        body_expect(c, status == EXPAR_OK && index < FORMS_WORDS && !skip[index]);                                     \
        status =                                                                                                       \
            expar_kernel_wait_until_some_##S##suffix(h, words, FORMS_WORDS, indices, skip, EXPAR_CMP_NE, 0, &number);  \
        body_expect(c, status == EXPAR_OK && number >= 1 && number <= FORMS_PART && !skip[indices[0]]);                \
        status = expar_kernel_wait_until_##S##suffix(h, words + 3, EXPAR_CMP_GE, FORMS_VALUE(T, 3), &seen);            \
        body_expect(c, status == EXPAR_OK && seen == FORMS_VALUE(T, 3));                                               \
        status =                                                                                                       \
            expar_kernel_wait_until_any_vector_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_EQ, values, &index); \
        body_expect(c, status == EXPAR_OK && index < FORMS_WORDS && !skip[index]);                                     \
        status = expar_kernel_wait_until_all_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_NE, 0);                \
        body_expect(c, status == EXPAR_OK);                                                                            \
        status = expar_kernel_wait_until_all_vector_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_EQ, values);    \
        body_expect(c, status == EXPAR_OK);                                                                            \
        status = expar_kernel_wait_until_some_vector_##S##suffix(h, words, FORMS_WORDS, indices, skip, EXPAR_CMP_EQ,   \
                                                                 values, &number);                                     \
        body_expect(c, status == EXPAR_OK && number == FORMS_PART && indices[0] == 1 && indices[5] == 7);              \
    }
/* When they have come. */
#define FORMS_SETS_AFTER(T, S, suffix)                                                                                 \
    FORMS_FUNC void forms_after_##S##suffix(const expar_device_handle *h, const handles_call *c)                       \
    {                                                                                                                  \
        const T *const words = (const T *)(void *)(c->words + FORMS_SETS), *const values = (const T *)(void *)c->own;  \
        const int *const skip = (const int *)(void *)(c->own + FORMS_SKIP_AT);                                         \
        expar_size *const indices = (expar_size *)(void *)(c->own + FORMS_INDICES_AT), index = 77, number = 77;        \
        int holds = 77;                                                                                                \
        body_expect(c, expar_kernel_test_##S##suffix(h, words + 1, EXPAR_CMP_LT, 1, &holds) == 0);                     \
        body_expect(c, holds == FORMS_IS_SIGNED(T));                                                                   \
        expar_kernel_test_##S##suffix(h, words + 1, EXPAR_CMP_GT, (T)(0 - (T)8), &holds);                              \
        body_expect(c, holds == 1); /* -7 > -8 */                                                                      \
        holds = 77;                                                                                                    \
        expar_kernel_test_all_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_NE, 0, &holds);                       \
        body_expect(c, holds == 1);                                                                                    \
        holds = 77;                                                                                                    \
        expar_kernel_test_all_vector_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_LE, values, &holds);           \
        body_expect(c, holds == 1);                                                                                    \
        expar_kernel_test_any_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_EQ, FORMS_VALUE(T, 5), &index);       \
        body_expect(c, index == 5);                                                                                    \
        expar_kernel_test_any_vector_##S##suffix(h, words, FORMS_WORDS, skip, EXPAR_CMP_GE, values, &index);           \
        body_expect(c, index == 1);                                                                                    \
        expar_kernel_test_some_##S##suffix(h, words, FORMS_WORDS, indices, skip, EXPAR_CMP_GT, 5, &number);            \
        body_expect(c, number == FORMS_ABOVE(T) && indices[FORMS_ABOVE(T) - 1] == 7);                                  \
        body_expect(c, number == FORMS_ABOVE(T) && indices[0] == (FORMS_IS_SIGNED(T) ? 4u : 1u));                      \
        number = 77;                                                                                                   \
        expar_kernel_test_some_vector_##S##suffix(h, words, FORMS_WORDS, indices, skip, EXPAR_CMP_EQ, values,          \
                                                  &number);                                                            \
        body_expect(c, number == FORMS_PART && indices[0] == 1);                                                       \
    }
#define FORMS_SETS_OF(T, S, suffix, scope)                                                                             \
    FORMS_SETS_BEFORE(T, S, suffix)                                                                                    \
    FORMS_SETS_WAITS(T, S, suffix)                                                                                     \
    FORMS_SETS_AFTER(T, S, suffix)                                                                                     \
    FORMS_FUNC void forms_sets_##S##suffix(const expar_device_handle *h, const handles_call *c, int to)                \
    {                                                                                                                  \
        T *const words = (T *)(void *)(c->words + FORMS_SETS), *const values = (T *)(void *)c->own;                    \
        int *const skip = (int *)(void *)(c->own + FORMS_SKIP_AT);                                                     \
        for (int i = 0; body_thread() == 0 && i < FORMS_WORDS; i++) {                                                  \
            values[i] = FORMS_VALUE(T, i);                                                                             \
            skip[i] = i % 6 == 0;                                                                                      \
        }                                                                                                              \
        body_meet();                                                                                                   \
        if (forms_take_part(scope)) forms_before_##S##suffix(h, c);                                                    \
        expar_kernel_barrier_block(h);                                                                                 \
        for (int i = FORMS_WORDS - 1; body_thread() == 0 && i >= 0; i--)                                               \
            expar_kernel_p_##S(h, words + i, FORMS_VALUE(T, i), to);                                                   \
        body_meet();                                                                                                   \
        if (forms_take_part(scope)) forms_wait_##S##suffix(h, c);                                                      \
        if (forms_take_part(scope)) forms_after_##S##suffix(h, c);                                                     \
        expar_kernel_barrier_block(h);                                                                                 \
        for (int i = 0; body_thread() == 0 && i < FORMS_WORDS; i++)                                                    \
            expar_kernel_p_##S(h, words + i, 0, expar_kernel_my_pe(h));                                                \
        body_meet();                                                                                                   \
    }
/* The narrowest words and the widest in each scope, the others in one. */
FORMS_SETS_OF(expar_int16, i16, , EXPAR_DEV_THREAD)
FORMS_SETS_OF(expar_uint64, u64, , EXPAR_DEV_THREAD)
FORMS_SETS_OF(expar_uint32, u32, , EXPAR_DEV_THREAD)
FORMS_SETS_OF(expar_int16, i16, _warp, EXPAR_DEV_WARP)
FORMS_SETS_OF(expar_uint64, u64, _warp, EXPAR_DEV_WARP)
FORMS_SETS_OF(expar_int64, i64, _warp, EXPAR_DEV_WARP)
FORMS_SETS_OF(expar_uint16, u16, _block, EXPAR_DEV_BLOCK)
FORMS_SETS_OF(expar_int64, i64, _block, EXPAR_DEV_BLOCK)
FORMS_SETS_OF(expar_int32, i32, _block, EXPAR_DEV_BLOCK)

BODY_FUNC void forms_sets_in(const expar_device_handle *h, const handles_call *c, int to)
{
    if (c->scope == EXPAR_DEV_THREAD) {
        forms_sets_i16(h, c, to);
        forms_sets_u64(h, c, to);
        forms_sets_u32(h, c, to);
    } else if (c->scope == EXPAR_DEV_WARP) {
        forms_sets_i16_warp(h, c, to);
        forms_sets_u64_warp(h, c, to);
        forms_sets_i64_warp(h, c, to);
    } else {
        forms_sets_u16_block(h, c, to);
        forms_sets_i64_block(h, c, to);
        forms_sets_i32_block(h, c, to);
    }
}

BODY_FUNC void body_forms(const expar_device_handle *h, const handles_call *c)
{
    const int to = (expar_kernel_my_pe(h) + 1) % expar_kernel_n_pes(h);
    if (c->with == HANDLES_FORMS_MOVES) forms_moves_in(h, c, to);
    if (c->with == HANDLES_FORMS_ATOMICS) forms_atomics_in(h, c, to);
    if (c->with == HANDLES_FORMS_SETS) forms_sets_in(h, c, to);
    body_meet();
    c->status[body_thread()] = expar_kernel_barrier_block(h);
}

#endif
