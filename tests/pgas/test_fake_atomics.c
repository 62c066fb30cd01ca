/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics of the host on device memory, on a driver that simulates GPUs. Where kernels change words, a kernel does so
 * for the host, too, so that the two meet; elsewhere copies do. While all SMs are held, such a change waits alone. */
#include "cuda/find_controls.h"
#include "pgas/memories.h"
#include "shmem/kinds.h"

#include <pthread.h>

static int launches(void)
{
    return atomic_load(&controls_find()->launches);
}

/* ---- by what words change ---------------------------------------------------------------------------------------- */

/* Makes 9 changes of each of the two words, and checks what they give. */
static void change_all(expar_group *group, uint64_t *word, int32_t *small, int32_t pe)
{
    uint64_t old = 0;
    int32_t less = 0;
    CHECK_OK(expar_atomic_add_u64(group, word, 5, pe));
    CHECK_OK(expar_atomic_fetch_add_u64(group, word, UINT64_MAX, pe, &old));
    CHECK(old == 5, "add: %llu", (unsigned long long)old);
    CHECK_OK(expar_atomic_fetch_inc_u64(group, word, pe, &old));
    CHECK(old == 4, "inc: %llu", (unsigned long long)old);
    CHECK_OK(expar_atomic_compare_swap_u64(group, word, 4, 77, pe, &old));
    CHECK(old == 5, "compare_swap of another word: %llu", (unsigned long long)old);
    CHECK_OK(expar_atomic_compare_swap_u64(group, word, 5, (uint64_t)3 << 40, pe, &old));
    CHECK(old == 5, "compare_swap: %llu", (unsigned long long)old);
    CHECK_OK(expar_atomic_fetch_or_u64(group, word, 6, pe, &old));
    CHECK_OK(expar_atomic_fetch_and_u64(group, word, ~(uint64_t)2, pe, &old));
    CHECK(old == ((uint64_t)3 << 40 | 6), "and: %llu", (unsigned long long)old);
    CHECK_OK(expar_atomic_fetch_xor_u64(group, word, 1, pe, &old));
    CHECK(old == ((uint64_t)3 << 40 | 4), "xor: %llu", (unsigned long long)old);
    CHECK_OK(expar_atomic_swap_u64(group, word, 0, pe, &old));
    CHECK(old == ((uint64_t)3 << 40 | 5), "swap: %llu", (unsigned long long)old);
    for (int32_t i = 0; i < 8; i++)
        CHECK_OK(expar_atomic_add_i32(group, small, -2, pe));
    CHECK_OK(expar_atomic_fetch_inc_i32(group, small, pe, &less));
    CHECK(less == -16, "the small word: %d", less);
}

static void check_changes(expar_group *group, bool by_kernels)
{
    uint64_t *words = take_zeros(group, EXPAR_MEMORY_DEVICE, 4096), seen = 1;
    int32_t beside[3];
    if (!words) return;
    CHECK(kinds_kernels_meet(group->sym) == by_kernels, "kernels %s", by_kernels ? "do not meet" : "meet");
    CHECK_OK(expar_group_barrier(group));
    for (int32_t pe = 0; group->rank == 0 && pe < group->size; pe++) {
        const int before = launches();
        change_all(group, words, (int32_t *)(void *)(words + 10), pe);
        CHECK(launches() - before == (by_kernels ? 18 : 0), "%d kernels for rank %d", launches() - before, pe);
        /* Words are read and set without a kernel, so these end while all SMs are held. */
        CHECK_OK(expar_atomic_set_u64(group, words + 1, 9, pe));
        CHECK_OK(expar_atomic_fetch_u64(group, words + 1, pe, &seen));
        CHECK_OK(expar_put_signal(group, words + 2, &seen, sizeof seen, words + 3, 8, EXPAR_SIGNAL_SET, pe));
        CHECK_OK(expar_quiet(group));
        CHECK(seen == 9 && launches() - before == (by_kernels ? 18 : 0), "%llu, %d kernels", (unsigned long long)seen,
              launches() - before);
        CHECK_OK(expar_put_signal(group, words + 2, &seen, sizeof seen, words + 3, 2, EXPAR_SIGNAL_ADD, pe));
        CHECK_OK(expar_quiet(group));
        CHECK(launches() - before == (by_kernels ? 19 : 0), "%d kernels", launches() - before);
        CHECK_OK(expar_get(group, &seen, words + 3, sizeof seen, pe));
        CHECK(seen == 10, "the signal is %llu", (unsigned long long)seen);
    }
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_get(group, beside, words + 10, sizeof beside, group->rank));
    CHECK(beside[0] == -15 && beside[1] == 0, "%d beside %d", beside[0], beside[1]);
    CHECK_OK(expar_group_barrier(group));
}

/* The owner's thread may set a word later than the caller's kernel could change it. */
static void check_changes_after_sets(expar_group *group)
{
    uint64_t *words = take_zeros(group, EXPAR_MEMORY_DEVICE, 64), old = 0;
    const int32_t next = (group->rank + 1) % group->size;
    if (!words) return;
    CHECK_OK(expar_group_barrier(group));
    for (uint64_t i = 1; i < 200; i++) {
        CHECK_OK(expar_atomic_set_u64(group, words, 2 * i, next));
        CHECK_OK(expar_atomic_fetch_add_u64(group, words, 1, next, &old));
        CHECK(old == 2 * i, "%llu was set, and %llu was there", (unsigned long long)(2 * i), (unsigned long long)old);
    }
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_get(group, &old, words, sizeof old, group->rank));
    CHECK(old == 399, "the word is %llu", (unsigned long long)old);
    CHECK_OK(expar_group_barrier(group));
}

static void with_kernels(expar_group *group, void *shared)
{
    (void)shared;
    check_changes(group, true);
    check_changes_after_sets(group);
}

static void without_kernels(expar_group *group, void *shared)
{
    (void)shared;
    check_changes(group, false);
}

static void test_kernels_change_words(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, with_kernels);
    kind_run((ranks_plan){0}, 1, with_kernels);
}

/* The setting, GPUs whose atomics do not meet, and a library that finds no kernel: the owners do it all. */
static void test_copies_change_words(void **state)
{
    (void)state;
    kind_run_with("EXPAR_DEVICE_ATOMICS", "owner", 2, without_kernels);
    kind_run_with("FAKE_ATOMICS", "0", 2, without_kernels);
    setenv("FAKE_ATOMICS", "1", 1);
    kind_run_with("FAKE_CHANGES", "0", 2, without_kernels);
}

/* Kernels keep the atomics, so the host, which has none, may not change words. */
static void rejected(expar_group *group, void *shared)
{
    uint64_t *words = take_zeros(group, EXPAR_MEMORY_DEVICE, 64), seen = 1;
    (void)shared;
    if (!words) return;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_atomic_fetch_inc_u64(group, words, group->rank, &seen));
    CHECK_TEXT("EXPAR_DEVICE_ATOMICS=node", "could not be loaded");
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_atomic_fetch_inc_u64(group, words, 1 - group->rank, &seen));
    CHECK_OK(expar_atomic_set_u64(group, words, 3, group->rank));
    CHECK_OK(expar_atomic_fetch_u64(group, words, group->rank, &seen));
    CHECK(seen == 3, "%llu", (unsigned long long)seen);
    CHECK_OK(expar_group_barrier(group));
}

static void test_nothing_changes_words_of_kernels(void **state)
{
    (void)state;
    setenv("EXPAR_DEVICE_ATOMICS", "node", 1);
    kind_run_with("FAKE_CHANGES", "0", 2, rejected);
    unsetenv("EXPAR_DEVICE_ATOMICS");
}

/* ---- while all SMs are held -------------------------------------------------------------------------------------- */

/* Adds to rank 0's word, by a thread of its own. */
typedef struct adding {
    expar_group *group;
    uint64_t *word;
    atomic_bool ended;
    int64_t failures;
} adding;

static void *add(void *argument)
{
    adding *own = argument;
    check_begin(own->group->rank);
    uint64_t old;
    CHECK_OK(expar_atomic_fetch_add_u64(own->group, own->word, 1, 0, &old));
    atomic_store(&own->ended, true);
    own->failures = check_failures();
    return NULL;
}

/* Everything but the add ends before the kernels go on. */
static void beside_an_add(expar_group *group, uint64_t *block, const adding *one)
{
    uint64_t local[2000] = {11}, seen = 0;
    int holds = 0;
    const int32_t next = 1 - group->rank;
    CHECK_OK(expar_put_signal(group, block, local, sizeof local, block + 3000, 5, EXPAR_SIGNAL_SET, next));
    CHECK_OK(expar_wait_until_u64(group, block + 3000, EXPAR_CMP_GE, 5, &seen));
    CHECK_OK(expar_test_u64(group, block, EXPAR_CMP_EQ, 11, &holds));
    CHECK_OK(expar_p_u64(group, block + 3001, 4, next));
    CHECK_OK(expar_put_signal(group, NULL, NULL, 0, block + 3002, 6, EXPAR_SIGNAL_SET, next));
    CHECK_OK(expar_atomic_set_u64(group, block + 3003, 8, next));
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_get(group, local, block + 3001, 3 * sizeof *local, next));
    CHECK(holds == 1 && local[0] == 4 && local[1] == 6 && local[2] == 8, "other words");
    CHECK(!atomic_load(&one->ended), "an add has ended without a kernel");
}

static void while_held(expar_group *group, void *shared)
{
    uint64_t *block = take_zeros(group, EXPAR_MEMORY_DEVICE, 300000), sum = 0;
    pthread_t thread;
    (void)shared;
    if (!block) return;
    adding one = {.group = group, .word = block + 4000};
    CHECK_OK(expar_group_barrier(group));
    atomic_store(&controls_find()->hold, 1);
    CHECK_OK(expar_group_barrier(group));
    const bool started = CHECK(pthread_create(&thread, NULL, add, &one) == 0, "no thread");
    beside_an_add(group, block, &one);
    CHECK_OK(expar_group_barrier(group));
    atomic_store(&controls_find()->hold, 0);
    if (started) pthread_join(thread, NULL);
    CHECK(one.failures == 0, "the add failed");
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_get(group, &sum, block + 4000, sizeof sum, 0));
    CHECK(sum == 2, "%llu adds", (unsigned long long)sum);
    CHECK_OK(expar_group_barrier(group));
}

static void test_changes_wait_alone(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, while_held);
    /* Data go to the owners' threads, too. */
    kind_run_with("EXPAR_STAGE", "1", 2, while_held);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_change_words),
        cmocka_unit_test(test_kernels_change_words),
        cmocka_unit_test(test_nothing_changes_words_of_kernels),
        cmocka_unit_test(test_changes_wait_alone),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    setenv("FAKE_ATOMICS", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
