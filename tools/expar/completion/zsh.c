/* SPDX-License-Identifier: Apache-2.0 */
/* The script for zsh, whose function _arguments does the work. It serves as a file in $fpath, and by `source`. */
#include "completion.h"
#include <stdio.h>

#define QUOTE "'\\''"

/* Writes "[text]", as _arguments reads it. */
static void put_text(const char *doc)
{
    char text[COMPLETION_TEXT];
    completion_describe(doc ? doc : "", text);
    putchar('[');
    completion_put(text, "[]\\:", QUOTE);
    putchar(']');
}

static void put_values(const completion_values *values)
{
    if (values->words[0] && values->files)
        printf("{_alternative \"words\\:word\\:(%s)\" \"files\\:file\\:_files\"}", values->words);
    else if (values->words[0])
        printf("(%s)", values->words);
    else if (values->files)
        printf("_files");
    else if (values->folders)
        printf("_files -/");
}

/* Writes ":name:what it completes to". */
static void put_argument(const struct command *command, const struct argp_option *option)
{
    completion_values values;
    completion_values_of(command, option, &values);
    printf("%s:%s:", option->flags & OPTION_ARG_OPTIONAL ? ":" : "", option->arg);
    put_values(&values);
}

static void put_operands(const struct command *command)
{
    completion_values values;
    completion_operands_of(command, &values);
    if (!command->operands) return;
    printf(" \\\n        '*:what:");
    put_values(&values);
    printf("'");
}

static void put_option(const struct command *command, const struct argp_option *option)
{
    const char name = completion_short(option);
    const bool optional = option->flags & OPTION_ARG_OPTIONAL;
    if (name) {
        printf(" \\\n        '*-%c", name);
        if (option->arg) printf("+");
        put_text(option->doc);
        if (option->arg) put_argument(command, option);
        printf("'");
    }
    printf(" \\\n        '*--%s%s", option->name, option->arg ? optional ? "=-" : "=" : "");
    put_text(option->doc);
    if (option->arg) put_argument(command, option);
    printf("'");
}

/* After "--" the words are those of another command. */
static const char to_program[] = "        if (( words[(i)--] < CURRENT )); then\n"
                                 "            local -i first=$words[(i)--]\n"
                                 "            (( CURRENT -= first ))\n"
                                 "            shift $first words\n"
                                 "            _normal\n"
                                 "            return\n"
                                 "        fi\n";

static void put_subcommand(const struct command *command)
{
    printf("    %s)\n", command->name);
    if (completion_of_program(command)) printf("%s", to_program);
    printf("        _arguments");
    COMPLETION_EACH_OPTION(option, command) put_option(command, option);
    printf(" \\\n        '(- *)--help[print the options and examples]'");
    put_operands(command);
    printf("\n        ;;\n");
}

void completion_zsh(void)
{
    printf("#compdef expar\n# zsh completion of expar, made by `expar completion zsh`\n_expar() {\n"
           "    local context state state_descr line\n    local -A opt_args\n"
           "    local -a subcommands\n    subcommands=(\n");
    for (const struct command *const *c = command_table; *c; c++) {
        printf("        '%s:", (*c)->name);
        completion_put((*c)->summary, "\\:", QUOTE);
        printf("'\n");
    }
    printf("    )\n    _arguments -C '(- *)--help[list the subcommands]' '(- *)--version[print the version]' \\\n"
           "        '1: :->command' '*:: :->arguments'\n"
           "    if [[ $state == command ]]; then\n        _describe -t commands 'expar command' subcommands\n"
           "        return\n    fi\n    case $words[1] in\n");
    for (const struct command *const *c = command_table; *c; c++)
        put_subcommand(*c);
    printf("    esac\n}\n"
           "if [[ $funcstack[1] == _expar ]]; then\n    _expar \"$@\"\nelse\n    compdef _expar expar\nfi\n");
}
