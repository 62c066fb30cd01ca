/* SPDX-License-Identifier: Apache-2.0 */
/* terminal: what a program that runs on a terminal prints, for tests. */
#ifndef TESTS_TOOL_TERMINAL_H
#define TESTS_TOOL_TERMINAL_H

#include <stdbool.h>

/* Returns the output of `print` on stdout, from its first byte to its last, as a terminal gets it or a file; the caller
   frees it. A terminal's lines end with "\r\n". */
char *terminal_capture(bool terminal, void (*print)(void *argument), void *argument);
/* The same on a terminal of so many columns. */
char *terminal_capture_wide(int columns, void (*print)(void *argument), void *argument);

#endif
