/* SPDX-License-Identifier: Apache-2.0 */
/* Random scripts on thread ranks, or with the argument "processes" on process ranks. A round is one call of the
 * library. A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
#include "ep/harness/script.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#define OPS_PER_SCRIPT      12
#define ROUNDS_OF_THREADS   1600
#define ROUNDS_OF_PROCESSES 600

static ranks_kind kind;
static int64_t rounds;
static uint64_t first_seed;

static bool trial_script(uint64_t seed)
{
    return script_run(script_make(seed, kind, OPS_PER_SCRIPT));
}

static void test_scripts(void **state)
{
    (void)state;
    uint64_t seed = first_seed;
    for (int64_t done = 0; done < rounds; done += OPS_PER_SCRIPT)
        assert_true(trial_script(seed++));
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    rounds = random_test_rounds(kind == RANKS_THREADS ? ROUNDS_OF_THREADS : ROUNDS_OF_PROCESSES);
    first_seed = random_test_seed(kind == RANKS_THREADS ? "random scripts, threads" : "random scripts, processes");
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scripts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
