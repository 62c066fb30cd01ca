/* SPDX-License-Identifier: Apache-2.0 */
/* Output of `expar bench --json`. */
#include "printed.h"
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

json_t *results_of(const char *arguments)
{
    char command[512];
    json_error_t error;
    snprintf(command, sizeof command, "$EXPAR bench %s --json", arguments);
    struct shell_result result = shell(command);
    if (result.code != 0) fail_msg("`%s` gave %d: %s", command, result.code, result.err);
    json_t *json = json_loads(result.out, 0, &error);
    if (!json) fail_msg("`%s`: %s in line %d", command, error.text, error.line);
    shell_free(&result);
    return json;
}

const json_t *results_list(const json_t *json)
{
    return json_object_get(json, "results");
}

const char *results_text(const json_t *object, const char *name)
{
    const char *value = json_string_value(json_object_get(object, name));
    assert_non_null(value);
    return value;
}

double results_real(const json_t *object, const char *name)
{
    assert_true(json_is_number(json_object_get(object, name)));
    return json_number_value(json_object_get(object, name));
}

void results_assert_sound(const json_t *result)
{
    assert_string_equal(results_text(result, "mode"), "normal");
    assert_true(results_real(result, "min_us") <= results_real(result, "median_us"));
    assert_true(results_real(result, "median_us") <= results_real(result, "p99_us"));
    assert_true(results_real(result, "gbps") >= 0);
    assert_true(results_real(result, "copy_limit_us") >= 0);
    assert_true(results_real(result, "threads") >= 1);
    double fraction = results_real(result, "copy_limit_us") / results_real(result, "median_us");
    assert_true(results_real(result, "fraction_of_copy_limit") > fraction - 1e-3 * fraction - 1e-6);
    assert_true(results_real(result, "fraction_of_copy_limit") < fraction + 1e-3 * fraction + 1e-6);
    assert_true(json_is_true(json_object_get(result, "verified")));
}
