/* SPDX-License-Identifier: Apache-2.0 */
/* Random scripts of low-latency mode on thread ranks, or with the argument "processes" on process ranks. A round is one
 * call of the library. A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
#include "ep/harness/stage.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/script.h"
#include "oracle/unit.h"

#define OPS_PER_SCRIPT      14
#define ROUNDS_OF_THREADS   1400
#define ROUNDS_OF_PROCESSES 560

static ranks_kind kind;
static int64_t rounds;

/* As the rows of calls of many megabytes go. */
static void stream_rows(void *context, expar_ll *ll, int32_t rank)
{
    (void)context;
    (void)rank;
    hold_stream(ll, 0);
}

static void trial_scripts(const char *name, const lowlat_script_plan *plan)
{
    uint64_t seed = random_test_seed(name);
    for (int64_t done = 0; done < rounds; done += OPS_PER_SCRIPT) {
        lowlat_script *s = lowlat_script_make(seed, plan);
        s->prepare = seed++ & 1 ? stream_rows : NULL;
        bool passed = ranks_run(&s->ranks, lowlat_script_trial, s);
        if (!passed) lowlat_script_print(s);
        lowlat_script_free(s);
        assert_true(passed);
    }
}

static void test_calls(void **state)
{
    (void)state;
    const lowlat_script_plan plan = {.kind = kind, .num_ops = OPS_PER_SCRIPT, .with_normal = true};
    trial_scripts("low-latency scripts", &plan);
}

/* Rejections, wrong indices, mismatches, third calls: each with its report, and all later calls are right. */
static void test_troubled_calls(void **state)
{
    (void)state;
    const lowlat_script_plan plan = {.kind = kind, .num_ops = OPS_PER_SCRIPT, .with_trouble = true};
    trial_scripts("troubled low-latency scripts", &plan);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    rounds = random_test_rounds(kind == RANKS_THREADS ? ROUNDS_OF_THREADS : ROUNDS_OF_PROCESSES);
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls), cmocka_unit_test(test_troubled_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
