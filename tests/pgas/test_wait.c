/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting: every comparison, tokens round a ring of sleepers, raw stores, time-outs, aborts, and no cost while idle. */
#include "shmem/kind.h"

#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

static void sleep_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

typedef struct comparison {
    expar_cmp cmp;
    uint64_t against;
    uint64_t rejected, accepted; /* a value that does not end the wait, one that does */
} comparison;
static const comparison comparisons[] = {
    {EXPAR_CMP_EQ, 5, 4, 5},
    {EXPAR_CMP_NE, 5, 5, 6},
    {EXPAR_CMP_GT, 5, 5, 6},
    {EXPAR_CMP_GE, 5, 4, 5},
    {EXPAR_CMP_LT, 5, 5, 4},
    {EXPAR_CMP_LE, 5, 6, 5},
    {EXPAR_CMP_GT, 0x7fffffff, 0, 0x80000000}, /* unsigned */
};

/* Rank 1 sets words of rank 0, which waits for them and answers. */
static void each_comparison(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *signal, seen = 99;
    uint32_t seen32 = 99;
    CHECK_OK(expar_calloc(group, 2, sizeof *signal, (void **)&signal));
    uint32_t *word = (uint32_t *)&signal[1];
    for (size_t i = 0; i < ARRAY_LENGTH(comparisons); i++) {
        const comparison *c = &comparisons[i];
        if (group->rank == 1) {
            CHECK_OK(expar_atomic_set_u64(group, signal, c->rejected, 0));
            CHECK_OK(expar_atomic_set_u32(group, word, (uint32_t)c->rejected, 0));
        }
        CHECK_OK(expar_barrier_all(group));
        if (group->rank == 1) {
            CHECK_OK(expar_atomic_set_u64(group, signal, c->accepted, 0));
            CHECK_OK(expar_atomic_set_u32(group, word, (uint32_t)c->accepted, 0));
        } else if (group->rank == 0) {
            CHECK_OK(expar_signal_wait_until(group, signal, c->cmp, c->against, &seen));
            CHECK(seen == c->accepted, "comparison %zu ended with %llu", i, (unsigned long long)seen);
            CHECK_OK(expar_signal_wait_until(group, signal, c->cmp, c->against, NULL));
            CHECK_OK(expar_wait_until_u32(group, word, c->cmp, (uint32_t)c->against, &seen32));
            CHECK(seen32 == c->accepted, "comparison %zu of 32 bits ended with %u", i, seen32);
            CHECK_OK(expar_signal_fetch(group, signal, &seen));
            CHECK(seen == c->accepted, "fetch gave %llu", (unsigned long long)seen);
        }
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK_OK(expar_free(group, signal));
}

static void test_comparisons(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, each_comparison);
}

/* ---- sleep and wake ---------------------------------------------------------------------------------------------- */

/* One token goes round all ranks, so that all but one sleep at any time. */
static void pass_token(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *signal, rounds = netns_rounds(2000);
    int32_t next = (group->rank + 1) % group->size;
    CHECK_OK(expar_calloc(group, 1, sizeof *signal, (void **)&signal));
    for (uint64_t round = 1; round <= rounds && check_failures() == 0; round++) {
        if (group->rank != 0) CHECK_OK(expar_signal_wait_until(group, signal, EXPAR_CMP_GE, round, NULL));
        CHECK_OK(expar_put_signal(group, NULL, NULL, 0, signal, 1, EXPAR_SIGNAL_ADD, next));
        if (group->rank == 0) CHECK_OK(expar_signal_wait_until(group, signal, EXPAR_CMP_GE, round, NULL));
    }
    uint64_t seen = 0;
    CHECK_OK(expar_signal_fetch(group, signal, &seen));
    CHECK(seen == rounds, "the token came %llu times", (unsigned long long)seen);
    CHECK_OK(expar_free(group, signal));
}

static void test_token_ring(void **state)
{
    (void)state;
    for (int32_t size = 2; size <= 8; size += 3)
        kind_run((ranks_plan){0}, size, pass_token);
}

/* A store through expar_ptr wakes no waiter; its bounded sleep ends, and finds the store. */
static void store_raw(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *signal;
    CHECK_OK(expar_calloc(group, 1, sizeof *signal, (void **)&signal));
    if (group->rank == 0) {
        sleep_ms(100); /* rank 1 sleeps meanwhile; were it still awake, the test would only test less */
        _Atomic uint64_t *raw = expar_ptr(group, signal, 1);
        if (raw) atomic_store(raw, 7);
        if (!raw) CHECK_OK(expar_put(group, signal, &(uint64_t){7}, sizeof *signal, 1));
    } else {
        CHECK_OK(expar_signal_wait_until(group, signal, EXPAR_CMP_EQ, 7, NULL));
    }
    CHECK_OK(expar_free(group, signal));
}

static void test_raw_stores_are_seen(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, store_raw);
}

/* ---- several waiters of one rank --------------------------------------------------------------------------------- */

#define WAITERS 3

typedef struct waiter {
    pthread_t thread;
    expar_group *group;
    uint64_t *signal;
    int64_t failures;
} waiter;

static void *wait_for_all_values(void *argument)
{
    waiter *self = argument;
    check_begin(self->group->rank);
    for (uint64_t value = 1; value <= 200; value++)
        CHECK_OK(expar_signal_wait_until(self->group, self->signal, EXPAR_CMP_GE, value, NULL));
    self->failures = check_failures();
    return NULL;
}

static void several_waiters(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *signals;
    waiter waiters[WAITERS];
    int32_t other = 1 - group->rank;
    CHECK_OK(expar_calloc(group, WAITERS, sizeof *signals, (void **)&signals));
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (waiter){.group = group, .signal = &signals[i]};
        CHECK(pthread_create(&waiters[i].thread, NULL, wait_for_all_values, &waiters[i]) == 0, "thread %d", i);
    }
    for (int value = 1; value <= 200; value++)
        for (int i = 0; i < WAITERS; i++)
            CHECK_OK(expar_atomic_add_u64(group, &signals[i], 1, other));
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(waiters[i].thread, NULL);
        CHECK(waiters[i].failures == 0, "waiter %d failed", i);
    }
    CHECK_OK(expar_free(group, signals));
}

static void test_several_waiters(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, several_waiters);
}

/* ---- ends without an answer -------------------------------------------------------------------------------------- */

/* The wait ends by the time-out, says what it saw, and leaves the group as it was. */
static void time_out(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *signal, seen = 99;
    CHECK_OK(expar_calloc(group, 1, sizeof *signal, (void **)&signal));
    if (group->rank == 0) {
        CHECK_OK(expar_put_signal(group, NULL, NULL, 0, signal, 3, EXPAR_SIGNAL_SET, 0));
        kind_set_timeout(group, 500);
        CHECK_STATUS(EXPAR_ERR_PEER, expar_signal_wait_until(group, signal, EXPAR_CMP_GE, 5, &seen));
        kind_set_timeout(group, RANKS_TIMEOUT_MS);
        CHECK_TEXT("expar_signal_wait_until", "timed out", "holds 3", ">= 5");
        CHECK(seen == 99, "an output was written: %llu", (unsigned long long)seen);
        CHECK_OK(expar_put_signal(group, NULL, NULL, 0, signal, 1, EXPAR_SIGNAL_SET, 1));
    } else {
        CHECK_OK(expar_signal_wait_until(group, signal, EXPAR_CMP_EQ, 1, NULL));
    }
    CHECK_OK(expar_free(group, signal));
}

static void test_time_out(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, time_out);
}

/* Turns until the wait is about to sleep: then its time-out runs. */
static void turn_until_armed(sym_rest *rest)
{
    while (!rest->armed && CHECK_OK(sym_rest_turn(rest))) {
    }
}

/* The late limit counts from the last progress. The clock is not waited for: the start is moved back instead. */
static void progress(expar_group *group, void *shared)
{
    (void)shared;
    const int64_t long_ago_ns = 2 * group->boot->late_limit_ms * 1000000;
    sym_rest rest = sym_rest_begin(group->sym, "test");
    turn_until_armed(&rest);
    atomic_fetch_sub(&rest.wait.since_ns, long_ago_ns);
    sym_rest_progress(&rest);
    turn_until_armed(&rest);
    CHECK_OK(sym_rest_turn(&rest)); /* sleeps a little */
    CHECK(!rest.timed_out, "timed out in spite of progress");
    atomic_fetch_sub(&rest.wait.since_ns, long_ago_ns);
    CHECK_STATUS(EXPAR_ERR_PEER, sym_rest_turn(&rest));
    CHECK_TEXT("test: timed out after");
    CHECK(rest.timed_out, "not marked as timed out");
    sym_rest_end(&rest);
    CHECK_OK(sym_check(group->sym, "test")); /* it is for the caller to say what that means */
}

static void test_progress_restarts_the_clock(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, progress);
}

static void *abort_soon(void *argument)
{
    sleep_ms(50); /* so that the other thread mostly sleeps in its wait */
    expar_group_abort(argument);
    return NULL;
}

/* Every rank is woken out of its wait by another thread of its own, and stays aborted. */
static void abort_while_waiting(expar_group *group, void *shared)
{
    (void)shared;
    pthread_t thread;
    uint64_t *signal;
    CHECK_OK(expar_calloc(group, 1, sizeof *signal, (void **)&signal));
    CHECK(pthread_create(&thread, NULL, abort_soon, group) == 0, "thread");
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_signal_wait_until(group, signal, EXPAR_CMP_EQ, 1, NULL));
    CHECK_TEXT("expar_signal_wait_until", "aborted");
    pthread_join(thread, NULL);
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_barrier_all(group));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_put(group, signal, signal, 8, 0));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_atomic_add_u64(group, signal, 1, 0));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_malloc(group, 8, (void **)&signal));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_group_barrier(group));
}

static void test_abort(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, abort_while_waiting);
}

static void *wait_for_abort(void *argument)
{
    waiter *self = argument;
    check_begin(self->group->rank);
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_signal_wait_until(self->group, self->signal, EXPAR_CMP_EQ, 1, NULL));
    self->failures = check_failures();
    return NULL;
}

/* Rank 2 goes, and the others are told of it. Its loss then ends no more waits; the abort of a rank still does.
   Rank 0 follows only once rank 1 has told of rank 2: of two losses found at once, rank 0's would be told first. */
static void abort_after_a_loss(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *signal;
    CHECK_OK(expar_calloc(group, 2, sizeof *signal, (void **)&signal));
    if (group->rank == 2) { /* once the others have come this far */
        CHECK_OK(expar_signal_wait_until(group, &signal[1], EXPAR_CMP_EQ, 2, NULL));
        CHECK_OK(expar_group_abort(group));
        return;
    }
    CHECK_OK(expar_atomic_add_u64(group, &signal[1], 1, 2));
    CHECK_STATUS(EXPAR_ERR_PEER, expar_signal_wait_until(group, signal, EXPAR_CMP_EQ, 1, NULL));
    CHECK_TEXT("rank 2");
    if (group->rank == 1) {
        CHECK_OK(expar_atomic_add_u64(group, &signal[1], 1, 0));
        CHECK_STATUS(EXPAR_ERR_PEER, expar_signal_wait_until(group, signal, EXPAR_CMP_EQ, 1, NULL));
        CHECK_TEXT("rank 0");
        return;
    }
    CHECK_OK(expar_signal_wait_until(group, &signal[1], EXPAR_CMP_EQ, 1, NULL));
    waiter other = {.group = group, .signal = signal};
    CHECK(pthread_create(&other.thread, NULL, wait_for_abort, &other) == 0, "thread");
    CHECK_OK(expar_group_abort(group));
    pthread_join(other.thread, NULL);
    CHECK(other.failures == 0, "the other thread's wait");
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_put(group, &signal[1], signal, sizeof *signal, 1));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_quiet(group));
    CHECK_STATUS(EXPAR_ERR_ABORTED, expar_barrier_all(group));
}

static void test_abort_after_a_loss(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, abort_after_a_loss);
}

/* ---- idleness ---------------------------------------------------------------------------------------------------- */

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

/* All but rank 0 wait for a second or more; the bound on what that costs is far above what it should (under 1 %). */
static void idle(expar_group *group, void *shared)
{
    (void)shared;
    CHECK_OK(expar_barrier_all(group));
    double before = cpu_seconds();
    if (group->rank == 0) sleep_ms(1000);
    CHECK_OK(expar_barrier_all(group));
    double used = cpu_seconds() - before;
    CHECK(used < 0.25, "an idle second took %.3f s of CPU", used);
}

static void test_idle_ranks_sleep(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, idle);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comparisons),
        cmocka_unit_test(test_token_ring),
        cmocka_unit_test(test_raw_stores_are_seen),
        cmocka_unit_test(test_several_waiters),
        cmocka_unit_test(test_time_out),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_after_a_loss),
        cmocka_unit_test(test_progress_restarts_the_clock),
        cmocka_unit_test(test_idle_ranks_sleep),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
