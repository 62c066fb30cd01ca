/* SPDX-License-Identifier: Apache-2.0 */
/* Options: checked, completed from the environment, and refused with the option's name. */
#include "group/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int clear_environment(void **state)
{
    static const char *const names[] = {
        "EXPAR_TIMEOUT",        "EXPAR_BOOTSTRAP_TIMEOUT", "EXPAR_HEAP_SIZE",  "EXPAR_HEAP_KIND",
        "EXPAR_RANKS_PER_NODE", "EXPAR_TRANSPORTS",        "EXPAR_LATE_LIMIT", "EXPAR_SPIN"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        unsetenv(names[i]);
    return 0;
}

static group_settings read_ok(expar_group_options options)
{
    group_settings settings;
    assert_int_equal(group_settings_read("call", &options, &settings), EXPAR_OK);
    return settings;
}

static void check_rejected(expar_group_options options, expar_status expected, const char *name)
{
    group_settings settings = {.timeout_ms = -7};
    assert_int_equal(group_settings_read("call", &options, &settings), expected);
    assert_non_null(strstr(expar_last_error(), name));
    assert_int_equal(settings.timeout_ms, -7);
}

static void test_defaults(void **state)
{
    (void)state;
    group_settings settings = read_ok((expar_group_options){0});
    assert_int_equal(settings.timeout_ms, 30000);
    assert_int_equal(settings.bootstrap_timeout_ms, 30000);
    assert_int_equal(settings.heap_bytes, (uint64_t)16 << 30);
    assert_false(settings.fixed_heap);
    assert_int_equal(settings.ranks_per_node, 0);
    assert_int_equal(settings.spin_us, 50);
}

static void test_environment(void **state)
{
    (void)state;
    setenv("EXPAR_TIMEOUT", "2.5", 1);
    setenv("EXPAR_BOOTSTRAP_TIMEOUT", "7", 1);
    setenv("EXPAR_HEAP_SIZE", "3M", 1);
    setenv("EXPAR_HEAP_KIND", "static", 1);
    setenv("EXPAR_RANKS_PER_NODE", "4", 1);
    setenv("EXPAR_TRANSPORTS", "p2p", 1);
    setenv("EXPAR_SPIN", "0", 1);
    group_settings settings = read_ok((expar_group_options){0});
    assert_int_equal(settings.timeout_ms, 2500);
    assert_int_equal(settings.bootstrap_timeout_ms, 7000);
    assert_int_equal(settings.heap_bytes, 4 << 20); /* whole huge pages */
    assert_true(settings.fixed_heap);
    assert_false(read_ok((expar_group_options){.heap_kind = EXPAR_HEAP_DYNAMIC}).fixed_heap);
    assert_int_equal(settings.ranks_per_node, 4);
    assert_int_equal(settings.spin_us, 0);
}

static void test_options_win(void **state)
{
    (void)state;
    setenv("EXPAR_TIMEOUT", "nonsense", 1);
    setenv("EXPAR_HEAP_SIZE", "nonsense", 1);
    setenv("EXPAR_RANKS_PER_NODE", "nonsense", 1);
    group_settings settings = read_ok((expar_group_options){
        .timeout_ms = 1, .bootstrap_timeout_ms = 2, .heap_bytes = (5 << 20) + 1, .ranks_per_node = 3});
    assert_int_equal(settings.timeout_ms, 1);
    assert_int_equal(settings.bootstrap_timeout_ms, 2);
    assert_int_equal(settings.heap_bytes, 6 << 20);
    assert_int_equal(settings.ranks_per_node, 3);
}

static void test_bad_options(void **state)
{
    (void)state;
    check_rejected((expar_group_options){.timeout_ms = -1}, EXPAR_ERR_ARGUMENT, "timeout_ms -1");
    check_rejected((expar_group_options){.timeout_ms = INT64_MAX}, EXPAR_ERR_ARGUMENT, "timeout_ms");
    check_rejected((expar_group_options){.bootstrap_timeout_ms = -5}, EXPAR_ERR_ARGUMENT, "bootstrap_timeout_ms -5");
    check_rejected((expar_group_options){.ranks_per_node = -2}, EXPAR_ERR_ARGUMENT, "ranks_per_node -2");
    check_rejected((expar_group_options){.heap_kind = EXPAR_HEAP_STATIC}, EXPAR_ERR_ARGUMENT, "needs a size");
    check_rejected((expar_group_options){.heap_kind = (expar_heap_kind)9}, EXPAR_ERR_ARGUMENT, "heap_kind 9");
    check_rejected((expar_group_options){.heap_bytes = 4096}, EXPAR_ERR_ARGUMENT, "heap_bytes 4096");
    check_rejected((expar_group_options){.heap_bytes = SIZE_MAX}, EXPAR_ERR_ARGUMENT, "heap_bytes");
}

static void check_bad_variable(const char *name, const char *value, expar_status expected)
{
    setenv(name, value, 1);
    check_rejected((expar_group_options){0}, expected, name);
    unsetenv(name);
}

static void test_bad_environment(void **state)
{
    (void)state;
    check_bad_variable("EXPAR_TIMEOUT", "soon", EXPAR_ERR_ARGUMENT);
    check_bad_variable("EXPAR_BOOTSTRAP_TIMEOUT", "-1", EXPAR_ERR_ARGUMENT);
    check_bad_variable("EXPAR_HEAP_KIND", "elastic", EXPAR_ERR_ARGUMENT);
    check_bad_variable("EXPAR_HEAP_SIZE", "1K", EXPAR_ERR_ARGUMENT);
    check_bad_variable("EXPAR_HEAP_SIZE", "99999999T", EXPAR_ERR_ARGUMENT);
    check_bad_variable("EXPAR_RANKS_PER_NODE", "0", EXPAR_ERR_ARGUMENT);
    check_bad_variable("EXPAR_TRANSPORTS", "pigeon", EXPAR_ERR_UNSUPPORTED);
    check_bad_variable("EXPAR_SPIN", "-1", EXPAR_ERR_ARGUMENT);
    check_bad_variable("EXPAR_SPIN", "1000001", EXPAR_ERR_ARGUMENT);
}

/* The one variable of seconds that may be 0, and says so. */
static void test_late_limit(void **state)
{
    (void)state;
    static const char *const bad[] = {"abc", "-1", "0.0", "00", "0s"};
    assert_int_equal(read_ok((expar_group_options){0}).late_limit_ms, 0);
    setenv("EXPAR_LATE_LIMIT", "2.5", 1);
    assert_int_equal(read_ok((expar_group_options){0}).late_limit_ms, 2500);
    setenv("EXPAR_LATE_LIMIT", "0", 1);
    assert_int_equal(read_ok((expar_group_options){0}).late_limit_ms, 0);
    assert_int_equal(read_ok((expar_group_options){.late_limit_ms = 7}).late_limit_ms, 7);
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        setenv("EXPAR_LATE_LIMIT", bad[i], 1);
        check_rejected((expar_group_options){0}, EXPAR_ERR_ARGUMENT, "EXPAR_LATE_LIMIT=");
        check_rejected((expar_group_options){0}, EXPAR_ERR_ARGUMENT, bad[i]);
        check_rejected((expar_group_options){0}, EXPAR_ERR_ARGUMENT,
                       "expected seconds from 0.001 to 1000000000, or 0: no limit");
        assert_int_equal(read_ok((expar_group_options){.late_limit_ms = 7}).late_limit_ms, 7);
    }
    unsetenv("EXPAR_LATE_LIMIT");
    check_rejected((expar_group_options){.late_limit_ms = -1}, EXPAR_ERR_ARGUMENT, "late_limit_ms -1");
    check_bad_variable("EXPAR_TIMEOUT", "0", EXPAR_ERR_ARGUMENT); /* the others may not */
}

/* A program built with an older, shorter struct; and one that forgot the initialiser, or comes from the future. */
static void test_struct_size(void **state)
{
    (void)state;
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT, copy = {.size = -7};
    options.ranks_per_node = 3;
    options.timeout_ms = 99;
    options.struct_size = offsetof(expar_group_options, timeout_ms);
    assert_int_equal(group_options_copy("call", &options, &copy), EXPAR_OK);
    assert_int_equal(copy.ranks_per_node, 3);
    assert_int_equal(copy.timeout_ms, 0);
    assert_int_equal(group_options_copy("call", NULL, &copy), EXPAR_OK);
    assert_int_equal(copy.ranks_per_node, 0);
    static const size_t bad[] = {0, sizeof options.struct_size - 1, sizeof(expar_group_options) + 1, SIZE_MAX};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        expar_group *group = (expar_group *)&copy;
        options.struct_size = bad[i];
        assert_int_equal(expar_group_create(&options, &group), EXPAR_ERR_ARGUMENT);
        assert_non_null(strstr(expar_last_error(), "struct_size"));
        assert_int_equal(expar_group_create_threads(1, &options, &group), EXPAR_ERR_ARGUMENT);
        assert_ptr_equal(group, &copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_defaults, clear_environment),
        cmocka_unit_test_setup(test_environment, clear_environment),
        cmocka_unit_test_setup(test_options_win, clear_environment),
        cmocka_unit_test_setup(test_bad_options, clear_environment),
        cmocka_unit_test_setup(test_bad_environment, clear_environment),
        cmocka_unit_test_setup(test_late_limit, clear_environment),
        cmocka_unit_test_setup(test_struct_size, clear_environment),
    };
    return cmocka_run_group_tests(tests, NULL, clear_environment);
}
