/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up subcommands, and parsing their options. */
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

/* Turns --help=full into argp's --help, which lists all options. */
static void ask_for_all(char **args, int argc)
{
    static char help[] = "--help";
    for (int i = 1; i < argc && strcmp(args[i], "--"); i++)
        if (!strcmp(args[i], "--help=full")) args[i] = help;
}

void command_parse(const struct command *command, argp_parser_t parser, bool in_order, int argc, char **argv,
                   void *input)
{
    char name[64];
    snprintf(name, sizeof name, "expar %s", command->name);
    if (command_print_topic(command, argc, argv)) exit(fflush(stdout) == 0 ? 0 : EX_IOERR);
    char *doc = command_help_text(command);
    char **args = calloc((size_t)argc + 1, sizeof *args);
    if (!doc || !args) {
        fprintf(stderr, "%s: out of memory\n", name);
        exit(EX_OSERR);
    }
    memcpy(args, argv, (size_t)argc * sizeof *args);
    args[0] = name; /* so that argp's messages start with "expar run:" */
    if (command->topics) ask_for_all(args, argc);
    struct argp argp = {.options = command->options, .parser = parser, .args_doc = command->arguments, .doc = doc};
    error_t error = arguments_parse(&argp, in_order ? ARGP_IN_ORDER : 0, argc, args, input);
    free(args);
    free(doc);
    if (error) {
        fprintf(stderr, "%s: %s\n", name, strerror(error));
        exit(EX_OSERR);
    }
}

enum { LONGEST_WORD = 31 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Returns the number of insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
   Neither word is longer than LONGEST_WORD. rows[i % 3][j] is the number for the first i characters of a and the first
   j of b. */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][LONGEST_WORD + 1], length_a = (int)strlen(a), length_b = (int)strlen(b);
    for (int i = 0; i <= length_a; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        for (int j = 0; j <= length_b; j++) {
            if (i == 0 || j == 0) {
                row[j] = i + j;
                continue;
            }
            row[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]), least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return rows[length_a % 3][length_b];
}

/* Returns the largest number of typing errors: one in a short word, two from six letters on. With more it is another
   word. */
static int most_slips(const char *a, const char *b)
{
    int shorter = least((int)strlen(a), (int)strlen(b));
    return shorter < 2 ? 0 : shorter < 6 ? 1 : 2;
}

const char *command_nearest(const char *typed)
{
    const char *nearest = NULL;
    int best = LONGEST_WORD;
    for (const struct command *const *c = command_table; *c && strlen(typed) <= LONGEST_WORD; c++) {
        int distance = edit_distance(typed, (*c)->name);
        if (distance <= most_slips(typed, (*c)->name) && distance < best) {
            best = distance;
            nearest = (*c)->name;
        }
    }
    return nearest;
}
