/* SPDX-License-Identifier: Apache-2.0 */
/* colour: decides whether escape sequences may be sent to a terminal, and how wide that is. */
#ifndef EXPAR_TOOL_COLOUR_H
#define EXPAR_TOOL_COLOUR_H

#include <stdbool.h>

/* True if `fd` is a terminal that understands escape sequences. */
bool terminal_steered(int fd);
/* Takes what --color says: auto (the default), always, or never. False: `word` is none of them; nothing changes. */
bool colour_choose(const char *word);
/* True if text on `fd` is to be coloured. --color decides; with auto, `fd` must be such a terminal, and NO_COLOR must
   be unset or empty (no-color.org). */
bool colour_wanted(int fd);

/* The escape sequences of the tool's tables and messages. */
#define COLOUR_ALARM "\033[1;31m" /* wrong or missing */
#define COLOUR_WARN  "\033[33m"   /* doubtful */
#define COLOUR_GOOD  "\033[32m"
#define COLOUR_OFF   "\033[0m"
/* Returns one of them, or "" if text on `fd` is not to be coloured. */
const char *colour_of(int fd, const char *sequence);

/* Returns the number of columns of the terminal at `fd`: the terminal's own, else those of COLUMNS, else 80. 0: `fd` is
   no terminal, so lines have no limit. */
int terminal_columns(int fd);
/* Lets terminal_columns return this number for every `fd`. It is for a program that another one starts: its launcher
   may give it a terminal that the user does not see. */
void terminal_set_columns(int columns);

#endif
