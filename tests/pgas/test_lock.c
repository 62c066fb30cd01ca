/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: one holder at a time, everybody gets its turn, in the order of asking. The puts of the holder before are seen.
 * A rank that gives up waiting keeps nobody else from the lock. */
#include "shmem/kind.h"

#include <sched.h>
#include <stdio.h>

#define ROUNDS      150
#define DEADLINE_NS INT64_C(60000000000)

static void add_one(expar_group *group, uint64_t *counter)
{
    uint64_t seen;
    CHECK_OK(expar_get(group, &seen, counter, sizeof seen, 0));
    seen++;
    CHECK_OK(expar_put(group, counter, &seen, sizeof seen, 0));
}

/* In one rank's copy the lock has the word of the last rank that asked, in each copy that of its successor. Two bits at
   its top are no part of the number. */
static uint32_t read_word(expar_group *group, const uint64_t *lock, int which, int32_t pe)
{
    uint32_t word = 0;
    CHECK_OK(expar_atomic_fetch_u32(group, (const uint32_t *)lock + which, pe, &word));
    return word;
}

static void await_last(expar_group *group, const uint64_t *lock, int32_t rank)
{
    const int64_t deadline_ns = clock_ns() + DEADLINE_NS;
    bool last = false;
    for (int32_t pe = 0; !last && check_failures() == 0 && clock_ns() < deadline_ns; pe = (pe + 1) % group->size) {
        last = read_word(group, lock, 0, pe) == (uint32_t)rank + 1;
        sched_yield();
    }
    CHECK(last, "rank %d does not stand in the queue", rank);
}

/* Read, add, write: updates are lost unless one rank at a time does it. Two locks, on different ranks. */
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
        add_one(group, &counters[which]);
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

/* The rank that asks as number `place` of the round, of ranks 1 to size - 1: forwards or backwards from another one
   each time. */
static int32_t asks(int32_t size, int32_t round, int32_t place)
{
    int32_t others = size - 1, at = (place + round / 2) % others;
    return 1 + (round % 2 == 0 ? others - 1 - at : at);
}

/* Rank 0 holds the lock, and lets nobody ask before the one before stands in the queue. */
static void let_ask(const queue *q, int32_t round)
{
    for (int32_t place = 0; place < q->group->size - 1; place++) {
        int32_t rank = asks(q->group->size, round, place);
        CHECK_OK(expar_atomic_set_u64(q->group, q->turn, (uint64_t)round + 1, rank));
        await_last(q->group, q->lock, rank);
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

/* ---- giving up --------------------------------------------------------------------------------------------------- */

#define PATIENCE_MS 2000

/* The patience is that of the wait for its turn alone: the atomics by which it stands in the queue cross the network in
   the transports' own time. */
static void give_up(expar_group *group, uint64_t *lock)
{
    group->boot->late_limit_ms = PATIENCE_MS;
    CHECK_STATUS(EXPAR_ERR_PEER, expar_lock_set(group, lock));
    CHECK_TEXT("expar_lock_set", "timed out");
    group->boot->late_limit_ms = RANKS_TIMEOUT_MS;
}

/* In the end all get the lock, one at a time. */
static void check_sound(expar_group *group, uint64_t *lock, uint64_t *counter)
{
    CHECK_OK(expar_barrier_all(group));
    for (int round = 0; round < 10; round++) {
        CHECK_OK(expar_lock_set(group, lock));
        add_one(group, counter);
        CHECK_OK(expar_lock_clear(group, lock));
    }
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) CHECK(*counter == (uint64_t)group->size * 10, "%llu came", (unsigned long long)*counter);
    CHECK_OK(expar_barrier_all(group));
    *counter = 0;
    CHECK_OK(expar_barrier_all(group));
}

/* All who wait give up; they have not got the lock, and have no part in it any more once it has been cleared. */
static void all_give_up(expar_group *group, uint64_t *lock)
{
    int taken = 7;
    if (group->rank > 0) {
        give_up(group, lock);
        CHECK_OK(expar_lock_test(group, lock, &taken));
        CHECK(taken == 0, "rank %d has got the lock", group->rank);
        CHECK_STATUS(EXPAR_ERR_STATE, expar_lock_clear(group, lock));
        CHECK_TEXT("expar_lock_clear", "has not got the lock");
    }
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) CHECK_OK(expar_lock_clear(group, lock));
}

/* The lock goes past rank 1, which gave up, to rank 2. */
static void first_gives_up(expar_group *group, uint64_t *lock)
{
    if (group->rank == 1) give_up(group, lock);
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) await_last(group, lock, 2);
    if (group->rank == 2) CHECK_OK(expar_lock_set(group, lock));
    if (group->rank != 1) CHECK_OK(expar_lock_clear(group, lock));
}

/* Rank 1 comes back to its place before the lock is cleared. */
static void first_comes_back(expar_group *group, uint64_t *lock)
{
    if (group->rank == 1) give_up(group, lock);
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 2) give_up(group, lock);
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 1) CHECK_OK(expar_lock_set(group, lock));
    while (group->rank == 0 && read_word(group, lock, 1, 1) >> 30 != 0 && check_failures() == 0) {
    }
    if (group->rank != 2) CHECK_OK(expar_lock_clear(group, lock));
}

static void giving_up(expar_group *group, void *shared)
{
    (void)shared;
    void (*const cases[])(expar_group *, uint64_t *) = {all_give_up, first_gives_up, first_comes_back};
    uint64_t *lock, *counter;
    CHECK_OK(expar_calloc(group, 1, sizeof *lock, (void **)&lock));
    CHECK_OK(expar_calloc(group, 1, sizeof *counter, (void **)&counter));
    for (size_t i = 0; i < ARRAY_LENGTH(cases) && check_failures() == 0; i++) {
        if (group->rank == 0) CHECK_OK(expar_lock_set(group, lock));
        CHECK_OK(expar_barrier_all(group));
        cases[i](group, lock);
        check_sound(group, lock, counter);
    }
}

static void test_giving_up(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, giving_up);
}

/* ---- overwritten words ------------------------------------------------------------------------------------------- */

#define GRANTED UINT32_C(0x80000000)
#define AWAY    UINT32_C(0x40000000)

static expar_status call_set(expar_group *group, uint64_t *lock)
{
    return expar_lock_set(group, lock);
}

static expar_status call_test(expar_group *group, uint64_t *lock)
{
    int taken = 7;
    return expar_lock_test(group, lock, &taken);
}

static expar_status call_clear(expar_group *group, uint64_t *lock)
{
    return expar_lock_clear(group, lock);
}

/* A word that has been overwritten, and rank 0's call that finds it. The other words are those of a sound queue: rank 0
   holds the lock, rank 1 has given up its place after it, and rank 2 comes after rank 1. */
typedef struct spoilt_word {
    int which;  /* 0: of the last rank that asked; 1: of the successor */
    int32_t pe; /* in whose copy; -1: in the one that has the last rank */
    uint32_t value;
    expar_status (*call)(expar_group *group, uint64_t *lock);
} spoilt_word;

static const spoilt_word spoilt_words[] = {
    {0, -1, 4, call_set},         {0, -1, 0x12345, call_set},      {0, -1, UINT32_MAX, call_set},
    {0, -1, 4, call_test},        {0, -1, AWAY | 1, call_test},    {0, -1, GRANTED | 2, call_test},
    {0, -1, 0x12345, call_clear}, {0, -1, UINT32_MAX, call_clear}, {1, 0, 4, call_clear},
    {1, 0, 0x555555, call_clear}, {1, 1, AWAY | 4, call_clear},    {1, 1, AWAY | 0x777777, call_clear},
};

static void write_word(expar_group *group, uint64_t *lock, int which, int32_t pe, uint32_t value)
{
    uint32_t old;
    CHECK_OK(expar_atomic_swap_u32(group, (uint32_t *)lock + which, value, pe, &old));
}

/* Returns in whose copy of a free lock the last rank that asked is. */
static int32_t find_home(expar_group *group, uint64_t *lock)
{
    int32_t pe = 0;
    CHECK_OK(expar_lock_set(group, lock));
    while (pe < group->size - 1 && read_word(group, lock, 0, pe) == 0)
        pe++;
    CHECK_OK(expar_lock_clear(group, lock));
    return pe;
}

static void call_with(expar_group *group, uint64_t *lock, int32_t home, const spoilt_word *spoilt)
{
    char rank[48], value[32];
    const int32_t pe = spoilt->pe < 0 ? home : spoilt->pe;
    write_word(group, lock, 0, home, 3);
    write_word(group, lock, 1, 0, 2);
    write_word(group, lock, 1, 1, AWAY | 3);
    write_word(group, lock, spoilt->which, pe, spoilt->value);
    snprintf(rank, sizeof rank, "the lock's word on rank %d holds", (int)pe);
    snprintf(value, sizeof value, "holds 0x%x, ", (unsigned)(spoilt->which ? spoilt->value & ~AWAY : spoilt->value));
    CHECK_STATUS(EXPAR_ERR_PEER, spoilt->call(group, lock));
    CHECK_TEXT("expar_lock_", rank, value, "has been overwritten");
    if (spoilt->which == 1) return; /* part of the queue has been passed on */
    CHECK_STATUS(EXPAR_ERR_PEER, spoilt->call(group, lock));
    CHECK_TEXT("expar_lock_", rank, value, "has been overwritten");
}

/* Rank 0 overwrites rank 1's word while that one waits for its turn. */
static void overwrite_in_turn(expar_group *group, uint64_t *lock)
{
    if (group->rank == 0) CHECK_OK(expar_lock_set(group, lock));
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) {
        await_last(group, lock, 1);
        write_word(group, lock, 1, 1, GRANTED | 0x777);
    } else if (group->rank == 1) {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_lock_set(group, lock));
        CHECK_TEXT("expar_lock_set", "the lock's word on rank 1 holds 0x777, ", "has been overwritten");
    }
    CHECK_OK(expar_barrier_all(group));
}

static void overwritten(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *locks;
    CHECK_OK(expar_calloc(group, 2, sizeof *locks, (void **)&locks));
    const int32_t home = group->rank == 0 ? find_home(group, &locks[0]) : -1;
    for (size_t i = 0; i < ARRAY_LENGTH(spoilt_words) && group->rank == 0 && check_failures() == 0; i++)
        call_with(group, &locks[0], home, &spoilt_words[i]);
    CHECK_OK(expar_barrier_all(group));
    overwrite_in_turn(group, &locks[1]);
}

static void test_overwritten_words(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, overwritten);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void rejections(expar_group *group, void *shared)
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

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, rejections);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_count), cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_giving_up), cmocka_unit_test(test_overwritten_words),
                                       cmocka_unit_test(test_rejections_told)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
