/* SPDX-License-Identifier: Apache-2.0 */
/* table: prints columns for a person: benchmarks, `expar info`, heaps.
 *
 * Called by the subcommands and by bench; laid out by libsmartcols. A column is as wide as its widest cell. Lines have
 * their full length, and a pipe gets all columns. On a terminal that is too narrow, columns drop in the order that
 * table_drop states, so that no row wraps. A line below the table names them. Colour is as colour.h decides. Control
 * characters are shown as \x1b, so that no program's name can control the terminal.
 *
 * Add columns first, then rows, each filled from left to right. Cells that are not filled stay empty. table_print
 * reports once if memory ran out on the way. A table is for one thread. */
#ifndef EXPAR_TOOL_TABLE_H
#define EXPAR_TOOL_TABLE_H

#include <stdbool.h>
#include <stdio.h>

enum table_align {
    TABLE_LEFT, /* words */
    TABLE_RIGHT /* numbers */
};

struct table;

/* Returns NULL if memory ran out. The calls below accept NULL, and table_print reports it. */
struct table *table_new(void);

/* Adds a column. The title is copied. If all titles are NULL, the table is printed without a line of titles. A table
   without rows is not printed. */
void table_column(struct table *table, const char *title, enum table_align align);

/* States when the last column drops on a narrow terminal: those with order 1 drop first, the later of two columns with
   the same order before the earlier. A column without an order drops after all others, the last one first; the first
   column never drops. In a table without any order, no column drops, and rows may wrap: its cells are to be copied. A
   column without any cell is not shown. */
void table_drop(struct table *table, int order);
/* Explains the last column below the table, while it is shown. `text` is not copied. */
void table_legend(struct table *table, const char *text);

void table_row(struct table *table);
/* Fills the next cell of the last row. */
__attribute__((format(printf, 2, 3))) void table_cell(struct table *table, const char *format, ...);
/* Fills the next cell in bold red on a terminal. It is for what is wrong or missing. */
__attribute__((format(printf, 2, 3))) void table_alarm(struct table *table, const char *format, ...);
/* Fills the next cell in yellow, for what is doubtful, or in green, for what is good. */
__attribute__((format(printf, 2, 3))) void table_warn(struct table *table, const char *format, ...);
__attribute__((format(printf, 2, 3))) void table_good(struct table *table, const char *format, ...);
/* Fills the next cell with a bar of `width` characters, of which a share is filled; more than 1 counts as 1. */
void table_bar(struct table *table, double share, int width);
/* Fills the next cell with "yes", or with "NO" as an alarm. */
void table_verdict(struct table *table, bool good);
/* Leaves the next cell empty. */
void table_skip(struct table *table);

/* Prints and destroys the table. False: memory ran out, and stderr says so. The owner of `out` checks whether it took
   the text (ferror). */
bool table_print(struct table *table, FILE *out);

#endif
