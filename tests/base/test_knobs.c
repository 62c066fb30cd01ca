/* SPDX-License-Identifier: Apache-2.0 */
/* The table of tuning constants: its rows, lookups, and the page that tells of them. */
#include "base/base.h"
#include "base/knobs.h"

#include <ctype.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KNOB_NAME(id, name, value, least, most, unit, meaning) #id,
static const char *const ids[] = {KNOBS_TABLE(KNOB_NAME)};
#undef KNOB_NAME

static void values_lie_in_their_bounds(void **state)
{
    (void)state;
    size_t count;
    const knob_entry *table = knob_table(&count);
    assert_int_equal(count, KNOB_COUNT);
    assert_true(count > 50);
    for (size_t i = 0; i < count; i++) {
        assert_true(table[i].least >= 0 && table[i].least < table[i].most);
        assert_true(knob((knob_id)i) >= table[i].least && knob((knob_id)i) <= table[i].most);
        assert_int_equal(knob((knob_id)i), table[i].value);
        if (strcmp(table[i].unit, "count") == 0) {
            assert_true(table[i].most <= INT32_MAX);
            assert_int_equal(knob_count((knob_id)i), table[i].value);
        }
    }
}

/* "link.linger" in ns is LINK_LINGER_NS. */
static void id_of(const knob_entry *entry, char *id, size_t bytes)
{
    const bool has_unit = strcmp(entry->unit, "ns") == 0 || strcmp(entry->unit, "bytes") == 0;
    snprintf(id, bytes, "%s%s%s", entry->name, has_unit ? "_" : "", has_unit ? entry->unit : "");
    for (char *c = id; *c; c++)
        *c = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
}

static void names_are_unique_and_those_of_the_code(void **state)
{
    (void)state;
    size_t count;
    const knob_entry *table = knob_table(&count);
    for (size_t i = 0; i < count; i++) {
        char id[128];
        id_of(&table[i], id, sizeof id);
        assert_string_equal(ids[i], id);
        assert_true(strspn(table[i].name, "abcdefghijklmnopqrstuvwxyz_.") == strlen(table[i].name));
        const char *dot = strchr(table[i].name, '.');
        assert_non_null(dot);
        assert_true(dot > table[i].name && dot[1] != 0 && !strchr(dot + 1, '.'));
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(table[i].name, table[j].name);
    }
}

static void knobs_are_found_by_name(void **state)
{
    (void)state;
    size_t count;
    const knob_entry *table = knob_table(&count);
    knob_id id;
    for (size_t i = 0; i < count; i++) {
        id = KNOB_COUNT;
        assert_true(knob_find(table[i].name, &id));
        assert_int_equal(id, i);
    }
    assert_true(knob_find("link.linger", &id));
    assert_int_equal(id, KNOB_LINK_LINGER_NS);
    static const char *const none[] = {
        "", "link", "link.", "link.linge", "link.lingers", "LINK.LINGER", "LINK_LINGER_NS"};
    for (size_t i = 0; i < ARRAY_LENGTH(none); i++)
        assert_false(knob_find(none[i], &id));
    assert_int_equal(id, KNOB_LINK_LINGER_NS);
}

/* ---- docs/reference/tuning.md ------------------------------------------------------------------------------------ */

/* In the largest unit of measure that divides it. */
static void show(const knob_entry *entry, int64_t value, char *text, size_t bytes)
{
    static const char *const times[] = {"ns", "µs", "ms", "s"}, *const sizes[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    const bool time = strcmp(entry->unit, "ns") == 0, size = strcmp(entry->unit, "bytes") == 0;
    const int64_t factor = time ? 1000 : 1024;
    size_t u = 0;
    for (; value && value % factor == 0 && u + 1 < (time ? ARRAY_LENGTH(times) : ARRAY_LENGTH(sizes)); u++) {
        if (!time && !size) break;
        value /= factor;
    }
    const char *unit = time ? times[u] : size ? sizes[u] : strcmp(entry->unit, "count") == 0 ? "" : entry->unit;
    snprintf(text, bytes, "%" PRId64 "%s%s", value, *unit ? " " : "", unit);
}

static void row_of(const knob_entry *entry, char *row, size_t bytes)
{
    char value[64], least[64], most[64];
    show(entry, entry->value, value, sizeof value);
    show(entry, entry->least, least, sizeof least);
    show(entry, entry->most, most, sizeof most);
    snprintf(row, bytes, "\n| `%s` | %s | %s | %s to %s |\n", entry->name, entry->meaning, value, least, most);
}

static char *read_page(void)
{
    FILE *file = fopen(TUNING_PAGE, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static void page_has_each_knob_and_no_other(void **state)
{
    (void)state;
    size_t count, rows = 0, missing = 0;
    const knob_entry *table = knob_table(&count);
    char *page = read_page();
    for (size_t i = 0; i < count; i++) {
        char row[512];
        row_of(&table[i], row, sizeof row);
        if (strstr(page, row)) continue;
        missing++;
        print_error("docs/reference/tuning.md lacks:%s", row);
    }
    for (const char *at = page; (at = strstr(at, "\n| `")); at++)
        rows++;
    free(page);
    assert_int_equal(missing, 0);
    assert_int_equal(rows, count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_lie_in_their_bounds),
        cmocka_unit_test(names_are_unique_and_those_of_the_code),
        cmocka_unit_test(knobs_are_found_by_name),
        cmocka_unit_test(page_has_each_knob_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
