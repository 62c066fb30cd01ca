/* SPDX-License-Identifier: Apache-2.0 */
/* table: prints columns for a person: benchmarks, `expar info`, heaps.
 *
 * Called by the subcommands and by bench; laid out by libsmartcols. A column is as wide as its widest cell. Lines have
 * their full length, on a terminal and elsewhere, so that a pipe gets what a person sees. Colour is for terminals alone
 * (colour.h). Control characters are shown as \x1b, so that no program's name can control the terminal.
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

void table_row(struct table *table);
/* Fills the next cell of the last row. */
__attribute__((format(printf, 2, 3))) void table_cell(struct table *table, const char *format, ...);
/* Fills the next cell in bold red on a terminal. It is for what is wrong or missing. */
__attribute__((format(printf, 2, 3))) void table_alarm(struct table *table, const char *format, ...);
/* Fills the next cell with "yes", or with "NO" as an alarm. */
void table_verdict(struct table *table, bool good);
/* Leaves the next cell empty. */
void table_skip(struct table *table);

/* Prints and destroys the table. False: memory ran out, and stderr says so. The owner of `out` checks whether it took
   the text (ferror). */
bool table_print(struct table *table, FILE *out);

#endif
