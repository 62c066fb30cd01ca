/* SPDX-License-Identifier: Apache-2.0 */
/* Random scripts over all options together, on thread ranks, or with the argument "processes" on process ranks. A round
 * is one call of the library. A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it
 * alone. */
#include "ep/harness/check.h"
#include "ep/harness/options_script.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#define MOVES_PER_SCRIPT    24
#define ROUNDS_OF_THREADS   1600
#define ROUNDS_OF_PROCESSES 480
/* One seed in so many has many tokens. */
#define WIDE_ONCE_IN 8

static ranks_kind kind;
static int64_t rounds;
static uint64_t first_seed;

static bool trial_script(uint64_t seed)
{
    options_script s = options_script_make(seed, kind, 0, MOVES_PER_SCRIPT);
    if (seed % WIDE_ONCE_IN == 0) options_script_widen(&s);
    return options_script_run(&s);
}

static void test_scripts(void **state)
{
    (void)state;
    uint64_t seed = first_seed;
    for (int64_t done = 0; done < rounds; done += MOVES_PER_SCRIPT)
        assert_true(trial_script(seed++));
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    rounds = random_test_rounds(kind == RANKS_THREADS ? ROUNDS_OF_THREADS : ROUNDS_OF_PROCESSES);
    first_seed = random_test_seed(kind == RANKS_THREADS ? "all options, threads" : "all options, processes");
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scripts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
