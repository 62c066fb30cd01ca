/* SPDX-License-Identifier: Apache-2.0 */
/* Litmus: the protocol of headers, acknowledgements and slots is right by its order alone.
 *
 * Each rank is held back at random between any two steps: not at all, for a yield, for some microseconds, rarely for a
 * millisecond. Meanwhile random scripts run whose ranks are refused, differ, and make third calls. Every result must be
 * the oracle's. */
#include "ep/harness/holdup.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/script.h"
#include "oracle/unit.h"

#define OPS_PER_SCRIPT 24
#define ROUNDS         1200
#define SLEEPS         12 /* of 256 steps */
#define MAX_RANKS      8

static void install(void *context, expar_ll *ll, int32_t rank)
{
    holdup *own = (holdup *)context + rank;
    hold_install(ll, holdup_step, own);
    if (own->seed & 4) hold_stream(ll, 0); /* flags of several rows come together */
}

static bool trial_script(uint64_t seed)
{
    const lowlat_script_plan plan = {.kind = RANKS_THREADS, .num_ops = OPS_PER_SCRIPT, .with_trouble = true};
    holdup holdups[MAX_RANKS];
    random_source random = random_start(~seed);
    holdups_draw(holdups, MAX_RANKS, SLEEPS, &random);
    lowlat_script *s = lowlat_script_make(seed, &plan);
    s->prepare = install;
    s->prepare_context = holdups;
    bool passed = ranks_run(&s->ranks, lowlat_script_trial, s);
    if (!passed) lowlat_script_print(s);
    lowlat_script_free(s);
    return passed;
}

/* A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
static void test_delays_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("low-latency litmus");
    int64_t rounds = random_test_rounds(ROUNDS);
    for (int64_t done = 0; done < rounds; done += OPS_PER_SCRIPT)
        assert_true(trial_script(seed++));
    assert_true(holdup_count() > 0);
}

int main(void)
{
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delays_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
