/* SPDX-License-Identifier: Apache-2.0 */
/* SIGSTOP of one rank: its silence is an error after the group's time-out, which is short here. A rank that wakes later
 * finds the others gone. */
#include "faults/fault.h"
#include <signal.h>

static fault_plan plan_at(fault_place place, int32_t victim, bool wake)
{
    return (fault_plan){.size = 3,
                        .victim = victim,
                        .place = place,
                        .by_itself = true,
                        .round = 3,
                        .held_back = -1,
                        .signal = SIGSTOP,
                        .timeout_ms = 700,
                        .wake = wake};
}

/* Side by side: survivors ask for seconds who has fallen silent before they give the buffer up. */
static void stop_each(fault_place place, expar_ep_path path, bool wake)
{
    fault_plan plans[3];
    for (int32_t victim = 0; victim < 3; victim++) {
        plans[victim] = plan_at(place, victim, wake);
        plans[victim].path = path;
    }
    assert_true(fault_run_all(plans, 3));
}

static void test_before_a_dispatch(void **state)
{
    (void)state;
    stop_each(FAULT_DISPATCHES, EXPAR_EP_PATH_AUTO, false);
}

static void test_before_a_combine(void **state)
{
    (void)state;
    stop_each(FAULT_COMBINES, EXPAR_EP_PATH_AUTO, false);
    stop_each(FAULT_COMBINES, EXPAR_EP_PATH_QUEUE, false);
}

static void test_inside_a_dispatch(void **state)
{
    (void)state;
    fault_plan plan = plan_at(FAULT_DISPATCHES, 0, false);
    plan.by_itself = false;
    plan.held_back = 2;
    plan.path = EXPAR_EP_PATH_QUEUE;
    assert_true(fault_run(&plan));
}

static void test_wakes_before_a_dispatch(void **state)
{
    (void)state;
    stop_each(FAULT_DISPATCHES, EXPAR_EP_PATH_QUEUE, true);
}

static void test_wakes_before_a_combine(void **state)
{
    (void)state;
    stop_each(FAULT_COMBINES, EXPAR_EP_PATH_AUTO, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_a_dispatch),      cmocka_unit_test(test_inside_a_dispatch),
        cmocka_unit_test(test_before_a_combine),       cmocka_unit_test(test_wakes_before_a_dispatch),
        cmocka_unit_test(test_wakes_before_a_combine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
