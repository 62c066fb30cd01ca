/* SPDX-License-Identifier: Apache-2.0 */
/* Man pages in man(7) macros, made from the same tables as --help and `expar info --env`. */
#include "arguments.h"
#include "command.h"
#include <expar/info.h>
#include <expar/status.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

/* Lines of running text are broken at the first blank after this column. */
#define FILL_COLUMN 64

static void put_character(char character, bool line_start)
{
    if (line_start && (character == '.' || character == '\'')) printf("\\&");
    if (character == '-')
        printf("\\-");
    else if (character == '\\')
        printf("\\e");
    else
        putchar(character);
}

/* Writes text on one line, escaped for roff. */
static void put_text(const char *text)
{
    for (size_t i = 0; text[i]; i++)
        put_character(text[i], i == 0);
}

/* Writes running text, broken into lines. Empty lines divide paragraphs. It ends its last line. */
static void put_running(const char *text)
{
    int column = 0;
    for (; *text; text++) {
        if (!strncmp(text, "\n\n", 2)) {
            printf("\n.PP\n");
            text++;
            column = 0;
        } else if (*text == ' ' && column > FILL_COLUMN) {
            putchar('\n');
            column = 0;
        } else {
            put_character(*text, column++ == 0);
        }
    }
    putchar('\n');
}

static void put_header(const char *title, const char *name, const char *summary)
{
    printf(".TH %s 1 \"%s\" \"expar %s\" \"expar manual\"\n.SH NAME\n%s \\- %s\n", title, EXPAR_MANUAL_DATE,
           expar_version(), name, summary);
}

static void put_option(const struct argp_option *option)
{
    printf(".TP\n\\fB");
    bool has_short = option->key > ' ' && option->key < 127;
    if (has_short) printf("\\-%c", option->key);
    if (option->name) {
        printf("%s\\-\\-", has_short ? "\\fR, \\fB" : "");
        put_text(option->name);
    }
    printf("\\fR");
    if (option->arg) {
        bool optional = option->flags & OPTION_ARG_OPTIONAL;
        printf("%s\\fI", optional ? "[=" : option->name ? "=" : " ");
        put_text(option->arg);
        printf("\\fR%s", optional ? "]" : "");
    }
    printf("\n");
    put_running(option->doc ? option->doc : "");
}

static void put_options(const struct argp_option *options)
{
    printf(".SH OPTIONS\n");
    for (const struct argp_option *o = options; o && (o->name || o->key || o->doc); o++)
        if (o->name || o->key) put_option(o);
    for (const struct argp_option *o = arguments_common; o->name; o++)
        put_option(o);
    printf(".TP\n\\fB\\-\\-help\\fR\nPrint the options and examples.\n");
}

static void put_example(const struct command_example *example)
{
    printf(".TP\n\\fB");
    put_text(example->line);
    printf("\\fR\n");
    put_running(example->what);
}

static void put_examples(const struct command_example *examples)
{
    if (!examples) return;
    printf(".SH EXAMPLES\n");
    for (; examples->line; examples++)
        put_example(examples);
}

static void put_exit_status(void)
{
    printf(".SH EXIT STATUS\n0 on success, 64 for what was typed and cannot be used;\n"
           "a program's own where \\fBexpar\\-run\\fR(1) says so;\n"
           "128 and the signal's number after Ctrl-C or SIGTERM: ranks of bench and\n"
           "demo leave their group and end within 0.1 s, or at once with a second one;\n"
           "else another, and why is said on standard error.\n");
}

static void put_environment(void)
{
    const char *name, *values, *fallback, *meaning;
    printf(".SH ENVIRONMENT\n");
    for (size_t i = 0; expar_env_describe(i, &name, &values, &fallback, &meaning); i++) {
        printf(".TP\n\\fB");
        put_text(name);
        printf("\\fR\n");
        put_running(meaning);
        printf(".br\nValues: ");
        put_running(values);
        printf(".br\nDefault: ");
        put_running(fallback);
    }
}

static void page_of_tool(void)
{
    put_header("EXPAR", "expar", "expert-parallel communication for Mixture-of-Experts models");
    printf(".SH SYNOPSIS\n.B expar\n.I SUBCOMMAND\n.RI [ OPTION ...]\n.SH DESCRIPTION\n"
           "Runs, measures and inspects programs that use the expar library.\n"
           "Results go to standard output, everything else to standard error;\n"
           "the exit code is 0 only on success,\n"
           "and 64 for what was typed and cannot be used.\n"
           "Where ranks are counted, \\-np N is taken as \\-n N.\n.SH SUBCOMMANDS\n");
    for (const struct command *const *c = command_table; *c; c++) {
        printf(".TP\n\\fB%s\\fR\n", (*c)->name);
        put_running((*c)->summary);
        printf(".br\nSee \\fBexpar\\-%s\\fR(1).\n", (*c)->name);
    }
    put_exit_status();
    put_environment();
    printf(".SH EXAMPLES\n");
    for (const struct command *const *c = command_table; *c; c++)
        if ((*c)->examples) put_example((*c)->examples);
    printf(".SH SEE ALSO\n");
    for (const struct command *const *c = command_table; *c; c++)
        printf("\\fBexpar\\-%s\\fR(1)%s\n", (*c)->name, c[1] ? "," : "");
}

static void page_of_command(const struct command *command)
{
    char title[64], name[64];
    snprintf(title, sizeof title, "expar\\-%s", command->name);
    snprintf(name, sizeof name, "expar\\-%s", command->name);
    for (char *c = title; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
    put_header(title, name, command->summary);
    printf(".SH SYNOPSIS\n\\fBexpar %s\\fR [\\fIOPTION\\fR...]", command->name);
    if (command->arguments) {
        printf(" ");
        put_text(command->arguments);
    }
    printf("\n.SH DESCRIPTION\n");
    put_running(command->description);
    if (command->more) {
        printf(".PP\n");
        put_running(command->more);
    }
    if (command->on_gpus) {
        printf(".SH ON GPUS\n");
        put_running(command->on_gpus);
    }
    put_options(command->options);
    put_exit_status();
    printf(".SH ENVIRONMENT\nThe library's variables, which \\fBexpar\\fR(1) lists.\n");
    put_examples(command->examples);
    printf(".SH SEE ALSO\n\\fBexpar\\fR(1)\n");
}

int command_man(int argc, char **argv)
{
    if (argc < 2) {
        page_of_tool();
        return 0;
    }
    if (argc > 2) {
        fprintf(stderr, "expar man: '%s' is not expected here\n", argv[2]);
        return EX_USAGE;
    }
    const struct command *command = command_find(argv[1]);
    if (!command) {
        fprintf(stderr, "expar man: there is no subcommand '%s'\n", argv[1]);
        return EX_USAGE;
    }
    page_of_command(command);
    return 0;
}
