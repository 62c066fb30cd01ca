/* SPDX-License-Identifier: Apache-2.0 */
/* The log's levels and the form of its lines. The level is read once a process, so each case logs in a child of its own
 * and reads what it wrote to stderr. */
#include "base/base.h"
#include "base/log_child.h"

/* The name of this file, as the compiler got it: from the top of the sources. If a cache makes paths relative to the
   build's folder, it is some folders up from there. It is never an absolute path. */
#define HERE "(\\.\\./)*tests/base/test_log\\.c"

static void log_all_levels(void)
{
    LOG(LOG_ERROR, "e");
    LOG(LOG_WARN, "w");
    LOG(LOG_INFO, "i");
    LOG(LOG_DEBUG, "d");
    LOG(LOG_TRACE, "t");
}

static void levels_choose_what_is_written(void **state)
{
    (void)state;
    const struct {
        const char *level;
        int lines;
    } cases[] = {{"error", 1}, {"warn", 2}, {"info", 3}, {"debug", 4}, {"trace", 5}, {NULL, 2}, {"", 2}};
    char text[4096];
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        log_of_child(cases[i].level, log_all_levels, text, sizeof text);
        assert_int_equal(count_lines(text), cases[i].lines);
    }
}

static void an_unknown_level_is_named_and_warn_is_taken(void **state)
{
    (void)state;
    char text[4096];
    log_of_child("loud", log_all_levels, text, sizeof text);
    assert_int_equal(count_lines(text), 3);
    assert_non_null(strstr(text, "EXPAR_LOG=loud"));
}

static void log_with_and_without_rank(void)
{
    LOG(LOG_WARN, "before");
    log_set_rank(3);
    LOG(LOG_ERROR, "after %d", 7);
}

static void lines_have_one_form(void **state)
{
    (void)state;
    char text[4096];
    log_of_child(NULL, log_with_and_without_rank, text, sizeof text);
    assert_matches(text, "^expar [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} warn  " HERE ":[0-9]+ before\n"
                         "expar [0-9:.]{12} \\[rank 3\\] error " HERE ":[0-9]+ after 7\n$");
}

static void log_awkward_texts(void)
{
    char big[8 * ERROR_TEXT_BYTES];
    memset(big, 'b', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    LOG(LOG_WARN, "two\nlines \033[31mred");
    LOG(LOG_WARN, "%s", big);
}

static void a_record_is_one_line(void **state)
{
    (void)state;
    char text[16384];
    log_of_child(NULL, log_awkward_texts, text, sizeof text);
    assert_int_equal(count_lines(text), 2);
    assert_non_null(strstr(text, "two lines  [31mred\n"));
    assert_true(strlen(text) < 3 * ERROR_TEXT_BYTES);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static void fail_once(void)
{
    error_set(EXPAR_ERR_RANGE, "rank 9 of 8");
}

static void errors_are_logged_at_debug(void **state)
{
    (void)state;
    char text[4096];
    log_of_child("debug", fail_once, text, sizeof text);
    assert_matches(text, " debug " HERE ":[0-9]+ rank 9 of 8\n$");
    log_of_child("info", fail_once, text, sizeof text);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_choose_what_is_written), cmocka_unit_test(an_unknown_level_is_named_and_warn_is_taken),
        cmocka_unit_test(lines_have_one_form),           cmocka_unit_test(a_record_is_one_line),
        cmocka_unit_test(errors_are_logged_at_debug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
