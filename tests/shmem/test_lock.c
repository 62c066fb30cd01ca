/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: one holder at a time, everybody gets its turn, and what the holder before put is seen. */
#include "shmem/kind.h"

#define ROUNDS 150

/* Read, add, write: updates are lost unless one rank at a time does it. Two locks, with different homes. */
static void count(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *locks, *counters, seen;
    int taken = 7;
    CHECK_OK(expar_calloc(group, 2, sizeof *locks, (void **)&locks));
    CHECK_OK(expar_calloc(group, 2, sizeof *counters, (void **)&counters));
    for (int round = 0; round < ROUNDS && check_failures() == 0; round++) {
        int which = round % 2;
        if (round % 5 == 0) {
            do
                CHECK_OK(expar_lock_test(group, &locks[which], &taken));
            while (!taken && check_failures() == 0);
        } else {
            CHECK_OK(expar_lock_set(group, &locks[which]));
        }
        CHECK_OK(expar_get(group, &seen, &counters[which], sizeof seen, 0));
        seen++;
        CHECK_OK(expar_put(group, &counters[which], &seen, sizeof seen, 0));
        CHECK_OK(expar_lock_clear(group, &locks[which]));
    }
    CHECK_OK(expar_barrier_all(group));
    for (int which = 0; which < 2; which++) {
        CHECK_OK(expar_get(group, &seen, &counters[which], sizeof seen, 0));
        CHECK(seen == (uint64_t)(group->size * ROUNDS / 2), "lock %d let %llu through", which,
              (unsigned long long)seen);
    }
}

static void test_count(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, count);
    kind_run((ranks_plan){0}, 1, count);
}

static void refusals(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *lock, local = 0;
    int taken = 7;
    CHECK_OK(expar_calloc(group, 2, sizeof *lock, (void **)&lock));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_lock_set(NULL, lock));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_lock_set(group, NULL));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_lock_set(group, &local));
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_lock_set(group, (uint64_t *)(void *)((char *)lock + 4)));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_lock_test(group, lock, NULL));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_lock_clear(group, lock));
    CHECK_TEXT("expar_lock_clear", "nobody holds");
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) {
        CHECK_OK(expar_lock_set(group, lock));
        CHECK_OK(expar_lock_test(group, lock + 1, &taken));
        CHECK(taken == 1, "a free lock was not to be had");
    }
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 1) CHECK_OK(expar_lock_test(group, lock, &taken));
    CHECK(taken == (group->rank == 0), "rank %d: %d", group->rank, taken);
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) CHECK_OK(expar_lock_clear(group, lock));
}

static void test_refusals(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, refusals);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_count), cmocka_unit_test(test_refusals)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
