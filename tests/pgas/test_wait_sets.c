/* SPDX-License-Identifier: Apache-2.0 */
/* Waits and tests over sets of words: all, any, some, with words left out and one value a word. */
#include "shmem/kind.h"

#define WORDS 6

/* ---- answers for words that stand still -------------------------------------------------------------------------- */

/* Words 0 … 5 hold -2 … 3; the unsigned types wrap, which the comparisons must follow. */
#define CHECK_STILL(T, S)                                                                                              \
    static void check_still_##S(expar_group *group)                                                                    \
    {                                                                                                                  \
        const bool is_signed = (T)-1 < (T)1;                                                                           \
        const int skip_negative[WORDS] = {1, 1}, skip_all[WORDS] = {1, 1, 1, 1, 1, 1};                                 \
        T *words, values[WORDS];                                                                                       \
        size_t indices[WORDS], found = 99, index = 99;                                                                 \
        int holds = 9;                                                                                                 \
        CHECK_OK(expar_malloc(group, WORDS * sizeof *words, (void **)&words));                                         \
        for (int i = 0; i < WORDS; i++)                                                                                \
            words[i] = values[i] = (T)(i - 2);                                                                         \
        CHECK_OK(expar_test_##S(group, &words[0], EXPAR_CMP_LT, 0, &holds));                                           \
        CHECK(holds == is_signed, #S ": -2 < 0 gave %d", holds);                                                       \
        CHECK_OK(expar_test_all_##S(group, words, WORDS, NULL, EXPAR_CMP_LE, 3, &holds));                              \
        CHECK(holds == is_signed, #S ": all <= 3 gave %d", holds);                                                     \
        CHECK_OK(expar_test_all_##S(group, words, WORDS, skip_negative, EXPAR_CMP_LE, 3, &holds));                     \
        CHECK(holds == 1, #S ": those not negative <= 3 gave %d", holds);                                              \
        CHECK_OK(expar_wait_until_all_##S(group, words, WORDS, skip_negative, EXPAR_CMP_LT, 4));                       \
        CHECK_OK(expar_wait_until_all_vector_##S(group, words, WORDS, NULL, EXPAR_CMP_EQ, values));                    \
        CHECK_OK(expar_test_some_##S(group, words, WORDS, indices, NULL, EXPAR_CMP_GT, 1, &found));                    \
        CHECK(found == (is_signed ? 2 : 4), #S ": %zu words > 1", found);                                              \
        CHECK(indices[found - 1] == 5 && indices[0] == (is_signed ? 4 : 0), #S ": which words > 1");                   \
        CHECK_OK(expar_test_any_##S(group, words, WORDS, NULL, EXPAR_CMP_EQ, 2, &index));                              \
        CHECK(index == 4, #S ": word %zu is 2", index);                                                                \
        CHECK_OK(expar_test_any_##S(group, words, WORDS, NULL, EXPAR_CMP_EQ, 7, &index));                              \
        CHECK(index == EXPAR_NO_INDEX, #S ": word %zu is 7", index);                                                   \
        values[3] = 9;                                                                                                 \
        CHECK_OK(expar_test_all_vector_##S(group, words, WORDS, NULL, EXPAR_CMP_EQ, values, &holds));                  \
        CHECK(holds == 0, #S ": word 3 is not 9");                                                                     \
        CHECK_OK(expar_test_any_vector_##S(group, words, WORDS, NULL, EXPAR_CMP_NE, values, &index));                  \
        CHECK(index == 3, #S ": word %zu differs", index);                                                             \
        CHECK_OK(expar_test_some_vector_##S(group, words, WORDS, indices, NULL, EXPAR_CMP_NE, values, &found));        \
        CHECK(found == 1 && indices[0] == 3, #S ": some differ");                                                      \
        CHECK_OK(expar_wait_until_any_vector_##S(group, words, WORDS, NULL, EXPAR_CMP_NE, values, &index));            \
        CHECK(index == 3, #S ": the wait found word %zu", index);                                                      \
        CHECK_OK(expar_wait_until_some_vector_##S(group, words, WORDS, indices, NULL, EXPAR_CMP_NE, values, &found));  \
        CHECK(found == 1 && indices[0] == 3, #S ": the wait found %zu", found);                                        \
        CHECK_OK(expar_wait_until_any_##S(group, words, WORDS, skip_all, EXPAR_CMP_EQ, 0, &index));                    \
        CHECK(index == EXPAR_NO_INDEX, #S ": nothing to look at");                                                     \
        CHECK_OK(expar_wait_until_some_##S(group, NULL, 0, NULL, NULL, EXPAR_CMP_EQ, 0, &found));                      \
        CHECK(found == 0, #S ": no words");                                                                            \
        CHECK_OK(expar_wait_until_all_##S(group, NULL, 0, NULL, EXPAR_CMP_EQ, 0));                                     \
        CHECK_OK(expar_free(group, words));                                                                            \
    }
EXPAR_WAIT_TYPES(CHECK_STILL)

static void still(expar_group *group, void *shared)
{
    (void)shared;
#define RUN_STILL(T, S) check_still_##S(group);
    EXPAR_WAIT_TYPES(RUN_STILL)
}

static void test_still(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, still);
}

/* ---- words that others set --------------------------------------------------------------------------------------- */

/* Rank 0 waits for one word of each other rank, whichever comes first, until it has seen them all. */
static void collect_any(expar_group *group, int64_t *words)
{
    int skip[16] = {1};
    for (int32_t left = group->size - 1; left > 0; left--) {
        size_t index = 99;
        if (!CHECK_OK(expar_wait_until_any_i64(group, words, (size_t)group->size, skip, EXPAR_CMP_NE, 0, &index)))
            return;
        CHECK(index > 0 && index < (size_t)group->size && !skip[index], "word %zu was found", index);
        CHECK(words[index] == -(int64_t)index, "word %zu holds %lld", index, (long long)words[index]);
        skip[index] = 1;
    }
}

static void collect_some(expar_group *group, int64_t *words)
{
    int skip[16] = {1};
    size_t indices[16], found = 0;
    for (size_t left = (size_t)group->size - 1; left > 0; left -= found) {
        if (!CHECK_OK(
                expar_wait_until_some_i64(group, words, (size_t)group->size, indices, skip, EXPAR_CMP_LT, 0, &found)))
            return;
        CHECK(found > 0 && found <= left, "%zu words were found of %zu", found, left);
        for (size_t i = 0; i < found; i++)
            skip[indices[i]] = 1;
    }
}

static void moving(expar_group *group, void *shared)
{
    (void)shared;
    enum { ROUNDS = 200 };
    int64_t *words, values[16];
    CHECK_OK(expar_calloc(group, 16, sizeof *words, (void **)&words));
    for (int r = 0; r < 16; r++)
        values[r] = -r;
    for (int round = 0; round < ROUNDS && check_failures() == 0; round++) {
        if (group->rank > 0)
            CHECK_OK(expar_p_i64(group, &words[group->rank], -group->rank, 0));
        else if (round % 3 == 0)
            collect_any(group, words);
        else if (round % 3 == 1)
            collect_some(group, words);
        else
            CHECK_OK(expar_wait_until_all_vector_i64(group, words, (size_t)group->size, NULL, EXPAR_CMP_EQ, values));
        CHECK_OK(expar_barrier_all(group));
        if (group->rank == 0) memset(words, 0, 16 * sizeof *words);
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK_OK(expar_free(group, words));
}

static void test_moving(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, moving);
}

/* A word of 16 bits tells of the data before it, as wider ones do. */
static void short_flag(expar_group *group, void *shared)
{
    (void)shared;
    enum { ROUNDS = 200, DATA = 3 };
    const int32_t next = (group->rank + 1) % group->size;
    int64_t *data, sent[DATA];
    int16_t *flags; /* the neighbours of the one that is waited for are to stay as they are */
    CHECK_OK(expar_calloc(group, DATA, sizeof *data, (void **)&data));
    CHECK_OK(expar_calloc(group, 3, sizeof *flags, (void **)&flags));
    for (int16_t round = 1; round <= ROUNDS && check_failures() == 0; round++) {
        for (int i = 0; i < DATA; i++)
            sent[i] = round * 1000 + i;
        CHECK_OK(expar_put(group, data, sent, sizeof sent, next));
        CHECK_OK(expar_fence(group));
        CHECK_OK(expar_p_i16(group, &flags[1], (int16_t)-round, next));
        CHECK_OK(expar_wait_until_i16(group, &flags[1], EXPAR_CMP_LE, (int16_t)-round, NULL));
        CHECK(memcmp(data, sent, sizeof sent) == 0, "the flag came before its data in round %d", round);
        CHECK(flags[0] == 0 && flags[2] == 0, "the flag spilt in round %d", round);
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK_OK(expar_free(group, flags));
    CHECK_OK(expar_free(group, data));
}

static void test_short_flag(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, short_flag);
}

/* No word starves: of words that all hold, each is found in turn. */
static void in_turn(expar_group *group, void *shared)
{
    (void)shared;
    uint32_t *words;
    int seen[WORDS] = {0};
    CHECK_OK(expar_calloc(group, WORDS, sizeof *words, (void **)&words));
    for (int i = 0; i < WORDS; i++) {
        size_t index = 0;
        CHECK_OK(expar_wait_until_any_u32(group, words, WORDS, NULL, EXPAR_CMP_EQ, 0, &index));
        seen[index]++;
    }
    for (int i = 0; i < WORDS; i++)
        CHECK(seen[i] == 1, "word %d was found %d times", i, seen[i]);
    CHECK_OK(expar_free(group, words));
}

static void test_in_turn(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, in_turn);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void rejections(expar_group *group, void *shared)
{
    (void)shared;
    uint32_t *words, local[WORDS] = {0};
    size_t indices[WORDS], found, index;
    int holds;
    CHECK_OK(expar_calloc(group, WORDS, sizeof *words, (void **)&words));
    uint32_t *crooked = (uint32_t *)(void *)((char *)words + 1);
    const expar_cmp eq = EXPAR_CMP_EQ;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_wait_until_all_u32(NULL, words, WORDS, NULL, eq, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_wait_until_all_u32(group, NULL, WORDS, NULL, eq, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_wait_until_all_u32(group, NULL, 1, NULL, eq, 0));
    CHECK_TEXT("expar_wait_until_all_u32: words is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_test_u32(group, NULL, eq, 0, &holds));
    CHECK_TEXT("expar_test_u32: word is NULL");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_wait_until_all_u32(group, local, WORDS, NULL, eq, 0));
    CHECK_TEXT("expar_wait_until_all_u32", "words", "symmetric heap");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_wait_until_all_u32(group, words, (size_t)1 << 40, NULL, eq, 0));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_wait_until_all_u32(group, words, SIZE_MAX, NULL, eq, 0));
    CHECK_TEXT("expar_wait_until_all_u32: count", "expected at most");
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_test_u32(group, crooked, eq, 0, &holds));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_test_u32(group, words, (expar_cmp)6, 0, &holds));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_test_u32(group, words, eq, 0, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_test_any_u32(group, words, WORDS, NULL, eq, 0, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_test_some_u32(group, words, WORDS, NULL, NULL, eq, 0, &found));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_test_some_u32(group, words, WORDS, indices, NULL, eq, 0, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_wait_until_any_vector_u32(group, words, WORDS, NULL, eq, NULL, &index));
    CHECK_TEXT("expar_wait_until_any_vector_u32", "values is NULL");
    CHECK_OK(expar_free(group, words));
}

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, rejections);
}

/* A wait that nobody ends names the word that is missing, and what it holds. */
static void time_out(expar_group *group, void *shared)
{
    (void)shared;
    int32_t *words;
    CHECK_OK(expar_calloc(group, WORDS, sizeof *words, (void **)&words));
    words[0] = words[1] = -7;
    words[2] = -3;
    kind_set_timeout(group, 200);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_wait_until_all_i32(group, words, 3, NULL, EXPAR_CMP_EQ, -7));
    CHECK_TEXT("expar_wait_until_all_i32", "timed out", "holds -3", "== -7");
    kind_set_timeout(group, RANKS_TIMEOUT_MS);
}

static void test_time_out(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, time_out);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_still),   cmocka_unit_test(test_moving),          cmocka_unit_test(test_short_flag),
        cmocka_unit_test(test_in_turn), cmocka_unit_test(test_rejections_told), cmocka_unit_test(test_time_out),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
