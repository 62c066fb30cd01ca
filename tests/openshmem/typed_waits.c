/* SPDX-License-Identifier: Apache-2.0 */
/* Every wait and test of every type, by name and by type: on a word that the PE before sets, and on
 * some that are set. */
#include "forms.h"

enum { WORDS = 4 };

static uint64_t flag, words[WORDS];
static int rounds;
/* The second word does not count. */
static const int status[WORDS] = {0, 1, 0, 0};

/* Words hold 0, 1, 2, 3. */
#define DEFINE_CHECK(T, N, form, CALL)                                                                                 \
    static void check_##N##_##form(int next)                                                                           \
    {                                                                                                                  \
        T *own = (T *)(void *)words, *all = own + 2, *none = own, values[WORDS] = {0, 7, 2, 3}, wrong[WORDS];          \
        size_t found[WORDS];                                                                                           \
        const T minus = (T)-1;                                                                                         \
        for (int i = 0; i < WORDS; i++) {                                                                              \
            own[i] = (T)i;                                                                                             \
            wrong[i] = (T)(i + 1);                                                                                     \
        }                                                                                                              \
        shmem_##N##_p((T *)(void *)&flag, (T)++rounds, next);                                                          \
        CALL(N, wait_until, (T *)(void *)&flag, SHMEM_CMP_EQ, (T)rounds);                                              \
        EXPECT(CALL(N, test, &own[1], SHMEM_CMP_EQ, 1) && !CALL(N, test, &own[1], SHMEM_CMP_EQ, 2));                   \
        EXPECT(CALL(N, test, &own[1], SHMEM_CMP_NE, 2) && !CALL(N, test, &own[1], SHMEM_CMP_NE, 1));                   \
        EXPECT(CALL(N, test, &own[1], SHMEM_CMP_GT, 0) && !CALL(N, test, &own[1], SHMEM_CMP_GT, 1));                   \
        EXPECT(CALL(N, test, &own[1], SHMEM_CMP_GE, 1) && !CALL(N, test, &own[1], SHMEM_CMP_GE, 2));                   \
        EXPECT(CALL(N, test, &own[1], SHMEM_CMP_LT, 2) && !CALL(N, test, &own[1], SHMEM_CMP_LT, 1));                   \
        EXPECT(CALL(N, test, &own[1], SHMEM_CMP_LE, 1) && !CALL(N, test, &own[1], SHMEM_CMP_LE, 0));                   \
        EXPECT(CALL(N, test, &own[1], SHMEM_CMP_GT, minus) == (1 > minus));                                            \
        CALL(N, wait_until_all, all, 2, NULL, SHMEM_CMP_GE, 2);                                                        \
        EXPECT(CALL(N, test_all, all, 2, NULL, SHMEM_CMP_GE, 2) && !CALL(N, test_all, own, 4, NULL, SHMEM_CMP_GE, 1)); \
        EXPECT(CALL(N, wait_until_any, own, WORDS, status, SHMEM_CMP_EQ, 2) == 2);                                     \
        EXPECT(CALL(N, test_any, own, WORDS, NULL, SHMEM_CMP_EQ, 3) == 3);                                             \
        EXPECT(CALL(N, test_any, own, WORDS, status, SHMEM_CMP_EQ, 1) == SIZE_MAX);                                    \
        EXPECT(CALL(N, wait_until_some, own, WORDS, found, status, SHMEM_CMP_GE, 1) == 2);                             \
        EXPECT(found[0] + found[1] == 5);                                                                              \
        EXPECT(CALL(N, test_some, own, WORDS, found, status, SHMEM_CMP_LE, 2) == 2 && found[0] + found[1] == 2);       \
        EXPECT(CALL(N, test_some, none, 1, found, NULL, SHMEM_CMP_NE, 0) == 0);                                        \
        CALL(N, wait_until_all_vector, own, WORDS, status, SHMEM_CMP_EQ, values);                                      \
        EXPECT(CALL(N, test_all_vector, own, WORDS, status, SHMEM_CMP_EQ, values));                                    \
        EXPECT(!CALL(N, test_all_vector, own, WORDS, NULL, SHMEM_CMP_EQ, values));                                     \
        EXPECT(CALL(N, wait_until_any_vector, own, WORDS, status, SHMEM_CMP_EQ, values) != 1);                         \
        EXPECT(CALL(N, test_any_vector, own, WORDS, NULL, SHMEM_CMP_NE, values) == 1);                                 \
        EXPECT(CALL(N, test_any_vector, own, WORDS, NULL, SHMEM_CMP_GE, wrong) == SIZE_MAX);                           \
        EXPECT(CALL(N, wait_until_some_vector, own, WORDS, found, status, SHMEM_CMP_LT, wrong) == 3);                  \
        EXPECT(CALL(N, test_some_vector, own, WORDS, found, NULL, SHMEM_CMP_EQ, values) == 3);                         \
        EXPECT(found[0] + found[1] + found[2] == 5);                                                                   \
        shmem_barrier_all();                                                                                           \
    }
#define DEFINE_CHECKS(T, N) TWO(DEFINE_CHECK, T, N)
WAIT_TYPES(DEFINE_CHECKS)

#define RUN(T, N)                                                                                                      \
    check_##N##_name(next);                                                                                            \
    check_##N##_type(next);

int main(void)
{
    shmem_init();
    const int next = (shmem_my_pe() + 1) % shmem_n_pes();
    WAIT_TYPES(RUN)
    shmem_finalize();
    return 0;
}
