/* SPDX-License-Identifier: Apache-2.0 */
/* text: reads numbers from option texts, and writes running text and bars for a person. Numbers have no blanks, no rest
 * and no overflow. */
#ifndef EXPAR_TOOL_TEXT_H
#define EXPAR_TOOL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Reads a decimal number, low ≤ *value ≤ high. *value is set on success only. */
bool text_to_int(const char *text, int64_t low, int64_t high, int64_t *value);
/* Reads seconds above 0 and below 10^9; fractions are allowed. */
bool text_to_seconds(const char *text, double *seconds);
/* Reads a decimal number with an optional fraction, low ≤ *value ≤ high. */
bool text_to_real(const char *text, double low, double high, double *value);

/* Replaces control characters by '?', so that no file's name can control the terminal. Returns `text`. */
char *text_harmless(char *text);

/* Returns the columns that a text takes on a terminal. */
int text_columns(const char *text);
/* Writes running text that breaks at blanks before `columns`, and ends its last line. The caller has written `indent`
   columns of the first line; later lines are indented by as much. */
void text_wrap(FILE *out, const char *text, int indent, int columns);

#define TEXT_BAR_MOST  40
#define TEXT_BAR_BYTES (TEXT_BAR_MOST * 3 + 1)
/* Writes a bar of at most `width` ≤ TEXT_BAR_MOST characters into bar[TEXT_BAR_BYTES], and returns it. A share of 0 has
   none, a share of 1 or more all. Blocks, or '#' where the locale has no blocks. */
const char *text_bar(char *bar, double share, int width);

#endif
