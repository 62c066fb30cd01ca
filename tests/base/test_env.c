/* SPDX-License-Identifier: Apache-2.0 */
/* The table of environment variables, and what lookups take and refuse. */
#include "base/base.h"
#include "base/shown.h"
#include <expar/info.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int unset_all(void **state)
{
    (void)state;
    size_t count;
    const env_entry *table = env_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (unsetenv(table[i].name) != 0) return -1;
    }
    return 0;
}

static void table_is_whole_and_names_are_unique(void **state)
{
    (void)state;
    size_t count;
    const env_entry *table = env_table(&count);
    assert_true(count >= 15);
    for (size_t i = 0; i < count; i++) {
        assert_memory_equal(table[i].name, "EXPAR_", 6);
        assert_true(*table[i].values && *table[i].fallback && *table[i].meaning);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(table[i].name, table[j].name);
    }
}

static void description_shows_the_same_table(void **state)
{
    (void)state;
    size_t count;
    const env_entry *table = env_table(&count);
    const char *name, *values, *fallback, *meaning;
    for (size_t i = 0; i < count; i++) {
        assert_true(expar_env_describe(i, &name, &values, &fallback, &meaning));
        assert_string_equal(name, table[i].name);
        assert_string_equal(values, table[i].values);
        assert_string_equal(fallback, table[i].fallback);
        assert_string_equal(meaning, table[i].meaning);
    }
    assert_true(expar_env_describe(0, NULL, NULL, NULL, NULL));
    name = "untouched";
    assert_false(expar_env_describe(count, &name, NULL, NULL, NULL));
    assert_false(expar_env_describe(SIZE_MAX, &name, NULL, NULL, NULL));
    assert_string_equal(name, "untouched");
}

static void unset_and_empty_leave_the_value(void **state)
{
    (void)state;
    int64_t number = 42, milliseconds = 43;
    uint64_t bytes = 44;
    for (int turn = 0; turn < 2; turn++) {
        assert_null(env_string("EXPAR_RANK"));
        assert_int_equal(env_int("EXPAR_RANK", 0, 10, &number), EXPAR_OK);
        assert_int_equal(env_bytes("EXPAR_HEAP_SIZE", 0, 10, &bytes), EXPAR_OK);
        assert_int_equal(env_seconds_ms("EXPAR_TIMEOUT", &milliseconds), EXPAR_OK);
        assert_int_equal(number, 42);
        assert_int_equal(milliseconds, 43);
        assert_int_equal(bytes, 44);
        setenv("EXPAR_RANK", "", 1);
        setenv("EXPAR_HEAP_SIZE", "", 1);
        setenv("EXPAR_TIMEOUT", "", 1);
    }
}

static void assert_int(const char *text, int64_t expected)
{
    int64_t value = -77;
    setenv("EXPAR_RANK", text, 1);
    assert_int_equal(env_int("EXPAR_RANK", -5, 4095, &value), EXPAR_OK);
    assert_int_equal(value, expected);
}

static void assert_no_int(const char *text)
{
    int64_t value = -77;
    setenv("EXPAR_RANK", text, 1);
    assert_int_equal(env_int("EXPAR_RANK", -5, 4095, &value), EXPAR_ERR_ARGUMENT);
    assert_int_equal(value, -77);
    assert_non_null(strstr(expar_last_error(), "EXPAR_RANK="));
    assert_non_null(strstr(expar_last_error(), SHOWN(text)));
    assert_non_null(strstr(expar_last_error(), "from -5 to 4095"));
}

static void whole_numbers(void **state)
{
    (void)state;
    assert_int("0", 0);
    assert_int("-5", -5);
    assert_int("4095", 4095);
    assert_int("0010", 10);
    const char *const bad[] = {"4096",
                               "-6",
                               "1.5",
                               "1x",
                               "x",
                               " ",
                               "0x10",
                               " 1",
                               "+1",
                               "-",
                               "--1",
                               "nan",
                               "1\n",
                               "99999999999999999999",
                               "-99999999999999999999",
                               "1 2"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        assert_no_int(bad[i]);
}

/* Control characters are escaped, long values are cut, and the expectation is still printed. */
static void values_are_shown_safely(void **state)
{
    (void)state;
    enum { LETTERS = 70000 };
    char many[SHOWN_MOST + 8], *letters = malloc(LETTERS + 1);
    assert_string_equal(SHOWN(""), "");
    assert_string_equal(SHOWN("tcp;ofi_rxm"), "tcp;ofi_rxm");
    assert_string_equal(SHOWN("a\033[31m\r\n\x7f"), "a\\x1b[31m\\x0d\\x0a\\x7f");
    assert_string_equal(SHOWN("\xc3\xa4\xc2\x9b"), "\xc3\xa4\xc2\\x9b");
    memset(many, 'a', SHOWN_MOST);
    many[SHOWN_MOST] = '\0';
    assert_string_equal(SHOWN(many), many);
    strcpy(many + SHOWN_MOST - 1, "\xc3\xa4z"); /* the cut would lie inside of one character */
    assert_int_equal(strlen(SHOWN(many)), SHOWN_MOST - 1 + strlen("…"));
    memset(many, 1, SHOWN_MOST + 7);
    many[SHOWN_MOST + 7] = '\0';
    assert_int_equal(strlen(SHOWN(many)), 4 * SHOWN_MOST + strlen("…"));
    assert_non_null(letters);
    memset(letters, 'x', LETTERS);
    letters[LETTERS] = '\0';
    assert_no_int(letters);
    free(letters);
}

static void assert_bytes(const char *text, uint64_t expected)
{
    uint64_t value = 77;
    setenv("EXPAR_HEAP_SIZE", text, 1);
    assert_int_equal(env_bytes("EXPAR_HEAP_SIZE", 0, UINT64_MAX, &value), EXPAR_OK);
    assert_int_equal(value, expected);
}

static void assert_no_bytes(const char *text, uint64_t low, uint64_t high)
{
    uint64_t value = 77;
    setenv("EXPAR_HEAP_SIZE", text, 1);
    assert_int_equal(env_bytes("EXPAR_HEAP_SIZE", low, high, &value), EXPAR_ERR_ARGUMENT);
    assert_int_equal(value, 77);
    assert_non_null(strstr(expar_last_error(), "EXPAR_HEAP_SIZE="));
    assert_non_null(strstr(expar_last_error(), text));
}

static void bytes_with_suffixes(void **state)
{
    (void)state;
    assert_bytes("0", 0);
    assert_bytes("512", 512);
    assert_bytes("1K", 1024);
    assert_bytes("16M", UINT64_C(16) << 20);
    assert_bytes("16G", UINT64_C(16) << 30);
    assert_bytes("3T", UINT64_C(3) << 40);
    assert_bytes("18446744073709551615", UINT64_MAX);
    assert_bytes("16777215T", UINT64_C(16777215) << 40);
    const char *const bad[] = {"-1", "+1", " 1", "K", "1KB", "1k", "1.5G", "1 G", "18446744073709551616", "16777216T"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        assert_no_bytes(bad[i], 0, UINT64_MAX);
    assert_no_bytes("1K", 1025, 2000);
    assert_no_bytes("2K", 1025, 2000);
}

static void assert_seconds(const char *text, int64_t expected_ms)
{
    int64_t value = 77;
    setenv("EXPAR_TIMEOUT", text, 1);
    assert_int_equal(env_seconds_ms("EXPAR_TIMEOUT", &value), EXPAR_OK);
    assert_int_equal(value, expected_ms);
}

static void assert_no_seconds(const char *text)
{
    int64_t value = 77;
    setenv("EXPAR_TIMEOUT", text, 1);
    assert_int_equal(env_seconds_ms("EXPAR_TIMEOUT", &value), EXPAR_ERR_ARGUMENT);
    assert_int_equal(value, 77);
    assert_non_null(strstr(expar_last_error(), "EXPAR_TIMEOUT="));
    assert_non_null(strstr(expar_last_error(), text));
}

static void seconds_with_fractions(void **state)
{
    (void)state;
    assert_seconds("30", 30000);
    assert_seconds("0.5", 500);
    assert_seconds("2.", 2000);
    assert_seconds("0.001", 1);
    assert_seconds("1.2345678901234567890123", 1234);
    assert_seconds("1000000000", INT64_C(1000000000000));
    const char *const bad[] = {"0",   "0.0009", "-1",  ".5",    "1,5",        "1e3",
                               "30s", "inf",    "nan", "1.2.3", "1000000001", "99999999999999999999999"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        assert_no_seconds(bad[i]);
}

static void the_nearest_name_is_found(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"EXPAR_TIMOUT", "EXPAR_TIMEOUT"},     {"EXPAR_LOGFILE", "EXPAR_LOG_FILE"},
        {"EXPAR_HEAPSIZE", "EXPAR_HEAP_SIZE"}, {"EXPAR_TRANSPORT", "EXPAR_TRANSPORTS"},
        {"EXPAR_PROXI", "EXPAR_PROXY"},        {"EXPAR_INTERFACE", "EXPAR_FABRIC_INTERFACE"},
        {"EXPAR_LOG_LEVEL", "EXPAR_LOG"},      {"EXPAR_LOG_FIL", "EXPAR_LOG_FILE"},
        {"EXPAR_LOG_FILES", "EXPAR_LOG_FILE"}, {"EXPAR_TIMEOUT_SECONDS", "EXPAR_TIMEOUT"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        assert_string_equal(env_nearest(cases[i][0]), cases[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_whole_and_names_are_unique),
        cmocka_unit_test(description_shows_the_same_table),
        cmocka_unit_test(the_nearest_name_is_found),
        cmocka_unit_test_setup(unset_and_empty_leave_the_value, unset_all),
        cmocka_unit_test_setup(whole_numbers, unset_all),
        cmocka_unit_test_setup(values_are_shown_safely, unset_all),
        cmocka_unit_test_setup(bytes_with_suffixes, unset_all),
        cmocka_unit_test_setup(seconds_with_fractions, unset_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
