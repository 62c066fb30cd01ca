/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench setup as users run it: the members of its JSON, its other forms, its rejections. Times are never judged.
 * "nodes": the same across nodes, which needs a network. */
#include "printed.h"
#include "shell.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BRIEF " --iters 2 --warmup 1 "

static void assert_made(const char *arguments, int ranks, int nodes)
{
    static const char *const what[] = {"group", "buffer", "group and buffer"};
    json_t *json = results_of(arguments);
    const json_t *results = json_object_get(json, "results"), *config = json_object_get(json, "config");
    assert_int_equal(json_array_size(results), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *result = json_array_get(results, i);
        assert_string_equal(results_text(result, "what"), what[i]);
        assert_true(results_real(result, "min_us") > 0);
        assert_true(results_real(result, "min_us") <= results_real(result, "median_us"));
        assert_true(results_real(result, "median_us") <= results_real(result, "p99_us"));
        assert_true(json_is_true(json_object_get(result, "verified")));
    }
    assert_true(results_real(config, "ranks") == ranks);
    assert_true(results_real(config, "nodes") == nodes);
    assert_true(results_real(config, "iters") == 2);
    json_decref(json);
}

static void groups_and_buffers_are_made(void **state)
{
    (void)state;
    assert_made("setup -n 3" BRIEF, 3, 1);
}

static void groups_and_buffers_are_made_across_nodes(void **state)
{
    (void)state;
    assert_made("setup -n 4 --nodes 2" BRIEF, 4, 2);
    shell_expect("$EXPAR bench setup -n 2 --nodes 2" BRIEF, 0, "2 ranks on 2 nodes, buffers without limits", "");
    shell_expect("$EXPAR bench setup -n 2 --nodes 2" BRIEF "--csv", 0, "\ngroup and buffer,2,2,", "");
}

static void other_forms_of_output(void **state)
{
    (void)state;
    shell_expect("$EXPAR bench setup -n 2" BRIEF "--csv", 0, "\ngroup and buffer,2,1,", "");
    shell_expect("$EXPAR run -n 1 --no-prefix -- $EXPAR bench setup" BRIEF, 0, "1 ranks, buffers without limits", "");
    shell_expect("$EXPAR bench setup -n 1" BRIEF, 0, " yes\n", "");
}

static void bad_options_are_named(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--tokens 4", "--tokens: setup has none"},
        {"--seed 3", "--seed: setup has none"},
        {"--ops put", "--ops: only with rma"},
        {"--hook", "--hook: only with ll"},
        {"--mpi", "--mpi is for dispatch, combine and ll"},
        {"--device cuda", "setup is measured on the CPU only"},
        {"--nodes 2 -n 3", "--nodes 2 does not divide -n 3"},
        {"dispatch", "setup is measured by itself"},
        {"rma", "setup is measured by itself"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[256];
        snprintf(command, sizeof command, "$EXPAR bench setup %s", cases[i][0]);
        shell_expect(command, 64, "", cases[i][1]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest across[] = {
        cmocka_unit_test(groups_and_buffers_are_made_across_nodes),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_and_buffers_are_made),
        cmocka_unit_test(other_forms_of_output),
        cmocka_unit_test(bad_options_are_named),
    };
    if (argc > 1 && strcmp(argv[1], "nodes") == 0) return cmocka_run_group_tests(across, shell_setup, shell_teardown);
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
