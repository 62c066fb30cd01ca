/* SPDX-License-Identifier: Apache-2.0 */
/* What is logged of calls that fail. */
#include "base/base.h"
#include "base/log_child.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_fails_is_logged_once_where_it_arose),
        cmocka_unit_test(a_kept_error_is_logged_where_it_arose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
