/* SPDX-License-Identifier: Apache-2.0 */
/* Every atomic of every type, by name and by type, with a context and without: each PE changes a word
 * of the next one. */
#include "forms.h"

static uint64_t there;

/* Whatever is not fetching is complete, and seen by what follows, after a quiet. */
#define DEFINE_SWAP_CHECK(T, N, form, CALL)                                                                            \
    static void check_swap_##N##_##form(shmem_ctx_t ctx, int next)                                                     \
    {                                                                                                                  \
        T *word = (T *)(void *)&there, old = 0;                                                                        \
        const T a = (T)-fresh(), b = (T)fresh(), c = (T)fresh();                                                       \
        CALL(N, atomic_set, word, a, next);                                                                            \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(CALL(N, atomic_fetch, word, next) == a);                                                                \
        EXPECT(CALL(N, atomic_swap, word, b, next) == a);                                                              \
        CALL(N, atomic_fetch_nbi, &old, word, next);                                                                   \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(old == b);                                                                                              \
        CALL(N, atomic_swap_nbi, &old, word, c, next);                                                                 \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(old == b && CALL(N, atomic_fetch, word, next) == c);                                                    \
    }
/* A plain operation, its fetching form, and that which gives the value later; `expected`: what becomes of was. */
#define CHECK_OPERATION(T, N, CALL, operation, operand, expected)                                                      \
    was = shmem_##N##_atomic_fetch(word, next);                                                                        \
    CALL(N, atomic_##operation, word, operand, next);                                                                  \
    shmem_ctx_quiet(ctx);                                                                                              \
    was = (T)(expected);                                                                                               \
    EXPECT(CALL(N, atomic_fetch_##operation, word, operand, next) == was);                                             \
    was = (T)(expected);                                                                                               \
    CALL(N, atomic_fetch_##operation##_nbi, &old, word, operand, next);                                                \
    shmem_ctx_quiet(ctx);                                                                                              \
    EXPECT(old == was && shmem_##N##_atomic_fetch(word, next) == (T)(expected));
#define DEFINE_WORD_CHECK(T, N, form, CALL)                                                                            \
    static void check_word_##N##_##form(shmem_ctx_t ctx, int next)                                                     \
    {                                                                                                                  \
        T *word = (T *)(void *)&there, old = 0, was;                                                                   \
        const T a = (T)-2, b = (T)fresh(), c = (T)fresh();                                                             \
        shmem_##N##_atomic_swap(word, a, next);                                                                        \
        CALL(N, atomic_inc, word, next);                                                                               \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(CALL(N, atomic_fetch_inc, word, next) == (T)-1);                                                        \
        CALL(N, atomic_fetch_inc_nbi, &old, word, next);                                                               \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(old == 0 && shmem_##N##_atomic_fetch(word, next) == 1);                                                 \
        CHECK_OPERATION(T, N, CALL, add, a, (uint64_t)was + (uint64_t)a)                                               \
        was = shmem_##N##_atomic_fetch(word, next);                                                                    \
        EXPECT(CALL(N, atomic_compare_swap, word, (T)(was + 1), b, next) == was);                                      \
        EXPECT(CALL(N, atomic_compare_swap, word, was, b, next) == was);                                               \
        CALL(N, atomic_compare_swap_nbi, &old, word, b, c, next);                                                      \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(old == b && shmem_##N##_atomic_fetch(word, next) == c);                                                 \
    }
#define DEFINE_BITS_CHECK(T, N, form, CALL)                                                                            \
    static void check_bits_##N##_##form(shmem_ctx_t ctx, int next)                                                     \
    {                                                                                                                  \
        T *word = (T *)(void *)&there, old = 0, was;                                                                   \
        const T a = (T)UINT64_C(0xf0f0f0f0a5a5a5a5), b = (T)UINT64_C(0x0ff00ff03c3c3c3c);                              \
        shmem_##N##_atomic_swap(word, a, next);                                                                        \
        CHECK_OPERATION(T, N, CALL, or, b, was | b)                                                                    \
        CHECK_OPERATION(T, N, CALL, xor, a, was ^ a)                                                                   \
        CHECK_OPERATION(T, N, CALL, and, a, was &a)                                                                    \
    }
#define DEFINE_SWAP_CHECKS(T, N) FOUR(DEFINE_SWAP_CHECK, T, N)
#define DEFINE_WORD_CHECKS(T, N) FOUR(DEFINE_WORD_CHECK, T, N)
#define DEFINE_BITS_CHECKS(T, N) FOUR(DEFINE_BITS_CHECK, T, N)
REAL_TYPES(DEFINE_SWAP_CHECKS)
WORD_TYPES(DEFINE_SWAP_CHECKS)
WORD_TYPES(DEFINE_WORD_CHECKS)
BITS_AMO_TYPES(DEFINE_BITS_CHECKS)

#define RUN(kind, N)                                                                                                   \
    check_##kind##_##N##_name(SHMEM_CTX_DEFAULT, next);                                                                \
    check_##kind##_##N##_type(SHMEM_CTX_DEFAULT, next);                                                                \
    check_##kind##_##N##_name_ctx(ctx, next);                                                                          \
    check_##kind##_##N##_type_ctx(ctx, next);
#define RUN_SWAP(T, N) RUN(swap, N)
#define RUN_WORD(T, N) RUN(word, N)
#define RUN_BITS(T, N) RUN(bits, N)

int main(void)
{
    shmem_init();
    shmem_ctx_t ctx;
    const int next = (shmem_my_pe() + 1) % shmem_n_pes();
    EXPECT(shmem_ctx_create(0, &ctx) == 0);
    REAL_TYPES(RUN_SWAP)
    WORD_TYPES(RUN_SWAP)
    WORD_TYPES(RUN_WORD)
    BITS_AMO_TYPES(RUN_BITS)
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return 0;
}
