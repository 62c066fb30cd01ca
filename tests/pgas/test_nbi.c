/* SPDX-License-Identifier: Apache-2.0 */
/* The non-blocking calls: nothing of them is looked at before a signal or a quiet. They also run through the proxy
 * (EXPAR_PROXY=1) and over the network. */
#include "shmem/kind.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS    4
#define MESSAGES 100
#define WORDS    33

/* A message's words, by sender and number. */
static uint64_t word_of(int32_t from, size_t number, size_t i)
{
    return (uint64_t)from * 1000000 + number * 1000 + i;
}

/* Every rank sends to every rank, each message into a place of its own; the signals count them. */
static void messages(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t(*box)[MESSAGES][WORDS], (*sent)[WORDS] = malloc(MESSAGES * sizeof *sent), *signals, wrong = 0;
    size_t size = (size_t)group->size;
    CHECK_OK(expar_calloc(group, size, sizeof *box, (void **)&box));
    CHECK_OK(expar_calloc(group, size, sizeof *signals, (void **)&signals));
    for (size_t m = 0; m < MESSAGES; m++) {
        for (size_t i = 0; i < WORDS; i++)
            sent[m][i] = word_of(group->rank, m, i);
        for (int32_t pe = 0; pe < group->size; pe++)
            CHECK_OK(expar_put_signal_nbi(group, box[group->rank][m], sent[m], sizeof sent[m], &signals[group->rank], 1,
                                          EXPAR_SIGNAL_ADD, pe));
    }
    for (int32_t from = 0; from < group->size; from++) {
        CHECK_OK(expar_signal_wait_until(group, &signals[from], EXPAR_CMP_EQ, MESSAGES, NULL));
        for (size_t m = 0; m < MESSAGES; m++)
            for (size_t i = 0; i < WORDS; i++)
                wrong += box[from][m][i] != word_of(from, m, i);
    }
    CHECK(wrong == 0, "%llu words are wrong", (unsigned long long)wrong);
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_barrier_all(group));
    free(sent);
    CHECK_OK(expar_free(group, signals));
    CHECK_OK(expar_free(group, box));
}

static void test_messages(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, messages);
    kind_run((ranks_plan){0}, 1, messages);
    kind_run((ranks_plan){.ranks_per_node = 2}, RANKS, messages);
}

/* One of several threads of a rank, with words of its own at the next rank. */
typedef struct thread {
    pthread_t id;
    expar_group *group;
    uint64_t *words; /* [WORDS] */
    uint32_t *counter;
    uint32_t tickets[MESSAGES];
    int64_t failures;
} thread;

static void *put_and_get_back(void *argument)
{
    thread *self = argument;
    expar_group *group = self->group;
    int32_t next = (group->rank + 1) % group->size;
    check_begin(group->rank);
    for (uint64_t m = 0; m < MESSAGES && check_failures() == 0; m++) {
        uint64_t sent[WORDS], back[WORDS] = {0};
        for (size_t i = 0; i < WORDS; i++)
            sent[i] = m * 1000 + i;
        CHECK_OK(expar_put_nbi(group, self->words, sent, sizeof sent, next));
        CHECK_OK(expar_atomic_fetch_inc_nbi_u32(group, self->counter, next, &self->tickets[m]));
        CHECK_OK(expar_quiet(group));
        CHECK_OK(expar_get_nbi_u64(group, back, self->words, WORDS, next));
        CHECK_OK(expar_quiet(group));
        CHECK(memcmp(sent, back, sizeof sent) == 0, "message %llu came back otherwise", (unsigned long long)m);
    }
    self->failures = check_failures();
    return NULL;
}

#define THREADS 3

/* Each thread's quiet completes what it did itself, whatever the others do; every ticket is drawn once. */
static void many_threads(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t(*words)[WORDS];
    uint32_t *counter;
    bool drawn[THREADS * MESSAGES] = {false};
    thread threads[THREADS];
    CHECK_OK(expar_calloc(group, THREADS, sizeof *words, (void **)&words));
    CHECK_OK(expar_calloc(group, 1, sizeof *counter, (void **)&counter));
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (thread){.group = group, .words = words[i], .counter = counter};
        if (pthread_create(&threads[i].id, NULL, put_and_get_back, &threads[i])) abort();
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i].id, NULL);
        CHECK(threads[i].failures == 0, "thread %d has failed", i);
        for (int m = 0; m < MESSAGES; m++)
            if (threads[i].tickets[m] < THREADS * MESSAGES) drawn[threads[i].tickets[m]] = true;
    }
    for (int i = 0; i < THREADS * MESSAGES; i++)
        CHECK(drawn[i], "nobody has ticket %d", i);
    CHECK_OK(expar_free(group, counter));
    CHECK_OK(expar_free(group, words));
}

static void test_many_threads(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, many_threads);
}

static void rejections(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *box, local = 7, old = 9;
    CHECK_OK(expar_calloc(group, 4, sizeof *box, (void **)&box));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_nbi(NULL, box, &local, 8, 0));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_put_nbi(group, box, &local, 8, 2));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_get_nbi(group, &local, &local, 8, 0));
    CHECK_TEXT("expar_get_nbi", "source", "symmetric heap");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_put_signal_nbi(group, box, &local, 8, box + 1, 1, (expar_signal_op)2, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_signal_nbi(NULL, box, &local, 8, box + 1, 1, EXPAR_SIGNAL_SET, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_atomic_fetch_add_nbi_u64(group, box, 1, 0, NULL));
    CHECK_TEXT("expar_atomic_fetch_add_nbi_u64: old is NULL");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_atomic_fetch_add_nbi_u64(group, &local, 1, 0, &old));
    CHECK_OK(expar_put_nbi(group, NULL, NULL, 0, 0));
    CHECK_OK(expar_put_signal_nbi(group, NULL, NULL, 0, box + 1, 5, EXPAR_SIGNAL_SET, group->rank));
    CHECK_OK(expar_quiet(group));
    CHECK(box[0] == 0 && box[1] == 5 && local == 7 && old == 9, "something was written");
    CHECK_OK(expar_free(group, box));
}

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, rejections);
}

/* ---- processes: one is killed ------------------------------------------------------------------------------------ */

#define VICTIM      2
#define DEADLINE_MS 60000

/* Between the test and its ranks; in memory that all share. */
typedef struct scene {
    _Atomic int32_t ready; /* ranks; written by them, read by the test */
} scene;

static expar_status touch(expar_group *group, uint64_t *word, const uint64_t *value, int32_t pe)
{
    expar_status status = expar_put_nbi(group, word, value, sizeof *value, pe);
    return status == EXPAR_OK ? expar_quiet(group) : status;
}

/* All who live have come to a step. */
static void meet(scene *s, int32_t all)
{
    atomic_fetch_add(&s->ready, 1);
    for (int64_t start_ms = ranks_clock_ms();
         atomic_load(&s->ready) < all && ranks_clock_ms() - start_ms < DEADLINE_MS;)
        sched_yield();
}

/* Looks at a word of another rank until it has a value. */
static void await_word(expar_group *group, const uint64_t *word, uint64_t value, int32_t pe)
{
    uint64_t back = ~value;
    for (int64_t start_ms = ranks_clock_ms(); back != value && ranks_clock_ms() - start_ms < DEADLINE_MS;)
        CHECK_OK(expar_get(group, &back, word, sizeof back, pe));
    CHECK(back == value, "what was put to a living rank did not arrive");
}

/* A rank that touches the victim hears of it; a rank that touches the living goes on. */
static void survive(expar_group *group, void *shared)
{
    scene *s = shared;
    uint64_t *words, value = 77;
    expar_status status = EXPAR_OK;
    int32_t other = group->rank == 0 ? 1 : 0;
    CHECK_OK(expar_calloc(group, (size_t)3 * RANKS, sizeof *words, (void **)&words));
    uint64_t *data = words + RANKS + group->rank, *signal = words + 2 * RANKS + group->rank;
    CHECK_OK(expar_group_barrier(group));
    atomic_fetch_add(&s->ready, 1);
    while (group->rank == VICTIM) /* until it is killed */
        pause();
    for (int64_t start_ms = ranks_clock_ms(); status == EXPAR_OK && ranks_clock_ms() - start_ms < DEADLINE_MS;)
        status = expar_put_nbi(group, &words[group->rank], &value, sizeof value, VICTIM);
    CHECK_STATUS(EXPAR_ERR_PEER, status);
    /* Operations on the victim that have failed unreported are no concern of this one. */
    CHECK_OK(expar_put_signal(group, data, &value, sizeof value, signal, 5, EXPAR_SIGNAL_ADD, other));
    await_word(group, signal, 5, other);
    await_word(group, data, value, other);
    CHECK_STATUS(EXPAR_ERR_PEER, touch(group, &words[group->rank], &value, VICTIM));
    CHECK_TEXT("rank 2");
    meet(s, 2 * RANKS - 1);
    /* The group's quiet tells of the dead again: what is here can be seen without it. */
    CHECK_OK(expar_put_nbi(group, &words[group->rank], &value, sizeof value, other));
    await_word(group, &words[group->rank], value, other);
    meet(s, 3 * RANKS - 2);
}

static void test_one_is_killed(void **state)
{
    (void)state;
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS};
    ranks_host host;
    pid_t pids[RANKS];
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < RANKS; r++)
        assert_true((pids[r] = ranks_fork(&plan, &host.id, r, survive, s)) > 0);
    int64_t deadline_ms = ranks_clock_ms() + 2 * DEADLINE_MS;
    while (atomic_load(&s->ready) < RANKS && ranks_clock_ms() < deadline_ms)
        sched_yield();
    assert_int_equal(kill(pids[VICTIM], SIGKILL), 0);
    for (int32_t r = 0; r < RANKS; r++) {
        int status = ranks_wait(pids[r], deadline_ms, NULL);
        assert_true(r == VICTIM ? WIFSIGNALED(status) : status == 0);
    }
    assert_true(ranks_host_stop(&host));
    munmap(s, sizeof *s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_rejections_told),
    };
    const struct CMUnitTest process_tests[] = {cmocka_unit_test(test_one_is_killed)};
    kind_read(argc, argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (kind_of_ranks == RANKS_PROCESSES) failed += cmocka_run_group_tests(process_tests, NULL, NULL);
    return failed;
}
