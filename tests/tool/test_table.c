/* SPDX-License-Identifier: Apache-2.0 */
/* The tool's tables: where cells stand, what a terminal sees, and what it must not see. */
#include "colour.h"
#include "table.h"
#include "terminal.h"
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RED   "\033[1;31m"
#define PLAIN "\033[0m"

static void print_numbers(void *argument)
{
    (void)argument;
    struct table *table = table_new();
    table_column(table, "operation", TABLE_LEFT);
    table_column(table, "us", TABLE_RIGHT);
    table_column(table, "least us", TABLE_RIGHT);
    table_column(table, "verified", TABLE_LEFT);
    table_row(table);
    table_cell(table, "dispatch %s", "cached");
    table_cell(table, "%.1f", 12345.67);
    table_cell(table, "%d", 7);
    table_verdict(table, true);
    table_row(table);
    table_cell(table, "combine");
    table_skip(table);
    table_alarm(table, "%d", 8);
    table_verdict(table, false);
    assert_true(table_print(table, stdout));
}

/* Words to the left, numbers to the right, each column as wide as its widest cell, and nothing after the last one. */
static void columns_are_aligned(void **state)
{
    (void)state;
    char *text = terminal_capture(false, print_numbers, NULL);
    assert_string_equal(text, "operation             us  least us  verified\n"
                              "dispatch cached  12345.7         7  yes\n"
                              "combine                          8  NO\n");
    free(text);
}

static void alarms_are_red_on_a_terminal(void **state)
{
    (void)state;
    char *text = terminal_capture(true, print_numbers, NULL);
    assert_string_equal(text, "operation             us  least us  verified\r\n"
                              "dispatch cached  12345.7         7  yes\r\n"
                              "combine                   " RED "       8" PLAIN "  " RED "NO" PLAIN "\r\n");
    free(text);
}

static void colour_can_be_rejected(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        bool coloured;
    } cases[] = {{"NO_COLOR", "1", false}, {"NO_COLOR", "", true}, {"TERM", "dumb", false}, {"TERM", "xterm", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].name, cases[i].value, 1);
        char *text = terminal_capture(true, print_numbers, NULL);
        assert_int_equal(strstr(text, RED) != NULL, cases[i].coloured);
        assert_non_null(strstr(text, "combine"));
        unsetenv(cases[i].name);
        free(text);
    }
}

static void print_list(void *argument)
{
    struct table *table = table_new();
    table_column(table, NULL, TABLE_LEFT);
    table_column(table, NULL, TABLE_LEFT);
    table_row(table);
    table_cell(table, "  name");
    table_cell(table, "%s", (const char *)argument);
    table_row(table);
    table_cell(table, "  longer name");
    assert_true(table_print(table, stdout));
}

/* A list of labels has no titles; blanks that a cell begins with are its indentation. */
static void tables_without_titles(void **state)
{
    (void)state;
    char *text = terminal_capture(false, print_list, (void *)(uintptr_t) "value");
    assert_string_equal(text, "  name         value\n"
                              "  longer name  \n");
    free(text);
}

/* Longer than a terminal of 80 columns is wide: a path has to be there in full, to be copied. */
static void nothing_is_cut(void **state)
{
    (void)state;
    char path[201];
    memset(path, 'p', 200);
    path[200] = '\0';
    char *text = terminal_capture(true, print_list, path);
    assert_non_null(strstr(text, path));
    free(text);
}

/* A foreign program's name is printed too. */
static void control_characters_are_shown(void **state)
{
    (void)state;
    char *text = terminal_capture(true, print_list, (void *)(uintptr_t) "evil\033[2J");
    assert_null(strchr(text, '\033'));
    assert_non_null(strstr(text, "evil\\x1b[2J"));
    free(text);
}

static void letters_of_the_locale(void **state)
{
    (void)state;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) skip();
    char *text = terminal_capture(false, print_list, (void *)(uintptr_t) "\xc3\xa9t\xc3\xa9");
    setlocale(LC_CTYPE, "C");
    assert_non_null(strstr(text, "  \xc3\xa9t\xc3\xa9\n"));
    free(text);
}

/* Columns with orders, a column without one, and legends. */
static void print_dropping(void *argument)
{
    (void)argument;
    struct table *table = table_new();
    table_column(table, "name", TABLE_LEFT);
    table_column(table, "second", TABLE_RIGHT);
    table_drop(table, 2);
    table_column(table, "always", TABLE_RIGHT);
    table_legend(table, "a column that stays");
    table_column(table, "first", TABLE_RIGHT);
    table_drop(table, 1);
    table_legend(table, "a column that drops");
    table_column(table, "bar", TABLE_LEFT);
    table_drop(table, 1);
    table_row(table);
    table_cell(table, "operation");
    table_cell(table, "22");
    table_cell(table, "33");
    table_cell(table, "44");
    table_bar(table, 0.5, 10);
    assert_true(table_print(table, stdout));
}

/* The later one of two with the same order goes before the earlier; then the next order; then from the right. */
static void columns_drop_in_the_stated_order(void **state)
{
    (void)state;
    static const struct {
        int columns;
        const char *head, *hidden;
    } cases[] = {{40, "name       second  always  first  bar\r\n", NULL},
                 {36, "name       second  always  first\r\n", NULL},
                 {30, "name       second  always\r\n", "shows them): first\r\n"},
                 {20, "name       always\r\n", "second"},
                 {12, "name\r\n", "always"},
                 {1, "name\r\n", "always"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = terminal_capture_wide(cases[i].columns, print_dropping, NULL);
        if (strncmp(text, cases[i].head, strlen(cases[i].head)) != 0)
            fail_msg("%d columns: expected %s\nis: %s", cases[i].columns, cases[i].head, text);
        if (cases[i].hidden) assert_non_null(strstr(text, cases[i].hidden));
        assert_int_equal(strstr(text, "Hidden") != NULL, cases[i].hidden != NULL);
        free(text);
    }
}

static void legends_are_those_of_shown_columns(void **state)
{
    (void)state;
    char *text = terminal_capture_wide(40, print_dropping, NULL);
    assert_non_null(strstr(text, "\r\n\r\nalways  a column that stays\r\nfirst   a column that drops\r\n"));
    free(text);
    text = terminal_capture_wide(30, print_dropping, NULL);
    assert_non_null(strstr(text, "\r\n\r\nalways  a column that stays\r\n"));
    assert_null(strstr(text, "a column that drops"));
    free(text);
    text = terminal_capture(false, print_dropping, NULL);
    assert_string_equal(text, "name       second  always  first  bar\n"
                              "operation      22      33     44  #####\n"
                              "\nalways  a column that stays\nfirst   a column that drops\n");
    free(text);
}

/* --color is stronger than NO_COLOR, and than a pipe. */
static void colour_can_be_chosen(void **state)
{
    (void)state;
    setenv("NO_COLOR", "1", 1);
    assert_true(colour_choose("always"));
    char *always = terminal_capture(false, print_numbers, NULL);
    unsetenv("NO_COLOR");
    assert_true(colour_choose("never"));
    char *never = terminal_capture(true, print_numbers, NULL);
    assert_false(colour_choose("sometimes") || colour_choose(""));
    assert_true(colour_choose("auto"));
    assert_non_null(strstr(always, RED));
    assert_null(strstr(never, RED));
    free(always);
    free(never);
}

static void print_empty(void *argument)
{
    (void)argument;
    struct table *table = table_new();
    table_column(table, "title", TABLE_LEFT);
    assert_true(table_print(table, stdout));
}

static void no_rows_no_titles(void **state)
{
    (void)state;
    char *text = terminal_capture(false, print_empty, NULL);
    assert_string_equal(text, "");
    free(text);
}

/* All calls take a table that could not be made. */
static void lack_of_memory_is_told_at_the_end(void **state)
{
    (void)state;
    table_column(NULL, "title", TABLE_LEFT);
    table_row(NULL);
    table_cell(NULL, "cell");
    table_alarm(NULL, "cell");
    table_skip(NULL);
    assert_false(table_print(NULL, stdout));
}

int main(void)
{
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_aligned),
        cmocka_unit_test(alarms_are_red_on_a_terminal),
        cmocka_unit_test(colour_can_be_rejected),
        cmocka_unit_test(tables_without_titles),
        cmocka_unit_test(nothing_is_cut),
        cmocka_unit_test(control_characters_are_shown),
        cmocka_unit_test(letters_of_the_locale),
        cmocka_unit_test(columns_drop_in_the_stated_order),
        cmocka_unit_test(legends_are_those_of_shown_columns),
        cmocka_unit_test(colour_can_be_chosen),
        cmocka_unit_test(no_rows_no_titles),
        cmocka_unit_test(lack_of_memory_is_told_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
