/* SPDX-License-Identifier: Apache-2.0 */
/* How buffers end: ranks that abandon one, before, between and in the phases of calls, and epochs that wrap. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/create.h"
#include "exec/cpu/low_latency/create.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static ranks_kind kind;

#define LEAVER 1
#define LATE   2

static void run_body(ranks_body body)
{
    ll_case c = case_example;
    const ranks_plan plan = {.kind = kind, .size = c.ranks};
    assert_true(ranks_run(&plan, body, &c));
}

/* The others' calls end with its name, now and later; the group goes on, and has its next buffer. */
static void trial_leaver(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(c);
    for (int i = 0; i < 4; i++) {
        expar_ll *ll = NULL;
        ll_round *round = round_make(c, rank, 1);
        if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
        for (int calls = 0; calls < i; calls++)
            round_trial(c, rank, ll, (uint32_t)calls);
        if (rank == LEAVER) {
            CHECK_OK(expar_ll_abandon(ll));
            CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_dispatch(ll, &round->dispatch, &round->received));
        } else {
            CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_dispatch(ll, &round->dispatch, &round->received));
            CHECK_TEXT("rank 1", "abandoned");
            CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_dispatch(ll, &round->dispatch, &round->received));
            CHECK_TEXT("poisoned");
            CHECK_OK(expar_ll_destroy(ll));
        }
        round_free(round);
        CHECK_OK(expar_group_barrier(group));
    }
    expar_ll *last = NULL;
    if (CHECK_OK(expar_ll_create(group, &config, &last)) && round_trial(c, rank, last, 9))
        CHECK_OK(expar_ll_destroy(last));
}

static void test_leaver(void **state)
{
    (void)state;
    run_body(trial_leaver);
}

static void learn_of_leaver(ll_round *round, expar_ll *ll)
{
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_dispatch(ll, &round->dispatch, &round->received));
    CHECK_TEXT("rank 1", "abandoned");
}

/* A rank that has its header waits for nobody else: one comes to that call only when the others' has ended. */
static void trial_leaver_before_a_late_rank(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    ll_round *round = round_make(c, rank, 1);
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    round_trial(c, rank, ll, 0);
    if (rank == LEAVER) CHECK_OK(expar_ll_abandon(ll));
    if (rank != LEAVER && rank != LATE) learn_of_leaver(round, ll);
    CHECK_OK(expar_group_barrier(group));
    if (rank == LATE) learn_of_leaver(round, ll);
    if (rank != LEAVER) CHECK_OK(expar_ll_destroy(ll));
    round_free(round);
    CHECK_OK(expar_group_barrier(group));
}

static void test_leaver_before_a_late_rank(void **state)
{
    (void)state;
    run_body(trial_leaver_before_a_late_rank);
}

static bool reject_on_leaver(const ll_case *c, int32_t rank, expar_ll *ll)
{
    ll_round *round = round_make(c, rank, 3);
    const bool rejects = rank == LEAVER;
    if (rejects) round->dispatch.format = (expar_ll_format)9;
    const bool good = CHECK_STATUS(rejects ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE,
                                   expar_ll_dispatch(ll, &round->dispatch, &round->received));
    round_free(round);
    return good;
}

/* A rank may not send headers without waiting if its next call's slot was not read there, because that call was
   rejected or its hook has not been called. The others learn of it otherwise, and at once all the same. */
static void trial_leaver_with_unread_half(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(c);
    for (int pending = 0; pending < 2; pending++) {
        expar_ll *ll = NULL;
        ll_round *open = round_make(c, rank, 1), *next = round_make(c, rank, 2);
        if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
        open->dispatch.hook = pending && rank == LEAVER;
        bool good = pending ? round_dispatch(open, ll) : reject_on_leaver(c, rank, ll);
        good = good && round_trial(c, rank, ll, 4);
        if (rank == LEAVER) {
            CHECK_OK(expar_ll_abandon(ll));
        } else if (good) {
            CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_dispatch(ll, &next->dispatch, &next->received));
            CHECK_TEXT("rank 1", "abandoned");
            CHECK_OK(expar_ll_destroy(ll));
        }
        round_free(open);
        round_free(next);
        CHECK_OK(expar_group_barrier(group));
    }
}

static void test_leaver_with_unread_half(void **state)
{
    (void)state;
    run_body(trial_leaver_with_unread_half);
}

/* Between a send and its hook: what it has sent arrives all the same, and its hook says that the buffer has gone. */
static void trial_leaver_with_hook(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    ll_round *round = round_make(c, rank, 1), *next = round_make(c, rank, 2);
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    round->dispatch.hook = 1;
    if (!round_dispatch(round, ll)) return;
    CHECK_OK(expar_group_barrier(group));
    if (rank == LEAVER) {
        CHECK_OK(expar_ll_abandon(ll));
        CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_hook_call(round->received.hook, NULL));
    } else {
        round_dispatch_hook(round);
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_dispatch(ll, &next->dispatch, &next->received));
        CHECK_TEXT("rank 1");
        CHECK_OK(expar_ll_destroy(ll));
    }
    round_free(round);
    round_free(next);
}

static void test_leaver_with_hook(void **state)
{
    (void)state;
    run_body(trial_leaver_with_hook);
}

/* ---- a call that another thread of the rank ends ----------------------------------------------------------------- */

static void *abandon_it(void *ll)
{
    while (!atomic_load(&((expar_ll *)ll)->base.busy))
        sched_yield();
    expar_ll_abandon(ll);
    return NULL;
}

/* Rank 0 never comes, so the leaver waits for it. */
static void trial_halt(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    pthread_t thread;
    ll_round *round = round_make(c, rank, 1);
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    if (rank == LEAVER) {
        CHECK(pthread_create(&thread, NULL, abandon_it, ll) == 0, "a thread");
        CHECK_STATUS(EXPAR_ERR_ABORTED, expar_ll_dispatch(ll, &round->dispatch, &round->received));
        CHECK_TEXT("counts", "abandoned");
        pthread_join(thread, NULL);
    }
    CHECK_OK(expar_group_barrier(group));
    if (rank != LEAVER) CHECK_OK(expar_ll_destroy(ll));
    round_free(round);
}

static void test_halt(void **state)
{
    (void)state;
    run_body(trial_halt);
}

/* ---- epochs ------------------------------------------------------------------------------------------------------ */

static bool trial_pair(const ll_case *c, int32_t rank, expar_ll *ll, uint32_t number)
{
    ll_round *a = round_make(c, rank, number), *b = round_make(c, rank, number + 1);
    a->dispatch.hook = b->dispatch.hook = 1;
    bool good = round_dispatch(a, ll) && round_dispatch(b, ll) && round_dispatch_hook(b) && round_dispatch_hook(a);
    round_free(a);
    round_free(b);
    return good && round_trial(c, rank, ll, number);
}

#define STAMPS 0xfffffffcu /* so many calls later words are the same */

/* Over the end of the stamps, by all of the first calls after it. */
static void trial_wrap(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    bool good = trial_pair(c, rank, ll, 1);
    CHECK_OK(expar_group_barrier(group));
    ll_executor_cpu_skip(ll->base.exec, STAMPS - 12);
    CHECK_OK(expar_group_barrier(group));
    for (uint32_t i = 0; i < 12 && good; i++)
        good = trial_pair(c, rank, ll, i);
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void test_wrap(void **state)
{
    (void)state;
    run_body(trial_wrap);
}

/* By the clock: where all cores are taken a yield lasts as long as the slice of the next thread. */
static void sleep_a_little(void *context)
{
    const struct timespec moment = {.tv_nsec = 200000};
    (void)context;
    nanosleep(&moment, NULL);
}

/* Flags of the first call, which no call has written since, equal those of the last one to the bit, unless they have
   been swept in between. Rank 0 sends late; it would be read before it has sent. */
static void trial_stale(expar_group *group, void *shared)
{
    ll_case few = *(const ll_case *)shared;
    const ll_case *many = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(many);
    expar_ll *ll = NULL;
    few.tokens[0] = few.tokens[1] = few.tokens[2] = 0;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    bool good = round_trial(many, rank, ll, 1) && round_trial(many, rank, ll, 2); /* epochs 1 and 2 */
    CHECK_OK(expar_group_barrier(group));
    ll_executor_cpu_skip(ll->base.exec, STAMPS / 2 - 2);
    CHECK_OK(expar_group_barrier(group));
    good = good && round_trial(&few, rank, ll, 3) && round_trial(&few, rank, ll, 4); /* both slots are swept */
    CHECK_OK(expar_group_barrier(group));
    ll_executor_cpu_skip(ll->base.exec, STAMPS / 2 - 2);
    if (rank == 0) ll_executor_cpu_delay(ll->base.exec, sleep_a_little, NULL);
    CHECK_OK(expar_group_barrier(group));
    good = good && round_trial(many, rank, ll, 5) && round_trial(many, rank, ll, 6); /* stamps 1 and 2 again */
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void test_stale_flags_are_swept(void **state)
{
    (void)state;
    run_body(trial_stale);
}

/* ---- children of fork -------------------------------------------------------------------------------------------- */

/* A child that exits ends what its parent's handlers of atexit end: nothing of it is its own. */
static void trial_child(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const expar_ll_config config = case_config(c);
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll)) || !round_trial(c, rank, ll, 0)) return;
    pid_t child = rank == LEAVER ? fork() : -1;
    if (child == 0)
        _exit(expar_ll_destroy(ll) == EXPAR_ERR_STATE && strstr(expar_last_error(), "expar_ll_destroy: this process, ")
                  ? 0
                  : 1);
    if (child > 0) {
        const int status = ranks_wait(child, ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL);
        CHECK(status == 0, "the child ended with wait status %#x", (unsigned)status);
    }
    round_trial(c, rank, ll, 1);
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_a_child_of_fork_destroys_nothing(void **state)
{
    (void)state;
    if (kind != RANKS_PROCESSES) skip();
    run_body(trial_child);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaver),
        cmocka_unit_test(test_leaver_before_a_late_rank),
        cmocka_unit_test(test_leaver_with_unread_half),
        cmocka_unit_test(test_leaver_with_hook),
        cmocka_unit_test(test_halt),
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_stale_flags_are_swept),
        cmocka_unit_test(test_a_child_of_fork_destroys_nothing),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
