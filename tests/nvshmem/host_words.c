/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics, waits and tests of the host, of every type: on CPUs, and on a GPU's memory where there is one. With the
 * argument "stream" waits of the default stream, too. */
#include "expect.h"
#include "typed.h"

#include <stdbool.h>
#include <string.h>

#define WORDS_EACH 4

static int me, pes, next;
/* Symmetric; begin_words clears it. */
static uint64_t *words;
static bool on_streams;

static void begin_words(void)
{
    static const uint64_t zeros[WORDS_EACH];
    nvshmem_barrier_all();
    nvshmem_putmem(words, zeros, sizeof zeros, me);
    nvshmem_barrier_all();
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

/* On the word of the next PE, which no other PE changes. */
#define SWAPS(T, N)                                                                                                    \
    static void swap_##N(void)                                                                                         \
    {                                                                                                                  \
        T *word = (T *)words;                                                                                          \
        begin_words();                                                                                                 \
        nvshmem_##N##_atomic_set(word, (T)7, next);                                                                    \
        EXPECT(nvshmem_##N##_atomic_fetch(word, next) == (T)7);                                                        \
        EXPECT(nvshmem_##N##_atomic_swap(word, (T)9, next) == (T)7);                                                   \
        EXPECT(nvshmem_##N##_atomic_fetch(word, next) == (T)9);                                                        \
    }
#define CHANGES(T, N)                                                                                                  \
    static void change_##N(void)                                                                                       \
    {                                                                                                                  \
        T *word = (T *)words;                                                                                          \
        begin_words();                                                                                                 \
        nvshmem_##N##_atomic_add(word, (T)5, next);                                                                    \
        EXPECT(nvshmem_##N##_atomic_fetch_add(word, (T)6, next) == (T)5);                                              \
        nvshmem_##N##_atomic_inc(word, next);                                                                          \
        EXPECT(nvshmem_##N##_atomic_fetch_inc(word, next) == (T)12);                                                   \
        EXPECT(nvshmem_##N##_atomic_compare_swap(word, (T)1, (T)2, next) == (T)13);                                    \
        EXPECT(nvshmem_##N##_atomic_compare_swap(word, (T)13, (T)2, next) == (T)13);                                   \
        EXPECT(nvshmem_##N##_atomic_fetch(word, next) == (T)2);                                                        \
        begin_words();                                                                                                 \
        for (int pe = 0; pe < pes; pe++)                                                                               \
            nvshmem_##N##_atomic_add(word, (T)(me + 1), pe);                                                           \
        nvshmem_barrier_all();                                                                                         \
        EXPECT(nvshmem_##N##_atomic_fetch(word, me) == (T)(pes * (pes + 1) / 2));                                      \
    }
#define BITS(T, N)                                                                                                     \
    static void bit_##N(void)                                                                                          \
    {                                                                                                                  \
        T *word = (T *)words;                                                                                          \
        begin_words();                                                                                                 \
        nvshmem_##N##_atomic_or(word, (T)12, next);                                                                    \
        EXPECT(nvshmem_##N##_atomic_fetch_or(word, (T)3, next) == (T)12);                                              \
        nvshmem_##N##_atomic_and(word, (T)14, next);                                                                   \
        EXPECT(nvshmem_##N##_atomic_fetch_and(word, (T)7, next) == (T)14);                                             \
        nvshmem_##N##_atomic_xor(word, (T)1, next);                                                                    \
        EXPECT(nvshmem_##N##_atomic_fetch_xor(word, (T)2, next) == (T)7);                                              \
        EXPECT(nvshmem_##N##_atomic_fetch(word, next) == (T)5);                                                        \
    }
WORDS(SWAPS)
FLOATS(SWAPS)
WORDS(CHANGES)
BIT_WORDS(BITS)

/* ---- waits and tests --------------------------------------------------------------------------------------------- */

/* Each PE writes words 1 and 2 of the next one: its own turns 0, 3, 4, 0. */
#define WAITS(T, N)                                                                                                    \
    static void wait_##N(void)                                                                                         \
    {                                                                                                                  \
        T *word = (T *)words, values[WORDS_EACH] = {0, 3, 4, 1};                                                       \
        const int skip[WORDS_EACH] = {1, 0, 0, 1}, odd[WORDS_EACH] = {0, 1, 0, 0};                                     \
        size_t at[WORDS_EACH];                                                                                         \
        begin_words();                                                                                                 \
        EXPECT(!nvshmem_##N##_test(word, NVSHMEM_CMP_NE, 0));                                                          \
        EXPECT(nvshmem_##N##_test_any(word, WORDS_EACH, NULL, NVSHMEM_CMP_GT, 0) == SIZE_MAX);                         \
        nvshmem_barrier_all();                                                                                         \
        nvshmem_##N##_p(word + 1, 3, next);                                                                            \
        nvshmem_##N##_p(word + 2, 4, next);                                                                            \
        nvshmem_quiet();                                                                                               \
        nvshmem_##N##_wait_until(word + 1, NVSHMEM_CMP_EQ, 3);                                                         \
        nvshmem_##N##_wait_until_all(word, WORDS_EACH, skip, NVSHMEM_CMP_GE, 3);                                       \
        nvshmem_##N##_wait_until_all_vector(word, WORDS_EACH, skip, NVSHMEM_CMP_EQ, values);                           \
        EXPECT(nvshmem_##N##_wait_until_any(word, WORDS_EACH, odd, NVSHMEM_CMP_GT, 0) == 2);                           \
        EXPECT(nvshmem_##N##_wait_until_any_vector(word, WORDS_EACH, skip, NVSHMEM_CMP_LT, (T[]){9, 3, 5, 9}) == 2);   \
        EXPECT(nvshmem_##N##_wait_until_some(word, WORDS_EACH, at, NULL, NVSHMEM_CMP_NE, 0) == 2 && at[1] == 2);       \
        EXPECT(nvshmem_##N##_wait_until_some_vector(word, WORDS_EACH, at, NULL, NVSHMEM_CMP_EQ, values) == 3);         \
        EXPECT(nvshmem_##N##_test(word + 2, NVSHMEM_CMP_LE, 4));                                                       \
        EXPECT(nvshmem_##N##_test_all(word, WORDS_EACH, skip, NVSHMEM_CMP_GE, 3));                                     \
        EXPECT(!nvshmem_##N##_test_all(word, WORDS_EACH, NULL, NVSHMEM_CMP_GE, 3));                                    \
        EXPECT(nvshmem_##N##_test_all_vector(word, WORDS_EACH, skip, NVSHMEM_CMP_EQ, values));                         \
        EXPECT(nvshmem_##N##_test_any(word, WORDS_EACH, skip, NVSHMEM_CMP_EQ, 4) == 2);                                \
        EXPECT(nvshmem_##N##_test_any_vector(word, WORDS_EACH, skip, NVSHMEM_CMP_GT, values) == SIZE_MAX);             \
        EXPECT(nvshmem_##N##_test_some(word, WORDS_EACH, at, NULL, NVSHMEM_CMP_EQ, 3) == 1 && at[0] == 1);             \
        EXPECT(nvshmem_##N##_test_some_vector(word, WORDS_EACH, at, NULL, NVSHMEM_CMP_NE, values) == 1);               \
        EXPECT(at[0] == 3);                                                                                            \
        if (on_streams) nvshmemx_##N##_wait_until_on_stream(word + 2, NVSHMEM_CMP_EQ, 4, NULL);                        \
    }
WAIT_TYPES(WAITS)

#define CALL_SWAP(T, N)   swap_##N();
#define CALL_CHANGE(T, N) change_##N();
#define CALL_BIT(T, N)    bit_##N();
#define CALL_WAIT(T, N)   wait_##N();

int main(int argc, char **argv)
{
    on_streams = argc > 1 && !strcmp(argv[1], "stream");
    EXPECT(nvshmem_my_pe() == -1);
    EXPECT(nvshmemx_init_attr(0, NULL) == 0);
    nvshmem_init(); /* does nothing */
    me = nvshmem_my_pe();
    pes = nvshmem_n_pes();
    next = (me + 1) % pes;
    words = nvshmem_calloc(WORDS_EACH, sizeof *words);
    WORDS(CALL_SWAP)
    FLOATS(CALL_SWAP)
    WORDS(CALL_CHANGE)
    BIT_WORDS(CALL_BIT)
    WAIT_TYPES(CALL_WAIT)
    nvshmem_barrier_all();
    nvshmem_free(words);
    nvshmem_finalize();
    return 0;
}
