/* SPDX-License-Identifier: Apache-2.0 */
/* Help: of the tool, of a subcommand, and of a subject of one. */
#include "command.h"
#include "text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS     79
#define HINT_COLUMN 22 /* where the words about an option begin */

void command_print_help(void)
{
    printf("Usage: expar SUBCOMMAND [OPTION...]\n"
           "Expert-parallel communication for Mixture-of-Experts models: run, measure, inspect.\n\n");
    for (const struct command *const *c = command_table; *c; c++)
        printf("  %-10s %s\n", (*c)->name, (*c)->summary);
    printf("\n  --help, --version\n\n"
           "`expar SUBCOMMAND --help` has its options and examples.\n\nExamples:\n");
    for (const struct command *const *c = command_table; *c; c++)
        if ((*c)->examples) printf("  %s\n", (*c)->examples[0].line);
}

char *command_help_text(const struct command *command)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    fprintf(out, "%s", command->topics ? command->summary : command->description);
    if (!command->topics && command->more) fprintf(out, "\n\n%s", command->more);
    if (!command->topics && command->on_gpus) fprintf(out, "\n\n%s", command->on_gpus);
    const struct command_example *example = command->examples;
    if (example) fprintf(out, "\vExamples:\n");
    for (; example && example->line; example++)
        fprintf(out, "  %s\n      %s\n", example->line, example->what);
    fclose(out);
    return text;
}

/* ---- topics ------------------------------------------------------------------------------------------------------ */

static const struct argp_option *option_named(const struct command *command, const char *name)
{
    for (const struct argp_option *o = command->options; o->name || o->key || o->doc; o++)
        if (o->name && !strcmp(o->name, name)) return o;
    return NULL;
}

static void print_hint(const struct command *command, const struct command_hint *hint)
{
    const struct argp_option *option = option_named(command, hint->option);
    const bool optional = option && option->flags & OPTION_ARG_OPTIONAL;
    const char *argument = option ? option->arg : NULL;
    const bool has_short = option && option->key > ' ' && option->key < 127;
    char start[64];
    int used = has_short ? snprintf(start, sizeof start, "  -%c", option->key)
                         : snprintf(start, sizeof start, "  %s%s", option ? "--" : "", hint->option);
    if (argument)
        used += snprintf(start + used, sizeof start - (size_t)used, "%s%s%s", optional ? "[=" : " ", argument,
                         optional ? "]" : "");
    if (used >= HINT_COLUMN)
        printf("%s\n%*s", start, HINT_COLUMN, "");
    else
        printf("%-*s", HINT_COLUMN, start);
    text_wrap(stdout, hint->what, HINT_COLUMN, COLUMNS);
}

static void print_topic(const struct command *command, const struct command_topic *topic)
{
    printf("Usage: expar %s %s\n", command->name, topic->usage);
    text_wrap(stdout, topic->text, 0, COLUMNS);
    printf("\n");
    for (const struct command_hint *hint = topic->hints; hint->option; hint++)
        print_hint(command, hint);
    printf("\nExamples:\n");
    for (const struct command_example *example = topic->examples; example->line; example++)
        printf("  %s\n", example->line);
    printf("All options: expar %s --help=full. How it measures: man expar-%s\n", command->name, command->name);
}

/* Returns whether `word` is one of `words`, which '|' divides. */
static bool is_among(const char *word, const char *words)
{
    const size_t length = strlen(word);
    for (const char *w = words; *w; w += strcspn(w, "|"), w += *w == '|')
        if (strcspn(w, "|") == length && !strncmp(w, word, length)) return true;
    return false;
}

static const struct command_topic *topic_of(const struct command *command, const char *word)
{
    for (const struct command_topic *topic = command->topics; topic->text; topic++)
        if (topic->words && is_among(word, topic->words)) return topic;
    return NULL;
}

/* Finds whether help is asked for, and the first word that names a topic. */
static bool asks(const struct command *command, int argc, char **argv, const struct command_topic **topic)
{
    bool help = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        const char *named = strncmp(argv[i], "--help=", 7) ? argv[i] : argv[i] + 7;
        const struct command_topic *found = topic_of(command, named);
        help |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-?") || (named != argv[i] && found);
        if (found && !*topic) *topic = found;
    }
    return help;
}

bool command_print_topic(const struct command *command, int argc, char **argv)
{
    const struct command_topic *topic = NULL;
    if (!command->topics || !asks(command, argc, argv, &topic)) return false;
    print_topic(command, topic ? topic : command->topics);
    return true;
}
