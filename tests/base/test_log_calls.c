/* SPDX-License-Identifier: Apache-2.0 */
/* The log lines of calls that fail, and of variables that are unknown. */
#include "base/base.h"
#include "base/log_child.h"

#include <expar/expar.h>

static expar_status inner(void)
{
    return error_set(EXPAR_ERR_RANGE, "rank 9 of 8");
}

static expar_status call(void)
{
    return call_ended(error_prefix(inner(), "call"));
}

/* A public call that stands on another one. */
static expar_status outer_call(void)
{
    return call_ended(error_prefix(call(), "outer"));
}

/* The first way does not work, which nobody need know. */
static expar_status call_with_two_ways(void)
{
    expar_status status = inner();
    if (status != EXPAR_OK) status = EXPAR_OK;
    return call_ended(status);
}

static void fail_in_all_ways(void)
{
    outer_call();
    call_with_two_ways();
    log_set_rank(4);
    call();
}

static void a_call_that_fails_is_logged_once_where_it_arose(void **state)
{
    (void)state;
    char text[4096];
    log_of_child("info", fail_in_all_ways, text, sizeof text);
    assert_matches(
        text, "^expar [0-9:.]{12} info  [^ ]*tests/base/test_log_calls\\.c:[0-9]+ EXPAR_ERR_RANGE: call: rank 9 of 8\n"
              "expar [0-9:.]{12} \\[rank 4\\] info  [^ ]*tests/base/test_log_calls\\.c:[0-9]+ EXPAR_ERR_RANGE: call: "
              "rank 9 of 8\n$");
    log_of_child("warn", fail_in_all_ways, text, sizeof text);
    assert_string_equal(text, "");
}

static void fail_later(void)
{
    error_kept kept;
    error_keep(&kept, inner());
    error_set(EXPAR_ERR_MEMORY, "of something else");
    call_ended(error_restore(&kept));
    call_ended(error_restore(&kept));
}

/* Each call that ends with an error that was kept has failed. */
static void a_kept_error_is_logged_where_it_arose(void **state)
{
    (void)state;
    char text[4096];
    log_of_child("info", fail_later, text, sizeof text);
    assert_matches(text, "^[^\n]* info  [^ ]*tests/base/test_log_calls\\.c:[0-9]+ EXPAR_ERR_RANGE: rank 9 of 8\n"
                         "[^\n]* info  [^ ]*tests/base/test_log_calls\\.c:[0-9]+ EXPAR_ERR_RANGE: rank 9 of 8\n$");
}

static void form_groups_with_odd_variables(void)
{
    expar_group *groups[2];
    expar_group *alone;
    const expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    setenv("EXPAR_TIMOUT", "3", 1);
    setenv("EXPAR_TEST_SEED", "1", 1);
    setenv("EXPAR_REQUIRE_NETNS", "0", 1);
    setenv("EXPARALLEL", "1", 1);
    setenv("EXPAR_LOG_FIEL", "", 1);
    if (expar_group_create_threads(2, &options, groups) != EXPAR_OK) _exit(1);
    if (expar_group_create_threads(1, &options, &alone) != EXPAR_OK) _exit(1);
}

static void an_unknown_variable_is_warned_of_once(void **state)
{
    (void)state;
    char text[4096];
    log_of_child(NULL, form_groups_with_odd_variables, text, sizeof text);
    assert_int_equal(count_lines(text), 2);
    assert_non_null(strstr(text, " EXPAR_TIMOUT is set, but"));
    assert_non_null(strstr(text, " is EXPAR_TIMEOUT "));
    assert_non_null(strstr(text, " EXPAR_LOG_FIEL is set, but"));
    assert_non_null(strstr(text, " is EXPAR_LOG_FILE "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_fails_is_logged_once_where_it_arose),
        cmocka_unit_test(a_kept_error_is_logged_where_it_arose),
        cmocka_unit_test(an_unknown_variable_is_warned_of_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
