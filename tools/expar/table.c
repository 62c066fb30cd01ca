/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for a person, laid out by libsmartcols. */
#include "table.h"
#include "colour.h"
#include "text.h"
#include <assert.h>
#include <libsmartcols.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MOST_COLUMNS 64
#define PIPE_COLUMNS 80  /* legends in a pipe */
#define LEGEND_MOST  100 /* longer lines are hard to read */

static const char GAP[] = "  ";

struct column {
    struct libscols_column *grid;
    const char *legend; /* NULL: none */
    int drop;           /* 0: no order was stated */
    bool filled, bars, hidden;
};

struct table {
    struct libscols_table *grid;
    struct libscols_line *row; /* the last one */
    size_t next;               /* its next cell */
    struct column columns[MOST_COLUMNS];
    int num_columns;
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
    assert(table->num_columns < MOST_COLUMNS);
    struct column *column = &table->columns[table->num_columns++];
    column->grid = scols_table_new_column(table->grid, title ? title : "", 0, flags);
    table->failed = !column->grid;
    table->titled |= title != NULL;
}

void table_drop(struct table *table, int order)
{
    if (is_sound(table)) table->columns[table->num_columns - 1].drop = order;
}

void table_legend(struct table *table, const char *text)
{
    if (is_sound(table)) table->columns[table->num_columns - 1].legend = text;
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
    table->columns[table->next].filled = true;
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
    fill(table, COLOUR_ALARM, format, arguments);
    va_end(arguments);
}

void table_warn(struct table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(table, COLOUR_WARN, format, arguments);
    va_end(arguments);
}

void table_good(struct table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(table, COLOUR_GOOD, format, arguments);
    va_end(arguments);
}

void table_bar(struct table *table, double share, int width)
{
    char bar[TEXT_BAR_BYTES];
    if (is_sound(table)) table->columns[table->next].bars = true;
    table_cell(table, "%s", text_bar(bar, share, width));
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

/* ---- width ------------------------------------------------------------------------------------------------------- */

/* Returns the columns that the longest line takes, without colour. -1: memory ran out. */
static int line_columns(struct table *table)
{
    char *text = NULL;
    int most = 0;
    scols_table_enable_colors(table->grid, 0);
    if (scols_print_table_to_string(table->grid, &text) != 0 || !text) return -1;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        const int columns = text_columns(line);
        if (columns > most) most = columns;
    }
    free(text);
    return most;
}

/* Returns whether column a drops before column b. */
static bool drops_before(const struct column *a, const struct column *b)
{
    if (!a->drop || !b->drop) return a->drop || (!b->drop && a > b);
    return a->drop != b->drop ? a->drop < b->drop : a > b;
}

/* Returns the next column to drop; NULL: the first one alone is left. */
static struct column *next_to_drop(struct table *table)
{
    struct column *next = NULL;
    for (int i = 1; i < table->num_columns; i++) {
        struct column *column = &table->columns[i];
        if (!column->hidden && (!next || drops_before(column, next))) next = column;
    }
    return next;
}

static bool has_order(const struct table *table)
{
    for (int i = 0; i < table->num_columns; i++)
        if (table->columns[i].drop) return true;
    return false;
}

static bool hide(struct column *column)
{
    column->hidden = true;
    return scols_column_set_flags(column->grid, scols_column_get_flags(column->grid) | SCOLS_FL_HIDDEN) == 0;
}

/* Hides columns without any cell. They have nothing to show, so that no line names them. */
static bool hide_empty(struct table *table)
{
    for (int i = 1; i < table->num_columns && table->titled; i++)
        if (!table->columns[i].filled && !hide(&table->columns[i])) return false;
    return true;
}

/* Hides columns until lines fit. Lines of a pipe always do. */
static bool fit(struct table *table, int columns)
{
    if (!hide_empty(table)) return false;
    if (columns == 0 || !has_order(table) || scols_table_get_nlines(table->grid) == 0) return true;
    for (int taken = line_columns(table); taken < 0 || taken > columns; taken = line_columns(table)) {
        struct column *dropped = next_to_drop(table);
        if (taken < 0) return false;
        if (!dropped) return true;
        if (!hide(dropped)) return false;
    }
    return true;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static const char *title_of(const struct column *column)
{
    return scols_cell_get_data(scols_column_get_header(column->grid));
}

/* Names the columns that have been dropped. A bar shows the number of another column. */
static void print_dropped(const struct table *table, FILE *out, int columns)
{
    char line[1024] = "Hidden (a wider terminal or a pipe shows them): ";
    size_t used = strlen(line);
    const char *before = "";
    for (int i = 0; i < table->num_columns && used < sizeof line; i++) {
        if (!table->columns[i].hidden || table->columns[i].bars || !table->columns[i].filled) continue;
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", before, title_of(&table->columns[i]));
        before = ", ";
    }
    if (*before) text_wrap(out, line, 0, columns);
}

static int legend_width(const struct table *table)
{
    int widest = 0;
    for (int i = 0; i < table->num_columns; i++) {
        const struct column *column = &table->columns[i];
        const int width = column->legend && !column->hidden ? text_columns(title_of(column)) : 0;
        if (width > widest) widest = width;
    }
    return widest;
}

/* Prints the legend: a line for each column that is shown and has one. */
static void print_legend(const struct table *table, FILE *out, int columns)
{
    const int width = legend_width(table);
    if (width == 0) return;
    fputc('\n', out);
    for (int i = 0; i < table->num_columns; i++) {
        const struct column *column = &table->columns[i];
        if (!column->legend || column->hidden) continue;
        const char *title = title_of(column);
        fprintf(out, "%s%*s%s", title, width - text_columns(title), "", GAP);
        text_wrap(out, column->legend, width + (int)sizeof GAP - 1, columns);
    }
}

static bool print(struct table *table, FILE *out)
{
    const int columns = terminal_columns(fileno(out));
    const int fill_columns = columns == 0 ? PIPE_COLUMNS : columns > LEGEND_MOST ? LEGEND_MOST : columns;
    bool good = is_sound(table) && scols_table_enable_noheadings(table->grid, !table->titled) == 0 &&
                fit(table, columns) && scols_table_enable_colors(table->grid, colour_wanted(fileno(out))) == 0 &&
                scols_table_set_stream(table->grid, out) == 0 && scols_print_table(table->grid) == 0;
    if (!good || scols_table_get_nlines(table->grid) == 0) return good;
    print_dropped(table, out, fill_columns);
    print_legend(table, out, fill_columns);
    return true;
}

bool table_print(struct table *table, FILE *out)
{
    bool printed = print(table, out);
    if (!printed) fprintf(stderr, "expar: out of memory: a table cannot be printed\n");
    if (table) scols_unref_table(table->grid);
    free(table);
    return printed;
}
