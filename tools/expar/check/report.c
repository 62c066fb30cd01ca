/* SPDX-License-Identifier: Apache-2.0 */
/* The rows for a person. Each area has a heading. A row that is not ok says below it what is expected, and the command
 * that mends it, on a line of its own that can be copied. Long values are broken on terminals. */
#include "check.h"
#include "colour.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_WIDTH   15
#define STATUS_WIDTH 8
/* The column of values; on a narrow terminal they go to a line of their own. */
#define VALUE_COLUMN  (2 + STATUS_WIDTH + 1 + NAME_WIDTH + 1)
#define NARROW        60
#define NARROW_INDENT 4

static const char *const areas[] = {"host", "network", "GPU", "group"};

static const char *text_of(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

/* Writes bytes. Where the locale has ASCII alone, other characters become '?'. */
static void put_bytes(const char *text, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x80 || MB_CUR_MAX > 1)
            putchar(c);
        else if ((c & 0xc0) != 0x80)
            putchar('?');
    }
}

/* Writes words from column `indent` on. Lines end before `width`; 0: there is no limit. A longer word stays whole. */
static void put_words(const char *text, int indent, int width)
{
    int column = indent;
    while (*text) {
        const size_t length = strcspn(text, " ");
        int letters = 0;
        for (size_t i = 0; i < length; i++)
            letters += ((unsigned char)text[i] & 0xc0) != 0x80;
        if (column > indent && width > 0 && column + 1 + letters > width) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' ');
            column++;
        }
        put_bytes(text, length);
        column += letters;
        text += length + strspn(text + length, " ");
    }
    putchar('\n');
}

static const char *colour_for(enum check_status status)
{
    static const char *const colours[] = {"", COLOUR_GOOD, COLOUR_WARN, COLOUR_ALARM};
    return colour_of(STDOUT_FILENO, colours[status]);
}

static void put_row(const json_t *row, int width)
{
    const enum check_status status = check_status_of(row);
    const char *remedy = text_of(row, "remedy"), *expected = text_of(row, "expected");
    const bool narrow = width > 0 && width < NARROW;
    const int indent = narrow ? NARROW_INDENT : VALUE_COLUMN;
    printf("  %s%-*s%s %-*s ", colour_for(status), STATUS_WIDTH, check_status_text(status),
           colour_of(STDOUT_FILENO, COLOUR_OFF), narrow ? 0 : NAME_WIDTH, text_of(row, "name"));
    if (narrow) printf("\n%*s", indent, "");
    put_words(text_of(row, "value"), indent, width);
    if (status < CHECK_WARNING) return;
    if (expected) {
        printf("%*sexpected: ", indent, "");
        put_words(expected, indent + 10, width);
    }
    if (!remedy) return;
    printf("%*s> ", indent, "");
    put_bytes(remedy, strlen(remedy));
    putchar('\n');
}

static size_t count_status(const json_t *rows, enum check_status status)
{
    size_t i, count = 0;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        count += check_status_of(row) == status;
    }
    return count;
}

static void put_verdict(const json_t *rows, int32_t ranks, int32_t hosts, int width, bool strict)
{
    char text[256];
    const size_t failures = count_status(rows, CHECK_FAILURE), warnings = count_status(rows, CHECK_WARNING);
    const size_t good = count_status(rows, CHECK_OK), skipped = count_status(rows, CHECK_SKIPPED);
    const char *verdict = failures             ? "not fit"
                          : warnings && strict ? "not fit (--strict)"
                          : good               ? "fit"
                                               : "not checked";
    snprintf(text, sizeof text, "%s: %zu ok, %zu warnings, %zu failures, %zu skipped; ranks: %d, hosts: %d", verdict,
             good, warnings, failures, skipped, ranks, hosts);
    put_words(text, 0, width);
}

void check_print(const json_t *rows, int32_t ranks, int32_t hosts, bool strict)
{
    const int width = terminal_columns(STDOUT_FILENO);
    for (size_t area = 0; area < sizeof areas / sizeof *areas; area++) {
        size_t i;
        json_t *row;
        bool begun = false;
        json_array_foreach(rows, i, row)
        {
            const char *name = text_of(row, "area");
            if (!name || strcmp(name, areas[area]) != 0) continue;
            if (!begun) printf("%s\n", areas[area]);
            begun = true;
            put_row(row, width);
        }
    }
    put_verdict(rows, ranks, hosts, width, strict);
}
