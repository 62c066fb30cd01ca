/* SPDX-License-Identifier: Apache-2.0 */
/* text: numbers from option texts, strictly: no blanks, no rest, no overflow. */
#ifndef EXPAR_TOOL_TEXT_H
#define EXPAR_TOOL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal, low ≤ *value ≤ high. *value is set on success only. */
bool text_to_int(const char *text, int64_t low, int64_t high, int64_t *value);
/* Seconds > 0, fractions allowed, below 10^9. */
bool text_to_seconds(const char *text, double *seconds);

#endif
