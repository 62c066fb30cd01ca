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

int64_t results_links(const json_t *result, const char *class, const char *name)
{
    const json_t *list = json_object_get(result, "links"), *link;
    size_t i;
    int64_t sum = 0;
    assert_true(json_is_array(list));
    json_array_foreach(list, i, link)
    {
        assert_true(json_is_integer(json_object_get(link, name)));
        if (!class || !strcmp(results_text(link, "class"), class))
            sum += json_integer_value(json_object_get(link, name));
    }
    return sum;
}

/* The rate over the busiest link is what the list of links says. */
static void assert_bus_rate(const json_t *result)
{
    const json_t *link;
    size_t i;
    double most = 0;
    json_array_foreach(json_object_get(result, "links"), i, link)
    {
        const double bytes = results_real(link, "bytes");
        assert_int_not_equal(results_real(link, "from"), results_real(link, "to"));
        if (bytes > most) most = bytes;
    }
    const double expected = most / results_real(result, "median_us") * 1e-3, is = results_real(result, "bus_gbps");
    assert_true(is > 0.999 * expected - 1e-9 && is < 1.001 * expected + 1e-9);
}

void results_assert_period(const json_t *result)
{
    assert_string_equal(results_text(result, "op"), "pair");
    assert_string_equal(results_text(result, "pattern"), "period");
    assert_true(results_real(result, "pair_period_us") > 0);
    assert_true(results_real(result, "dispatch_floor_us") > 0);
    assert_true(results_real(result, "combine_floor_us") > 0);
    assert_true(results_real(result, "gap_us") >= 0);
    assert_true(results_real(result, "gap_us") < results_real(result, "pair_period_us"));
    assert_true(results_real(result, "drift") > -1);
    assert_true(results_real(result, "spread") >= 0);
    assert_true(json_is_true(json_object_get(result, "verified")));
    assert_null(json_object_get(result, "host_us"));
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
    assert_true(json_is_integer(json_object_get(result, "bytes")));
    assert_true(results_real(result, "spread") >= 0);
    assert_true(results_real(result, "mean_rank_us") > 0);
    assert_true(results_real(result, "slowest_rank_us") >= results_real(result, "mean_rank_us") * 0.999);
    assert_true(results_real(result, "slowest_rank_us") <= results_real(result, "p99_us"));
    assert_true(json_is_integer(json_object_get(result, "slowest_rank")));
    assert_bus_rate(result);
}
