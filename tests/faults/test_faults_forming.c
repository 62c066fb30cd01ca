/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of two nodes dies or stops while the group forms, in the network's self-test. The others wait for its
 * answers on the network, not on the control sockets, and learn of it all the same. */
#include "faults/fault.h"
#include "net/fabric/fabric.h"
#include <signal.h>

#define RANKS 4

/* The self-test: a rank's operations on the next one, and then one touch of each rank. */
#define OPERATIONS_NEXT 20
#define OPERATIONS      (OPERATIONS_NEXT + RANKS)

/* For a victim: it dies or stops before the operation after `left` more. */
static struct {
    void (*strike)(const void *worker);
    const void *worker;
    int32_t left;
} grief;

expar_status __real_fabric_run(fabric *f, const char *what, const transport_request *request);
expar_status __wrap_fabric_run(fabric *f, const char *what, const transport_request *request);

expar_status __wrap_fabric_run(fabric *f, const char *what, const transport_request *request)
{
    if (grief.strike && grief.left-- == 0) grief.strike(grief.worker);
    return __real_fabric_run(f, what, request);
}

static void come_to_grief(void (*strike)(const void *worker), const void *worker)
{
    grief.strike = strike;
    grief.worker = worker;
}

static fault_plan plan_for(int32_t victim, int signal)
{
    return (fault_plan){.size = RANKS,
                        .victim = victim,
                        .ranks_per_node = 2,
                        .place = FAULT_JOINED,
                        .by_itself = true,
                        .forming = come_to_grief,
                        .held_back = -1,
                        .signal = signal};
}

/* No time-out may end what the survivors wait for: it is longer than they have. */
static void kill_each(int32_t operation)
{
    grief.left = operation;
    for (int32_t victim = 0; victim < RANKS; victim++) {
        fault_plan plan = plan_for(victim, SIGKILL);
        plan.bootstrap_timeout_ms = 10 * FAULT_DEADLINE_MS;
        assert_true(fault_run(&plan));
    }
}

static void test_killed_before_the_first(void **state)
{
    (void)state;
    kill_each(0);
}

static void test_killed_between_two(void **state)
{
    (void)state;
    kill_each(OPERATIONS_NEXT / 2);
}

static void test_killed_before_touching_all(void **state)
{
    (void)state;
    kill_each(OPERATIONS_NEXT);
    kill_each(OPERATIONS - 1);
}

/* All at once: survivors wait for seconds. */
static void test_stopped(void **state)
{
    (void)state;
    fault_plan plans[RANKS];
    grief.left = 0;
    for (int32_t victim = 0; victim < RANKS; victim++) {
        plans[victim] = plan_for(victim, SIGSTOP);
        plans[victim].bootstrap_timeout_ms = 3000;
    }
    assert_true(fault_run_all(plans, FAULT_MOST_AT_ONCE));
    assert_true(fault_run(&plans[FAULT_MOST_AT_ONCE]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_before_the_first),
        cmocka_unit_test(test_killed_between_two),
        cmocka_unit_test(test_killed_before_touching_all),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
