/* SPDX-License-Identifier: Apache-2.0 */
/* expar check as a user runs it: its output, its exit codes, and trouble. */
#include "shell.h"
#include "terminal.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Checks of this machine may find warnings and even failures. Tests look at rows that they control. */
static json_t *check_json(const char *command, int *code)
{
    struct shell_result result = shell(command);
    json_error_t error;
    json_t *value = json_loads(result.out, 0, &error);
    if (!value) fail_msg("`%s` gave %d and no JSON: %s\nerr: %s", command, result.code, result.out, result.err);
    if (code) *code = result.code;
    shell_free(&result);
    return value;
}

static const json_t *row_of(const json_t *value, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(value, "checks"), i, row)
    {
        if (!strcmp(json_string_value(json_object_get(row, "name")), name)) return row;
    }
    fail_msg("there is no row '%s'", name);
    return NULL;
}

static void expect_row(const json_t *value, const char *name, const char *status, const char *part)
{
    const json_t *row = row_of(value, name);
    const char *found = json_string_value(json_object_get(row, "status"));
    const char *text = json_string_value(json_object_get(row, "value"));
    if (strcmp(found, status) != 0 || !strstr(text, part))
        fail_msg("%s: %s, '%s' instead of %s, '%s'", name, found, text, status, part);
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void json_has_all_rows_of_all_areas(void **state)
{
    (void)state;
    static const char *const names[] = {"cpuset",         "numa",       "governor",    "huge_pages",
                                        "dev_shm",        "memlock",    "open_files",  "pidfd_getfd",
                                        "ptrace_scope",   "interfaces", "mtu",         "mtu_path",
                                        "rendezvous",     "providers",  "rdma_ports",  "gid",
                                        "error_counters", "gpu_driver", "nvrtc",       "peer_access",
                                        "nvlink",         "ecc",        "throttling",  "mig",
                                        "gpu_nic",        "gpu_numa",   "versions",    "clocks",
                                        "pair_latency",   "pair_rate",  "selftest_p2p"};
    static const char *const keys[] = {"area", "name", "status", "value", "expected"};
    int code;
    json_t *value = check_json("env -u EXPAR_TRANSPORTS $EXPAR check --json -n 2", &code);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *row = row_of(value, names[i]);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            assert_true(json_is_string(json_object_get(row, keys[k])));
        assert_non_null(json_object_get(row, "remedy"));
    }
    assert_int_equal(json_integer_value(json_object_get(value, "exit_code")), code);
    assert_int_equal(json_integer_value(json_object_get(value, "ranks")), 2);
    expect_row(value, "selftest_p2p", "ok", "right");
#ifdef HAVE_FABRIC
    expect_row(value, "selftest_fabric", "ok", "right");
    expect_row(value, "providers", "ok", "provider ");
#endif
    expect_row(value, "clocks", "skipped", "one host");
    json_decref(value);
}

static void a_job_prints_once_and_compares(void **state)
{
    (void)state;
    json_t *value = check_json("env -u EXPAR_TRANSPORTS $EXPAR run -n 3 --no-prefix -- $EXPAR check --json", NULL);
    assert_int_equal(json_integer_value(json_object_get(value, "ranks")), 3);
    expect_row(value, "versions", "ok", ".");
    expect_row(value, "rendezvous", "ok", "all ranks have met");
    assert_string_equal(json_string_value(json_object_get(row_of(value, "pidfd_getfd"), "ranks")), "0-2");
    json_decref(value);
}

/* Ranks may have limits of their own. */
static void a_rank_that_differs_is_named(void **state)
{
    (void)state;
    int code;
    json_t *value = check_json("$EXPAR run -n 3 --no-prefix -- sh -c 'test $EXPAR_RANK != 1 || ulimit -n 70; "
                               "exec $EXPAR check --json'",
                               &code);
    expect_row(value, "open_files", "failure", "70 (ranks 1)");
    assert_string_equal(json_string_value(json_object_get(row_of(value, "open_files"), "ranks")), "1");
    assert_int_equal(code, 2);
    json_decref(value);
}

static void lines_fit_narrow_terminals(void **state)
{
    (void)state;
    struct shell_result result = shell("script -qec 'stty cols 40; TERM=xterm NO_COLOR=1 $EXPAR check -n 2' /dev/null");
    char *line = strtok(result.out, "\r\n");
    int lines = 0;
    for (; line; line = strtok(NULL, "\r\n")) {
        if (line[0] == '\033' || strstr(line, "> ") || strstr(line, "tcp:"))
            continue; /* progress, commands, an address */
        if (strlen(line) > 40) fail_msg("this line has %zu columns: %s", strlen(line), line);
        lines++;
    }
    assert_true(lines > 40);
    shell_free(&result);
}

static void the_plain_locale_gets_plain_letters(void **state)
{
    (void)state;
    struct shell_result result = shell("LC_ALL=C $EXPAR check -n 2");
    for (const char *c = result.out; *c; c++)
        assert_true(*c == '\n' || (*c >= 0x20 && *c < 0x7f));
    assert_non_null(strstr(result.out, "ranks: 2, hosts: 1\n"));
    shell_free(&result);
}

/* ---- exit codes -------------------------------------------------------------------------------------------------- */

static void warnings_count_with_strict(void **state)
{
    (void)state;
    /* More ranks than CPUs is a warning anywhere. */
    struct shell_result result = shell("taskset -c 0 $EXPAR check -n 2 --strict");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.out, "not fit (--strict)"));
    shell_free(&result);
    result = shell("taskset -c 0 $EXPAR check -n 2");
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.out, "warning  cpuset"));
    shell_free(&result);
}

static void failures_end_with_2(void **state)
{
    (void)state;
    struct shell_result result = shell("ulimit -S -n 70; $EXPAR check -n 2");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.out, "failure  open_files"));
    assert_non_null(strstr(result.out, "> ulimit -n 72\n"));
    shell_free(&result);
}

static void a_bad_interface_is_a_failure(void **state)
{
    (void)state;
    int code;
    json_t *value = check_json("EXPAR_BOOTSTRAP_INTERFACE=nowhere0 $EXPAR check --json -n 2", &code);
    expect_row(value, "rendezvous", "failure", "EXPAR_BOOTSTRAP_INTERFACE=nowhere0");
    assert_int_equal(code, 2);
    json_decref(value);
}

/* The rank that comes alone says so; it knows of no other. */
static void a_job_that_does_not_meet_is_a_failure(void **state)
{
    (void)state;
    struct shell_result result = shell("EXPAR_BOOTSTRAP_TIMEOUT=1 $EXPAR run -n 2 --no-prefix -- sh -c "
                                       "'test $EXPAR_RANK = 0 || exec sleep 30; exec $EXPAR check'");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.out, "failure  rendezvous"));
    assert_non_null(strstr(result.out, "not fit"));
    shell_free(&result);
}

static void a_missing_network_is_a_warning(void **state)
{
    (void)state;
    json_t *value = check_json("$EXPAR check --json -n 2", NULL);
    expect_row(value, "providers", "warning", "no network");
    json_decref(value);
}

static void a_filtered_call_is_found(void **state)
{
    (void)state;
    json_t *value = check_json(WITHOUT_CALL " 1 $EXPAR check --json -n 2", NULL);
    expect_row(value, "pidfd_getfd", "warning", "not permitted");
    json_decref(value);
    value = check_json(WITHOUT_CALL " 38 $EXPAR check --json -n 2", NULL);
    expect_row(value, "pidfd_getfd", "warning", "not implemented");
    assert_non_null(strstr(json_string_value(json_object_get(row_of(value, "pidfd_getfd"), "remedy")), "Linux 5.6"));
    json_decref(value);
}

static void run_line(void *line)
{
    /* The exit code is that of the checks, which this test does not control. */
    if (system(line) == -1) printf("no shell\n");
}

static void links_are_loaded(void **state)
{
    (void)state;
    setenv("TERM", "xterm", 1);
    char *said = terminal_capture(true, run_line, "$EXPAR check --json -n 2 --long=0.2 2>&1 >$TMP/load");
    assert_non_null(strstr(said, "loading the links, 1 s left ..."));
    free(said);
    json_t *value = check_json("cat $TMP/load", NULL);
    const json_t *row = row_of(value, "load");
    assert_non_null(strstr(json_string_value(json_object_get(row, "value")), "in the slowest of 1 s"));
    json_decref(value);
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static void a_full_disk_is_no_success(void **state)
{
    (void)state;
    shell_expect("$EXPAR check -n 2 >/dev/full", 3, NULL, "cannot write the output");
    shell_expect("$EXPAR check -n 2 --json >/dev/full", 3, NULL, "cannot write the output");
}

static void a_reader_may_leave(void **state)
{
    (void)state;
    shell_expect("{ $EXPAR check -n 2; echo $? >\"$TMP/code\"; } | true; grep -qE '^(3|141)$' \"$TMP/code\"", 0, NULL,
                 NULL);
}

static void ctrl_c_ends_it(void **state)
{
    (void)state;
    shell_expect("$EXPAR check -n 2 --long & sleep 1; kill -INT $!; wait $!", 130, NULL, NULL);
    shell_expect("timeout -s INT 0.02 $EXPAR check -n 2; test $? = 124 -o $? = 130", 0, NULL, NULL);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    shell_expect("$EXPAR check -n 0", 64, "", "-n '0': a number from 1 to 64");
    shell_expect("$EXPAR check -n 65", 64, "", "-n '65'");
    shell_expect("$EXPAR check --long=never", 64, "", "--long 'never': seconds above 0");
    shell_expect("$EXPAR check --long=1e8", 64, "", "--long '1e8'");
    shell_expect("$EXPAR check surplus", 64, "", "'surplus' is not expected here");
    shell_expect("$EXPAR run -n 2 -- $EXPAR check -n 3", 64, "", "-n 3, but this job has 2 ranks");
}

/* One rank has no pairs. */
static void one_rank_is_enough(void **state)
{
    (void)state;
    json_t *value = check_json("$EXPAR check --json -n 1 --long=0.1", NULL);
    expect_row(value, "pair_rate", "skipped", "1 ranks");
    expect_row(value, "selftest_p2p", "ok", "right");
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_all_rows_of_all_areas),
        cmocka_unit_test(a_job_prints_once_and_compares),
        cmocka_unit_test(a_rank_that_differs_is_named),
        cmocka_unit_test(lines_fit_narrow_terminals),
        cmocka_unit_test(the_plain_locale_gets_plain_letters),
        cmocka_unit_test(warnings_count_with_strict),
        cmocka_unit_test(failures_end_with_2),
        cmocka_unit_test(a_bad_interface_is_a_failure),
        cmocka_unit_test(a_job_that_does_not_meet_is_a_failure),
        cmocka_unit_test(a_missing_network_is_a_warning),
        cmocka_unit_test(a_filtered_call_is_found),
        cmocka_unit_test(links_are_loaded),
        cmocka_unit_test(a_full_disk_is_no_success),
        cmocka_unit_test(a_reader_may_leave),
        cmocka_unit_test(ctrl_c_ends_it),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(one_rank_is_enough),
    };
    setenv("EXPAR_TRANSPORTS", "p2p", 1); /* the network takes a second, and is tested by itself */
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
