/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: one holder at a time, everybody gets its turn, in the order of asking, and what the holder before put is seen.
 */
#include "shmem/kind.h"

#include <sched.h>

#define ROUNDS      150
#define DEADLINE_NS INT64_C(60000000000)

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

/* ---- the order --------------------------------------------------------------------------------------------------- */

#define ORDER_ROUNDS 6

typedef struct queue {
    expar_group *group;
    uint64_t *lock, *turn; /* turn: of each rank, the round in which it may ask; set by rank 0 */
    uint64_t *served;      /* on rank 0: how many have held the lock, and who; put by the holder */
} queue;

/* Who asks as number `place` of the round, of ranks 1 to size - 1: forwards or backwards from another one each time. */
static int32_t asks(int32_t size, int32_t round, int32_t place)
{
    int32_t others = size - 1, at = (place + round / 2) % others;
    return 1 + (round % 2 == 0 ? others - 1 - at : at);
}

/* 1 + the rank that asked last: the first half of the lock's word, zero on all ranks but one. */
static uint32_t last_in_queue(const queue *q)
{
    uint32_t sum = 0, tail;
    for (int32_t pe = 0; pe < q->group->size; pe++) {
        CHECK_OK(expar_atomic_fetch_u32(q->group, (uint32_t *)(void *)q->lock, pe, &tail));
        sum += tail;
    }
    return sum;
}

/* Rank 0 holds the lock, and lets nobody ask before the one before stands in the queue. */
static void let_ask(const queue *q, int32_t round)
{
    for (int32_t place = 0; place < q->group->size - 1; place++) {
        int32_t rank = asks(q->group->size, round, place);
        int64_t deadline_ns = clock_ns() + DEADLINE_NS;
        CHECK_OK(expar_atomic_set_u64(q->group, q->turn, (uint64_t)round + 1, rank));
        while (last_in_queue(q) != (uint32_t)rank + 1 && check_failures() == 0 && clock_ns() < deadline_ns)
            sched_yield();
        CHECK(clock_ns() < deadline_ns, "round %d: rank %d does not stand in the queue", round, rank);
    }
    CHECK_OK(expar_lock_clear(q->group, q->lock));
}

static void ask(const queue *q, int32_t round)
{
    uint64_t count, rank = (uint64_t)q->group->rank;
    CHECK_OK(expar_wait_until_u64(q->group, q->turn, EXPAR_CMP_EQ, (uint64_t)round + 1, NULL));
    CHECK_OK(expar_lock_set(q->group, q->lock));
    CHECK_OK(expar_get(q->group, &count, q->served, sizeof count, 0));
    CHECK_OK(expar_put(q->group, &q->served[++count], &rank, sizeof rank, 0));
    CHECK_OK(expar_put(q->group, q->served, &count, sizeof count, 0));
    CHECK_OK(expar_lock_clear(q->group, q->lock));
}

static void order(expar_group *group, void *shared)
{
    (void)shared;
    queue q = {.group = group};
    const int32_t others = group->size - 1;
    CHECK_OK(expar_calloc(group, 1, sizeof *q.lock, (void **)&q.lock));
    CHECK_OK(expar_calloc(group, 1, sizeof *q.turn, (void **)&q.turn));
    CHECK_OK(expar_calloc(group, (size_t)(1 + ORDER_ROUNDS * others), sizeof *q.served, (void **)&q.served));
    for (int32_t round = 0; round < ORDER_ROUNDS && check_failures() == 0; round++) {
        if (group->rank == 0) CHECK_OK(expar_lock_set(group, q.lock));
        CHECK_OK(expar_barrier_all(group));
        if (group->rank == 0)
            let_ask(&q, round);
        else
            ask(&q, round);
        CHECK_OK(expar_barrier_all(group));
    }
    for (int32_t i = 0; i < ORDER_ROUNDS * others && group->rank == 0; i++)
        CHECK(q.served[1 + i] == (uint64_t)asks(group->size, i / others, i % others),
              "round %d: the lock went to rank %llu as number %d", i / others, (unsigned long long)q.served[1 + i],
              i % others);
}

static void test_order(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, order);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_count), cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_refusals)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
