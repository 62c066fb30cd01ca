/* SPDX-License-Identifier: Apache-2.0 */
/* command: describes each subcommand once. --help, the man pages and the parser use the same tables.
 *
 * Each subcommand is one file that defines a `struct command`; main.c lists them. Results go to stdout, everything else
 * to stderr. The exit code is 0 only on success, and 64 (EX_USAGE) for wrong usage. */
#ifndef EXPAR_TOOL_COMMAND_H
#define EXPAR_TOOL_COMMAND_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

struct command_example {
    const char *line; /* what to type; NULL ends a list */
    const char *what; /* what it does */
};

/* A line of a topic's help. */
struct command_hint {
    const char *option; /* a name in the table of options, or of an operand; NULL ends a list */
    const char *what;   /* a few words, with the default in brackets */
};

/* A subject of a subcommand with many options. `expar SUBCOMMAND WORD --help` prints it on one screen of 24 lines and
   80 columns. */
struct command_topic {
    const char *words; /* that lead here, divided by '|'; NULL: --help alone, which comes first in a list */
    const char *usage; /* after the subcommand's name */
    const char *text;  /* what it does; NULL ends a list */
    const struct command_hint *hints;
    const struct command_example *examples;
};

/* The words that an option's argument may be, for completion. FILE among them: a file is one, too. */
struct command_choice {
    const char *option; /* a name in the table of options; NULL ends a list */
    const char *words;  /* divided by blanks */
};

struct command {
    const char *name;
    const char *summary;     /* one line, no full stop */
    const char *arguments;   /* after the options in the usage line, or NULL */
    const char *operands;    /* the words among these, divided by blanks, for completion, or NULL. FILE: a file */
    const char *description; /* paragraphs divided by an empty line */
    /* Further paragraphs, if one text would be too long, or NULL. */
    const char *more;
    /* A paragraph that is added if the tool supports GPUs, or NULL. */
    const char *on_gpus;
    const struct argp_option *options;      /* ends with {0}; NULL: none */
    const struct command_choice *choices;   /* NULL: none */
    const struct command_example *examples; /* NULL: none */
    /* Help by subject; `expar SUBCOMMAND --help=full` then lists all options. NULL: --help prints all that is above. */
    const struct command_topic *topics;
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand's name; returns the exit code */
};

extern const struct command command_run;
extern const struct command command_bench;
extern const struct command command_info;
extern const struct command command_check;
extern const struct command command_completion;

/* The table of main.c; ends with NULL. */
extern const struct command *const command_table[];
const struct command *command_find(const char *name);

/* Runs argp over the arguments of a subcommand: `--help` prints its table and ends the process with 0, a bad option
   ends it with 64 (EX_USAGE). Options may not follow the first argument when `in_order`. argp's state->argv
   ends with the call; its strings are argv's. */
void command_parse(const struct command *command, argp_parser_t parser, bool in_order, int argc, char **argv,
                   void *input);

/* ---- help.c ------------------------------------------------------------------------------------------------------ */

/* Prints `expar --help`. */
void command_print_help(void);
/* Returns the text for argp: the description before the options, and the examples after them ('\v' divides). The caller
   frees it; NULL: no memory. A subcommand with topics describes itself there, and has its summary here. */
char *command_help_text(const struct command *command);
/* Prints the topic that the arguments ask for. False: they ask for none. */
bool command_print_topic(const struct command *command, int argc, char **argv);

/* ---- command.c --------------------------------------------------------------------------------------------------- */

/* Returns the subcommand that was probably meant: it differs by one typing error, or by two in a long word. NULL: none
   is near. */
const char *command_nearest(const char *typed);

/* Writes a man page: `expar man [SUBCOMMAND]`. --help does not list it; the build runs it. */
int command_man(int argc, char **argv);

#endif
