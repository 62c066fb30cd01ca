/* SPDX-License-Identifier: Apache-2.0 */
/* table: what the tool prints in columns for a person: benchmarks, `expar info`, heaps.
 *
 * Called by the subcommands and by bench; laid out by libsmartcols. A column is as wide as its widest cell. Lines are
 * as long as they get, on a terminal and elsewhere, so that a pipe sees what a person sees. Colour is for terminals
 * alone (colour.h). Control characters are shown as \x1b, so that no program's name can steer the terminal.
 *
 * Columns first, then rows, each filled from left to right; cells that are not filled stay empty. Memory that is
 * lacking on the way is told by table_print, once. A table is for one thread. */
#ifndef EXPAR_TOOL_TABLE_H
#define EXPAR_TOOL_TABLE_H

#include <stdbool.h>
#include <stdio.h>

enum table_align {
    TABLE_LEFT, /* words */
    TABLE_RIGHT /* numbers */
};

struct table;

/* NULL where memory is lacking; the calls below take that as any other lack of memory. */
struct table *table_new(void);

/* The title is copied. A table whose columns all have no title (NULL) is printed without a line of
   titles, one without rows not at all. */
void table_column(struct table *table, const char *title, enum table_align align);

void table_row(struct table *table);
/* The next cell of the last row. */
__attribute__((format(printf, 2, 3))) void table_cell(struct table *table, const char *format, ...);
/* The same, to be seen at once: bold and red on a terminal. For what is wrong or missing. */
__attribute__((format(printf, 2, 3))) void table_alarm(struct table *table, const char *format, ...);
/* "yes", or an alarming "NO". */
void table_verdict(struct table *table, bool good);
/* Leaves the next cell empty. */
void table_skip(struct table *table);

/* Prints and destroys. False: memory was lacking, and stderr says so. Whether `out` took the text is for its owner to
   find (ferror). */
bool table_print(struct table *table, FILE *out);

#endif
