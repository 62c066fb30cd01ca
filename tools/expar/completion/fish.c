/* SPDX-License-Identifier: Apache-2.0 */
/* The script for fish: one line for each option and word. */
#include "completion.h"
#include <stdio.h>

static const char script_start[] =
    "# fish completion of expar, made by `expar completion fish`\n"
    "function __expar_at\n"
    "    set -l tokens (commandline -opc)\n"
    "    test (count $tokens) -ge 2; and test $tokens[2] = $argv[1]; and not contains -- -- $tokens\n"
    "end\n"
    "function __expar_at_program\n"
    "    set -l tokens (commandline -opc)\n"
    "    test (count $tokens) -ge 2; and test $tokens[2] = $argv[1]; and contains -- -- $tokens\n"
    "end\n"
    "function __expar_program\n"
    "    set -l tokens (commandline -opc)\n"
    "    set -l first (math (contains -i -- -- $tokens) + 1)\n"
    "    complete -C (string join ' ' -- (string escape -- $tokens[$first..-1]) (commandline -ct))\n"
    "end\n"
    "function __expar_first\n"
    "    test (count (commandline -opc)) -eq 1\n"
    "end\n"
    "complete -c expar -f\n"
    "complete -c expar -n __expar_first -l help -d 'list the subcommands'\n"
    "complete -c expar -n __expar_first -l version -d 'print the version'\n";

static void put_text(const char *doc)
{
    char text[COMPLETION_TEXT];
    completion_describe(doc ? doc : "", text);
    printf(" -d '");
    completion_put(text, "\\", "\\'");
    printf("'");
}

static void put_option(const struct command *command, const struct argp_option *option)
{
    completion_values values;
    completion_values_of(command, option, &values);
    printf("complete -c expar -n '__expar_at %s'", command->name);
    if (completion_short(option)) printf(" -s %c", completion_short(option));
    printf(" -l %s", option->name);
    if (option->arg && !(option->flags & OPTION_ARG_OPTIONAL)) printf(values.files || values.folders ? " -r" : " -x");
    if (values.files) printf(" -F");
    if (values.folders)
        printf(" -a '(__fish_complete_directories)'");
    else if (values.words[0])
        printf(" -a '%s'", values.words);
    put_text(option->doc);
    printf("\n");
}

static void put_subcommand(const struct command *command)
{
    printf("complete -c expar -n __expar_first -a %s", command->name);
    put_text(command->summary);
    printf("\n");
    COMPLETION_EACH_OPTION(option, command) put_option(command, option);
    printf("complete -c expar -n '__expar_at %s' -l help -d 'print the options and examples'\n", command->name);
    completion_values operands;
    completion_operands_of(command, &operands);
    if (command->operands)
        printf("complete -c expar -n '__expar_at %s'%s -a '%s'\n", command->name, operands.files ? " -F" : "",
               operands.words);
    if (completion_of_program(command))
        printf("complete -c expar -n '__expar_at_program %s' -a '(__expar_program)'\n", command->name);
}

void completion_fish(void)
{
    printf("%s", script_start);
    for (const struct command *const *c = command_table; *c; c++)
        put_subcommand(*c);
}
