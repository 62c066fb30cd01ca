/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 of one rank of two nodes, before and inside the phases of calls: all others learn who it was, those on its
 * node and rail as well as those that have nothing to do with it. EXPAR_TEST_ROUNDS sets the number of kills at random
 * moments. */
#include "faults/fault.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#define RANKS        4
#define RANDOM_KILLS 2

static uint64_t seed;
static int64_t rounds;

static fault_plan plan_at(fault_place place, int32_t victim, expar_path path)
{
    return (fault_plan){.size = RANKS,
                        .victim = victim,
                        .ranks_per_node = 2,
                        .place = place,
                        .by_itself = true,
                        .round = 2,
                        .held_back = -1,
                        .signal = SIGKILL,
                        .path = path};
}

static void test_before_a_dispatch(void **state)
{
    (void)state;
    const fault_plan plan = plan_at(FAULT_DISPATCHES, 1, EXPAR_PATH_AUTO);
    assert_true(fault_run(&plan));
}

static void test_before_a_combine(void **state)
{
    (void)state;
    const fault_plan plan = plan_at(FAULT_COMBINES, 2, EXPAR_PATH_QUEUE);
    assert_true(fault_run(&plan));
}

/* One rank is held back, so that the victim is inside the call when it dies: one of its node, of its rail, or
   neither. */
static void kill_inside(fault_place place, int32_t held_back)
{
    fault_plan plan = plan_at(place, 0, held_back == 3 ? EXPAR_PATH_AUTO : EXPAR_PATH_QUEUE);
    plan.by_itself = false;
    plan.held_back = held_back;
    assert_true(fault_run(&plan));
}

static void test_inside_a_dispatch(void **state)
{
    (void)state;
    kill_inside(FAULT_DISPATCHES, 1);
    kill_inside(FAULT_DISPATCHES, 3);
}

static void test_inside_a_combine(void **state)
{
    (void)state;
    kill_inside(FAULT_COMBINES, 1);
    kill_inside(FAULT_COMBINES, 2);
}

/* From somewhere in a round on. */
static void test_at_any_moment(void **state)
{
    (void)state;
    random_source random = random_start(seed);
    for (int64_t i = 0; i < rounds; i++) {
        fault_plan plan = plan_at(FAULT_DISPATCHES, (int32_t)random_between(&random, 0, RANKS - 1), EXPAR_PATH_AUTO);
        plan.by_itself = false;
        plan.in_passing = true;
        plan.delay_us = random_between(&random, 0, 4000);
        if (random_once_in(&random, 2)) plan.path = EXPAR_PATH_QUEUE;
        if (fault_run(&plan)) continue;
        fprintf(stderr, "kill %" PRId64 " of seed %" PRIu64 " went wrong\n", i, seed);
        assert_true(false);
    }
}

int main(void)
{
    seed = random_test_seed("kills across nodes");
    rounds = random_test_rounds(RANDOM_KILLS);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_before_a_dispatch),
                                       cmocka_unit_test(test_before_a_combine),
                                       cmocka_unit_test(test_inside_a_dispatch),
                                       cmocka_unit_test(test_inside_a_combine), cmocka_unit_test(test_at_any_moment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
