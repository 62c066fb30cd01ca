/* SPDX-License-Identifier: Apache-2.0 */
/* text: reads numbers from option texts. It accepts no blanks, no rest and no overflow. */
#ifndef EXPAR_TOOL_TEXT_H
#define EXPAR_TOOL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a decimal number, low ≤ *value ≤ high. *value is set on success only. */
bool text_to_int(const char *text, int64_t low, int64_t high, int64_t *value);
/* Reads seconds above 0 and below 10^9; fractions are allowed. */
bool text_to_seconds(const char *text, double *seconds);

#endif
