/* SPDX-License-Identifier: Apache-2.0 */
/* Process ranks on GPUs, each with its own context: one is killed or stopped in the middle. The others name it, are
 * told the same again at once, destroy buffer and group, and end. */
#include "faults/fault.h"
#include <signal.h>
#include <sys/wait.h>

static void strike(fault_place place, int32_t victim, int signal)
{
    const fault_plan plan = {.size = 3,
                             .victim = victim,
                             .place = place,
                             .round = 2,
                             .held_back = (victim + 1) % 3,
                             .signal = signal,
                             .group_timeout_ms = signal == SIGSTOP ? 1500 : 0};
    assert_true(fault_run(&plan));
}

static void test_killed_inside_a_dispatch(void **state)
{
    (void)state;
    strike(FAULT_DISPATCHES, 0, SIGKILL);
    strike(FAULT_DISPATCHES, 2, SIGKILL);
}

static void test_killed_inside_a_combine(void **state)
{
    (void)state;
    strike(FAULT_COMBINES, 1, SIGKILL);
}

static void test_stopped_inside_a_combine(void **state)
{
    (void)state;
    strike(FAULT_COMBINES, 1, SIGSTOP);
}

/* From when kernels run on; set-up of a context alone takes longer than the CPU's tests give a rank. */
static void test_killed_at_any_moment(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("kills on GPUs"));
    for (int64_t i = random_test_rounds(4); i > 0; i--) {
        const fault_plan plan = {.size = 3,
                                 .victim = (int32_t)random_between(&random, 0, 2),
                                 .place = random_once_in(&random, 2) ? FAULT_DISPATCHES : FAULT_COMBINES,
                                 .by_itself = true,
                                 .round = random_between(&random, 0, 20),
                                 .held_back = -1,
                                 .signal = SIGKILL};
        assert_true(fault_run(&plan));
    }
}

static void test_no_process_is_left(void **state)
{
    (void)state;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_inside_a_dispatch), cmocka_unit_test(test_killed_inside_a_combine),
        cmocka_unit_test(test_stopped_inside_a_combine), cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_no_process_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
