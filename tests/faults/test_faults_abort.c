/* SPDX-License-Identifier: Apache-2.0 */
/* expar_group_abort on rank 0 of 3 thread ranks, from another thread. Its calls end with EXPAR_ERR_ABORTED. Once it has
 * destroyed its group the others' end with EXPAR_ERR_PEER that names it. */
#include "ep/harness/stage.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define ABORTER 0
/* Gives the call time to be well inside; the outcome is the same when it is not. */
#define INSIDE_MS 20

typedef struct abort_test {
    traffic *traffic;
    bool in_combine;            /* else in a dispatch */
    bool early;                 /* abort first, then call */
    pthread_barrier_t given_up; /* ranks 0 and 1: rank 1 comes to its call when that of rank 0 has ended */
    pthread_barrier_t others;   /* the ranks that stay: nobody leaves before all have seen the error */
} abort_test;

static void *abort_later(void *group)
{
    const struct timespec span = {0, INSIDE_MS * 1000000};
    nanosleep(&span, NULL);
    return (void *)(intptr_t)expar_group_abort(group);
}

/* A call that cannot end well: rank 1 comes to it after rank 0 gave up. */
static expar_status call(stage *s, const abort_test *test, const trial_arrival *arrival)
{
    const traffic *t = test->traffic;
    const trial_choice plain = {0};
    expar_status status;
    if (test->in_combine) {
        expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
        int64_t num_tokens = t->inputs[s->rank].num_tokens;
        void *y = traffic_alloc((size_t)num_tokens, traffic_row_bytes(t));
        args.x = arrival->result.recv_x;
        args.handle = arrival->handle;
        args.out_y = expar_tensor_2d(y, traffic_dtype(t), num_tokens, t->job.hidden);
        status = expar_ep_combine(s->ep, &args, NULL);
        free(y);
    } else {
        expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &plain, &s->area, NULL);
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        status = expar_ep_dispatch(s->ep, &args, &result);
        trial_dispatch_args_free(&args);
    }
    return status;
}

static void abort_and_call(stage *s, abort_test *test, const trial_arrival *arrival)
{
    const char *name = test->in_combine ? "expar_ep_combine" : "expar_ep_dispatch";
    pthread_t thread;
    void *aborted = NULL;
    if (test->early)
        aborted = (void *)(intptr_t)expar_group_abort(s->group);
    else if (pthread_create(&thread, NULL, abort_later, s->group))
        abort();
    CHECK_STATUS(EXPAR_ERR_ABORTED, call(s, test, arrival));
    CHECK_TEXT(name, "abort");
    pthread_barrier_wait(&test->given_up);
    if (!test->early) pthread_join(thread, &aborted);
    CHECK_STATUS(EXPAR_OK, (expar_status)(intptr_t)aborted);
    CHECK_STATUS(EXPAR_ERR_ABORTED, call(s, test, arrival));
    CHECK_TEXT(name, "abort", "poisoned");
}

static void call_and_hear(stage *s, abort_test *test, const trial_arrival *arrival)
{
    if (s->rank == 1) pthread_barrier_wait(&test->given_up);
    CHECK_STATUS(EXPAR_ERR_PEER, call(s, test, arrival));
    CHECK_TEXT(test->in_combine ? "expar_ep_combine" : "expar_ep_dispatch", "rank 0");
    CHECK_STATUS(EXPAR_ERR_PEER, call(s, test, arrival));
    CHECK_TEXT("rank 0", "poisoned");
    pthread_barrier_wait(&test->others);
}

/* Not stage_run: the group does not end well, and the area is not given back. */
static void trial_abort(expar_group *group, void *shared)
{
    abort_test *test = shared;
    const trial_choice plain = {0};
    const stage_plan plan = stage_plan_for(test->traffic, RANKS_THREADS);
    stage s = {.group = group, .rank = expar_group_rank(group)};
    trial_arrival arrival;
    if (!CHECK_OK(expar_ep_create(group, &plan.config, &s.ep))) return;
    trial_dispatch(s.ep, test->traffic, s.rank, &plain, &s.area, NULL, &arrival);
    if (s.rank == ABORTER)
        abort_and_call(&s, test, &arrival);
    else
        call_and_hear(&s, test, &arrival);
    trial_release(&arrival, true);
    CHECK_OK(expar_ep_destroy(s.ep));
}

static void run(bool in_combine, bool early)
{
    const int64_t num_tokens[] = {5, 6, 7};
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = 3};
    traffic_plan plan = {.num_ranks = 3, .hidden = 16, .topk = 3, .num_experts = 6, .num_tokens = num_tokens};
    random_source random = random_start(8);
    abort_test test = {.in_combine = in_combine, .early = early, .traffic = traffic_make(&plan, &random)};
    pthread_barrier_init(&test.given_up, NULL, 2);
    pthread_barrier_init(&test.others, NULL, 2);
    bool passed = ranks_run(&ranks, trial_abort, &test);
    pthread_barrier_destroy(&test.others);
    pthread_barrier_destroy(&test.given_up);
    traffic_free(test.traffic);
    assert_true(passed);
}

static void test_abort_in_a_dispatch(void **state)
{
    (void)state;
    run(false, false);
}

static void test_abort_in_a_combine(void **state)
{
    (void)state;
    run(true, false);
}

static void test_abort_before_a_dispatch(void **state)
{
    (void)state;
    run(false, true);
}

static void test_abort_before_a_combine(void **state)
{
    (void)state;
    run(true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abort_in_a_dispatch),
        cmocka_unit_test(test_abort_in_a_combine),
        cmocka_unit_test(test_abort_before_a_dispatch),
        cmocka_unit_test(test_abort_before_a_combine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
