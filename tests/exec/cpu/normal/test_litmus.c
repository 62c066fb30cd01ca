/* SPDX-License-Identifier: Apache-2.0 */
/* Litmus: the protocols of buffer advertisements and rings are right by their order alone.
 *
 * Each thread of each rank is held back at random between any two steps: not at all, for a yield, for some
 * microseconds, rarely for a millisecond. Meanwhile random scripts over all options run: direct, by the queue, mixed,
 * repeated, refused, with rings of 1 to 4 slots and 1 to 3 channels. Every result must be the oracle's. "nodes": on
 * ranks of several nodes, every other script without limits, which the nights play. */
#include "ep/harness/check.h"
#include "ep/harness/holdup.h"
#include "ep/harness/options_script.h"
#include "ep/normal/normal.h"
#include "exec/cpu/create.h"
#include "oracle/routings.h"
#include "oracle/unit.h"

#include <string.h>

#define MOVES_PER_SCRIPT 20
#define ROUNDS           1200
#define SLEEPS           16 /* of 256 steps */
#define MAX_RANKS        6

static bool across;

static void install(void *context, expar_ep *ep, int32_t rank)
{
    executor_cpu_delay(ep->base.exec, holdup_step, (holdup *)context + rank);
}

static bool trial_script(uint64_t seed)
{
    random_source random = random_start(~seed);
    const ranks_plan nodes = {.kind = RANKS_THREADS, .size = seed % 3 ? 4 : 6, .ranks_per_node = seed % 3 == 1 ? 1 : 2};
    options_script s = across ? options_script_make_on(seed, &nodes, MOVES_PER_SCRIPT)
                              : options_script_make(seed, RANKS_THREADS, 0, MOVES_PER_SCRIPT);
    holdup holdups[MAX_RANKS];
    holdups_draw(holdups, MAX_RANKS, SLEEPS, &random);
    for (int32_t b = 0; b < s.num_buffers; b++) {
        s.configs[b].ring_slots = (int32_t)random_between(&random, 1, 4);
        s.configs[b].num_channels = (int32_t)random_between(&random, 1, 3);
    }
    s.unlimited = across && seed % 2;
    options_script_fit(&s);
    s.prepare = install;
    s.prepare_context = holdups;
    return options_script_run(&s);
}

/* A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
static void test_delays_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("litmus");
    int64_t rounds = random_test_rounds(ROUNDS);
    for (int64_t done = 0; done < rounds; done += MOVES_PER_SCRIPT)
        assert_true(trial_script(seed++));
    assert_true(holdup_count() > 0);
}

int main(int argc, char **argv)
{
    across = argc > 1 && strcmp(argv[1], "nodes") == 0;
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delays_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
