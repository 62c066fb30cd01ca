/* SPDX-License-Identifier: Apache-2.0 */
/* completion: scripts that let bash, zsh and fish complete the arguments of expar. They are made from the tables of the
 * subcommands (command.h), so an option completes as soon as it exists, and the shells start no process to complete. */
#ifndef EXPAR_TOOL_COMPLETION_H
#define EXPAR_TOOL_COMPLETION_H

#include "command.h"

void completion_bash(void);
void completion_zsh(void);
void completion_fish(void);

/* ---- for these three (completion.c) ------------------------------------------------------------------------------ */

/* The words, files or folders that an option's argument may be. */
typedef struct completion_values {
    /* divided by blanks; "": none are known */
    char words[256];
    bool files, folders;
} completion_values;

void completion_values_of(const struct command *command, const struct argp_option *option, completion_values *out);
/* The same for the subcommand's operands. */
void completion_operands_of(const struct command *command, completion_values *out);
/* Returns the character of the short option; 0: there is none. */
char completion_short(const struct argp_option *option);
/* Returns whether the subcommand's operands are a program with its arguments, after "--". */
bool completion_of_program(const struct command *command);

#define COMPLETION_TEXT 72
/* Writes a few words about an option or subcommand. */
void completion_describe(const char *doc, char text[COMPLETION_TEXT]);
/* Writes text inside single quotes. Each character of `escaped` gets a backslash; `quote` is written for a quote. */
void completion_put(const char *text, const char *escaped, const char *quote);

/* Returns the next option with a name, of the subcommand and then of all subcommands; NULL: there are no more. `last`
   is the one before; NULL: the first. */
const struct argp_option *completion_next_option(const struct command *command, const struct argp_option *last);
#define COMPLETION_EACH_OPTION(option, command)                                                                        \
    for (const struct argp_option *option = NULL; (option = completion_next_option(command, option));)

#endif
