/* SPDX-License-Identifier: Apache-2.0 */
/* expar completion: the subcommand, and what the scripts of the shells have in common. */
#include "completion.h"
#include "arguments.h"
#include "base/shown.h"
#include <stdio.h>
#include <string.h>

#define FILE_WORD "FILE" /* among the words of a choice: a file is one, too */

static const struct command_choice common_choices[] = {{"color", "auto always never"}, {NULL, NULL}};

static const char *choice_among(const struct command_choice *choices, const char *name)
{
    for (const struct command_choice *c = choices; c && c->option; c++)
        if (!strcmp(c->option, name)) return c->words;
    return NULL;
}

static const char *choice_of(const struct command *command, const char *name)
{
    const char *words = choice_among(command->choices, name);
    return words ? words : choice_among(common_choices, name);
}

static bool is_end(const struct argp_option *option)
{
    return !option->name && !option->key && !option->doc;
}

const struct argp_option *completion_next_option(const struct command *command, const struct argp_option *last)
{
    static const struct argp_option none[] = {{0}};
    const struct argp_option *own = command->options ? command->options : none;
    const struct argp_option *next = last ? last + 1 : own;
    bool common = false;
    for (const struct argp_option *o = arguments_common; !is_end(o); o++)
        common |= o == last;
    while (!is_end(next) && !next->name)
        next++;
    if (is_end(next) && !common) next = arguments_common;
    return is_end(next) ? NULL : next;
}

/* Takes words divided by blanks apart. */
static void values_add(completion_values *out, const char *words)
{
    for (const char *w = words; w && *w; w += strspn(w, " ")) {
        const int length = (int)strcspn(w, " ");
        const size_t used = strlen(out->words);
        if (length == (int)strlen(FILE_WORD) && !strncmp(w, FILE_WORD, (size_t)length))
            out->files = true;
        else
            snprintf(out->words + used, sizeof out->words - used, "%s%.*s", used ? " " : "", length, w);
        w += length;
    }
}

void completion_values_of(const struct command *command, const struct argp_option *option, completion_values *out)
{
    const char *words = choice_of(command, option->name);
    const bool none = !words && option->arg;
    *out = (completion_values){.files = none && !strcmp(option->arg, "FILE"),
                               .folders = none && !strcmp(option->arg, "FOLDER")};
    values_add(out, words);
}

void completion_operands_of(const struct command *command, completion_values *out)
{
    *out = (completion_values){0};
    values_add(out, command->operands);
}

char completion_short(const struct argp_option *option)
{
    return (char)(option->key > ' ' && option->key < 127 ? option->key : 0);
}

bool completion_of_program(const struct command *command)
{
    return command->arguments && !strncmp(command->arguments, "-- PROGRAM", strlen("-- PROGRAM"));
}

/* Ends where a further thought begins, or before the last word that does not fit. */
void completion_describe(const char *doc, char text[COMPLETION_TEXT])
{
    enum { SHORTEST = 12 };
    size_t length = strcspn(doc, ";:");
    const char *bracket = strstr(doc, " (");
    if (bracket && (size_t)(bracket - doc) < length) length = (size_t)(bracket - doc);
    if (length < SHORTEST) length = strlen(doc);
    if (length >= COMPLETION_TEXT)
        for (length = COMPLETION_TEXT - 1; length > 0 && doc[length] != ' '; length--)
            continue;
    if (length > 0 && doc[length - 1] == ',') length--;
    snprintf(text, COMPLETION_TEXT, "%.*s", (int)length, doc);
}

void completion_put(const char *text, const char *escaped, const char *quote)
{
    for (; *text; text++) {
        if (*text == '\'') {
            printf("%s", quote);
            continue;
        }
        if (strchr(escaped, *text)) putchar('\\');
        putchar(*text);
    }
}

/* ---- the subcommand ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*print)(void);
} shells[] = {{"bash", completion_bash}, {"zsh", completion_zsh}, {"fish", completion_fish}};
enum { NUM_SHELLS = sizeof shells / sizeof *shells };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    int *chosen = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (*chosen < NUM_SHELLS) argp_error(state, "'%s' is not expected: one shell at a time", SHOWN(arg));
        for (*chosen = 0; *chosen < NUM_SHELLS && strcmp(arg, shells[*chosen].name) != 0; ++*chosen)
            continue;
        if (*chosen == NUM_SHELLS) argp_error(state, "'%s': bash, zsh or fish is expected", SHOWN(arg));
        return 0;
    case ARGP_KEY_END:
        if (*chosen == NUM_SHELLS) argp_error(state, "which shell? bash, zsh or fish is expected");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int run(int argc, char **argv);

static const struct command_example examples[] = {
    {"source <(expar completion bash)", "for this bash; add the line to ~/.bashrc for all"},
    {"expar completion zsh > \"${fpath[1]}/_expar\"", "for every later zsh that has run compinit"},
    {"expar completion fish > ~/.config/fish/completions/expar.fish", "for every fish"},
    {NULL, NULL},
};

const struct command command_completion = {
    .name = "completion",
    .summary = "a script that completes arguments in bash, zsh or fish",
    .arguments = "bash|zsh|fish",
    .operands = "bash zsh fish",
    .description = "Prints a script for a shell. With it the Tab key completes subcommands, options, and the words and "
                   "files that options take. `make install` and the Debian package install the scripts.",
    .examples = examples,
    .run = run,
};

static int run(int argc, char **argv)
{
    int chosen = NUM_SHELLS;
    command_parse(&command_completion, parse, false, argc, argv, &chosen);
    shells[chosen].print();
    return 0;
}
