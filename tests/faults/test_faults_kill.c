/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 of one rank, at every place and at random moments. EXPAR_TEST_ROUNDS sets the number of random ones. */
#include "faults/fault.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#define RANDOM_KILLS 60

static uint64_t seed;
static int64_t rounds;

static fault_plan plan_at(fault_place place, int32_t victim)
{
    return (fault_plan){
        .size = 4, .victim = victim, .place = place, .by_itself = true, .held_back = -1, .signal = SIGKILL};
}

/* Every rank has its turn to die. */
static void kill_each(fault_place place, int64_t round, expar_ep_path path)
{
    for (int32_t victim = 0; victim < 4; victim++) {
        fault_plan plan = plan_at(place, victim);
        plan.round = round;
        plan.path = path;
        assert_true(fault_run(&plan));
    }
}

static void test_before_joining(void **state)
{
    (void)state;
    kill_each(FAULT_STARTED, 0, EXPAR_EP_PATH_AUTO);
}

static void test_before_creating_a_buffer(void **state)
{
    (void)state;
    kill_each(FAULT_JOINED, 0, EXPAR_EP_PATH_AUTO);
}

static void test_before_the_first_dispatch(void **state)
{
    (void)state;
    kill_each(FAULT_DISPATCHES, 0, EXPAR_EP_PATH_AUTO);
}

static void test_before_a_later_dispatch(void **state)
{
    (void)state;
    kill_each(FAULT_DISPATCHES, 5, EXPAR_EP_PATH_QUEUE);
}

static void test_before_a_combine(void **state)
{
    (void)state;
    kill_each(FAULT_COMBINES, 3, EXPAR_EP_PATH_AUTO);
    kill_each(FAULT_COMBINES, 3, EXPAR_EP_PATH_QUEUE);
}

static void test_before_leaving(void **state)
{
    (void)state;
    kill_each(FAULT_LEAVES, 2, EXPAR_EP_PATH_AUTO);
}

/* One rank is held back, so that the victim is inside the call when it dies. */
static void kill_inside(fault_place place, expar_ep_path path)
{
    for (int32_t victim = 0; victim < 4; victim++) {
        fault_plan plan = plan_at(place, victim);
        plan.by_itself = false;
        plan.held_back = (victim + 1) % 4;
        plan.round = 2;
        plan.path = path;
        assert_true(fault_run(&plan));
    }
}

static void test_inside_creating_a_buffer(void **state)
{
    (void)state;
    fault_plan plan = plan_at(FAULT_JOINED, 1);
    plan.by_itself = false;
    plan.held_back = 0;
    assert_true(fault_run(&plan));
}

static void test_inside_a_dispatch(void **state)
{
    (void)state;
    kill_inside(FAULT_DISPATCHES, EXPAR_EP_PATH_AUTO);
    kill_inside(FAULT_DISPATCHES, EXPAR_EP_PATH_QUEUE);
}

static void test_inside_a_combine(void **state)
{
    (void)state;
    kill_inside(FAULT_COMBINES, EXPAR_EP_PATH_AUTO);
    kill_inside(FAULT_COMBINES, EXPAR_EP_PATH_QUEUE);
}

/* From the start of the processes on, so that set-up has its share. */
static void test_at_any_moment(void **state)
{
    (void)state;
    random_source random = random_start(seed);
    for (int64_t i = 0; i < rounds; i++) {
        int32_t size =
            random_once_in(&random, 2) ? FAULT_MAX_RANKS : (int32_t)random_between(&random, 2, FAULT_MAX_RANKS);
        fault_plan plan = {.size = size,
                           .victim = (int32_t)random_between(&random, 0, size - 1),
                           .place = FAULT_ENDED,
                           .held_back = -1,
                           .signal = SIGKILL,
                           .ends_at_once = random_once_in(&random, 2),
                           .delay_us = random_between(&random, 0, random_once_in(&random, 2) ? 8000 : 60000),
                           .path = (expar_ep_path)random_between(&random, EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_QUEUE)};
        if (plan.path == EXPAR_EP_PATH_DIRECT) plan.path = EXPAR_EP_PATH_AUTO;
        if (!fault_run(&plan)) {
            fprintf(stderr, "kill %" PRId64 " of seed %" PRIu64 " went wrong\n", i, seed);
            assert_true(false);
        }
    }
}

static void test_no_process_is_left(void **state)
{
    (void)state;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
    seed = random_test_seed("kills");
    rounds = random_test_rounds(RANDOM_KILLS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_joining),           cmocka_unit_test(test_before_creating_a_buffer),
        cmocka_unit_test(test_inside_creating_a_buffer), cmocka_unit_test(test_before_the_first_dispatch),
        cmocka_unit_test(test_before_a_later_dispatch),  cmocka_unit_test(test_inside_a_dispatch),
        cmocka_unit_test(test_before_a_combine),         cmocka_unit_test(test_inside_a_combine),
        cmocka_unit_test(test_before_leaving),           cmocka_unit_test(test_at_any_moment),
        cmocka_unit_test(test_no_process_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
