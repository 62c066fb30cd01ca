/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up subcommands, parsing their options, and printing help. */
#include "command.h"
#include "arguments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

const struct command *command_find(const char *name)
{
    for (const struct command *const *c = command_table; *c; c++)
        if (!strcmp((*c)->name, name)) return *c;
    return NULL;
}

void command_print_help(void)
{
    printf("Usage: expar SUBCOMMAND [OPTION...]\n"
           "Expert-parallel communication for Mixture-of-Experts models: run, measure, inspect.\n\n");
    for (const struct command *const *c = command_table; *c; c++)
        printf("  %-8s %s\n", (*c)->name, (*c)->summary);
    printf("\n  --help, --version\n\n"
           "`expar SUBCOMMAND --help` has its options and examples.\n\nExamples:\n");
    for (const struct command *const *c = command_table; *c; c++)
        if ((*c)->examples) printf("  %s\n", (*c)->examples[0].line);
}

/* What argp prints: the description before the options, the examples behind them ('\v' divides). NULL: no memory. */
static char *help_text(const struct command *command)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    fprintf(out, "%s", command->description);
    const struct command_example *example = command->examples;
    if (example) fprintf(out, "\vExamples:\n");
    for (; example && example->line; example++)
        fprintf(out, "  %s\n      %s\n", example->line, example->what);
    fclose(out);
    return text;
}

void command_parse(const struct command *command, argp_parser_t parser, bool in_order, int argc, char **argv,
                   void *input)
{
    char name[64];
    snprintf(name, sizeof name, "expar %s", command->name);
    char *doc = help_text(command);
    char **args = calloc((size_t)argc + 1, sizeof *args);
    if (!doc || !args) {
        fprintf(stderr, "%s: out of memory\n", name);
        exit(EX_OSERR);
    }
    memcpy(args, argv, (size_t)argc * sizeof *args);
    args[0] = name; /* so that argp's messages start with "expar run:" */
    struct argp argp = {.options = command->options, .parser = parser, .args_doc = command->arguments, .doc = doc};
    error_t error = arguments_parse(&argp, in_order ? ARGP_IN_ORDER : 0, argc, args, input);
    free(args);
    free(doc);
    if (error) {
        fprintf(stderr, "%s: %s\n", name, strerror(error));
        exit(EX_OSERR);
    }
}

static int least(int a, int b, int c)
{
    int low = a < b ? a : b;
    return low < c ? low : c;
}

/* Insertions, deletions and replacements that turn one word into the other; words beyond 31 characters are far apart.
 */
static int edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 31 };
    size_t rows = strlen(a), columns = strlen(b);
    if (rows > LONGEST || columns > LONGEST) return LONGEST;
    int row[LONGEST + 1];
    for (size_t j = 0; j <= columns; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= rows; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= columns; j++) {
            int above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[columns];
}

const char *command_nearest(const char *typed)
{
    const char *nearest = NULL;
    int best = 3; /* farther than two edits is no typing error */
    for (const struct command *const *c = command_table; *c; c++) {
        int distance = edit_distance(typed, (*c)->name);
        if (distance < best) {
            best = distance;
            nearest = (*c)->name;
        }
    }
    return nearest;
}
