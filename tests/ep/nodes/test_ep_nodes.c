/* SPDX-License-Identifier: Apache-2.0 */
/* Random scripts, plain ones and over all options together, on ranks of several nodes, which one host simulates: thread
 * ranks, or with the argument "processes" process ranks. Every other script's buffers have no limits. A round is one
 * call of the library. A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
#include "ep/harness/options_script.h"
#include "ep/harness/script.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#define OPS_PER_SCRIPT      16
#define OPTIONS_MOVES       24
#define ROUNDS_OF_THREADS   96
#define ROUNDS_OF_PROCESSES 48

static ranks_kind kind;
static int64_t rounds;
static uint64_t first_seed;

/* Nodes, and ranks a node. */
static const int32_t layouts[][2] = {{2, 1}, {2, 2}, {2, 4}, {4, 2}, {8, 1}, {3, 2}};
#define LAYOUTS (sizeof layouts / sizeof *layouts)

static ranks_plan plan_ranks(uint64_t seed)
{
    const int32_t *layout = layouts[seed % LAYOUTS];
    return (ranks_plan){.kind = kind, .size = layout[0] * layout[1], .ranks_per_node = layout[1]};
}

/* On each of the layouts. */
static bool has_no_limits(uint64_t seed)
{
    return (seed / LAYOUTS + seed) % 2;
}

static bool trial_script(uint64_t seed)
{
    const ranks_plan ranks = plan_ranks(seed);
    script *s = script_make_on(seed, &ranks, OPS_PER_SCRIPT);
    if (has_no_limits(seed)) script_forget_limits(s);
    return script_run(s);
}

static void test_scripts(void **state)
{
    (void)state;
    uint64_t seed = first_seed;
    for (int64_t done = 0; done < rounds; done += OPS_PER_SCRIPT)
        assert_true(trial_script(seed++));
}

static bool trial_options(uint64_t seed)
{
    const ranks_plan ranks = plan_ranks(seed);
    options_script s = options_script_make_on(seed, &ranks, OPTIONS_MOVES);
    s.unlimited = has_no_limits(seed);
    options_script_fit(&s);
    return options_script_run(&s);
}

static void test_options(void **state)
{
    (void)state;
    uint64_t seed = first_seed;
    for (int64_t done = 0; done < rounds; done += OPTIONS_MOVES)
        assert_true(trial_options(seed++));
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    rounds = random_test_rounds(kind == RANKS_THREADS ? ROUNDS_OF_THREADS : ROUNDS_OF_PROCESSES);
    first_seed =
        random_test_seed(kind == RANKS_THREADS ? "scripts across nodes, threads" : "scripts across nodes, processes");
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scripts), cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
