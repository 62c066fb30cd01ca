/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for a person, laid out by libsmartcols. */
#include "table.h"
#include "colour.h"
#include <assert.h>
#include <libsmartcols.h>
#include <stdarg.h>
#include <stdlib.h>

static const char GAP[] = "  ", ALARM[] = "\033[1;31m";

struct table {
    struct libscols_table *grid;
    struct libscols_line *row; /* the last one */
    size_t next;               /* its next cell */
    bool titled, failed;
};

struct table *table_new(void)
{
    struct table *table = calloc(1, sizeof *table);
    if (!table) return NULL;
    table->grid = scols_new_table();
    /* The layout is that for a pipe: nothing is cut to the width of a terminal. */
    table->failed = !table->grid || scols_table_set_termforce(table->grid, SCOLS_TERMFORCE_NEVER) != 0 ||
                    scols_table_set_column_separator(table->grid, GAP) != 0;
    return table;
}

static bool is_sound(const struct table *table)
{
    return table && !table->failed;
}

void table_column(struct table *table, const char *title, enum table_align align)
{
    if (!is_sound(table)) return;
    int flags = align == TABLE_RIGHT ? SCOLS_FL_RIGHT : 0;
    table->failed = !scols_table_new_column(table->grid, title ? title : "", 0, flags);
    table->titled |= title != NULL;
}

void table_row(struct table *table)
{
    if (!is_sound(table)) return;
    table->row = scols_table_new_line(table->grid, NULL);
    table->failed = !table->row;
    table->next = 0;
}

/* Fills the next cell, in `colour` if that is not NULL. */
__attribute__((format(printf, 3, 0))) static void fill(struct table *table, const char *colour, const char *format,
                                                       va_list arguments)
{
    char *text;
    if (!is_sound(table)) return;
    assert(table->row && table->next < scols_line_get_ncells(table->row));
    struct libscols_cell *cell = scols_line_get_cell(table->row, table->next++);
    table->failed = vasprintf(&text, format, arguments) < 0;
    if (table->failed) return;
    /* The cell owns the text from here on. */
    table->failed = scols_cell_refer_data(cell, text) != 0 || (colour && scols_cell_set_color(cell, colour) != 0);
}

void table_cell(struct table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(table, NULL, format, arguments);
    va_end(arguments);
}

void table_alarm(struct table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(table, ALARM, format, arguments);
    va_end(arguments);
}

void table_verdict(struct table *table, bool good)
{
    if (good)
        table_cell(table, "yes");
    else
        table_alarm(table, "NO");
}

void table_skip(struct table *table)
{
    if (is_sound(table)) table->next++;
}

static bool print(struct table *table, FILE *out)
{
    return is_sound(table) && scols_table_enable_noheadings(table->grid, !table->titled) == 0 &&
           scols_table_enable_colors(table->grid, colour_wanted(fileno(out))) == 0 &&
           scols_table_set_stream(table->grid, out) == 0 && scols_print_table(table->grid) == 0;
}

bool table_print(struct table *table, FILE *out)
{
    bool printed = print(table, out);
    if (!printed) fprintf(stderr, "expar: out of memory: a table cannot be printed\n");
    if (table) scols_unref_table(table->grid);
    free(table);
    return printed;
}
