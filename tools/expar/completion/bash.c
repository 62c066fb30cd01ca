/* SPDX-License-Identifier: Apache-2.0 */
/* The script for bash. It needs bash 4 alone; where bash-completion is loaded, the program of `expar run` completes by
 * the script of that program. */
#include "completion.h"
#include <stdio.h>

static const char script_start[] =
    "# bash completion of expar, made by `expar completion bash`\n"
    "_expar_reply() {\n"
    "    mapfile -t COMPREPLY < <(compgen \"$@\" -- \"$cur\")\n"
    "}\n"
    "\n"
    "# The program of `expar run`, and its arguments, which begin at that word.\n"
    "_expar_program() {\n"
    "    if declare -F _command_offset >/dev/null; then\n"
    "        _command_offset \"$1\"\n"
    "    elif ((COMP_CWORD == $1)); then\n"
    "        _expar_reply -c\n"
    "    else\n"
    "        compopt -o filenames\n"
    "        _expar_reply -f\n"
    "    fi\n"
    "}\n"
    "\n"
    "_expar() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} joined= program=0 i\n"
    "    local options= takes=' ' operands= operand_files= words= files= folders=\n"
    "    COMPREPLY=()\n"
    "    # bash divides --device=cpu into three words.\n"
    "    [[ $prev == = ]] && joined=1 prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    [[ $cur == = ]] && joined=1 cur=\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        _expar_reply -W '";

static const char script_end[] = "    esac\n"
                                 "    if ((program)); then\n"
                                 "        for ((i = 2; i < COMP_CWORD; i++)); do\n"
                                 "            [[ ${COMP_WORDS[i]} == -- ]] || continue\n"
                                 "            _expar_program $((i + 1))\n"
                                 "            return\n"
                                 "        done\n"
                                 "    fi\n"
                                 "    if [[ -n $joined || $takes == *\" $prev \"* ]]; then\n"
                                 "        [[ -n $files$folders ]] && compopt -o filenames\n"
                                 "        _expar_reply ${words:+-W \"$words\"} ${files:+-f} ${folders:+-d}\n"
                                 "        [[ -n $words$files$folders ]] || COMPREPLY=()\n"
                                 "    elif [[ $cur == -* ]]; then\n"
                                 "        _expar_reply -W \"$options --help\"\n"
                                 "    elif [[ -n $operands ]]; then\n"
                                 "        [[ -n $operand_files ]] && compopt -o filenames\n"
                                 "        _expar_reply -W \"$operands\" ${operand_files:+-f}\n"
                                 "    fi\n"
                                 "}\n"
                                 "complete -F _expar expar\n";

/* Writes the option's names, each with this text before it. */
static void put_names(const struct argp_option *option, const char *before)
{
    if (completion_short(option)) printf("%s-%c", before, completion_short(option));
    printf("%s--%s", before, option->name);
}

static void put_values(const struct command *command)
{
    COMPLETION_EACH_OPTION(option, command)
    {
        completion_values values;
        completion_values_of(command, option, &values);
        if (!values.words[0] && !values.files && !values.folders) continue;
        printf("            --%s", option->name);
        if (completion_short(option)) printf(" | -%c", completion_short(option));
        printf(") words='");
        completion_put(values.words, "", "'\\''");
        printf("'%s%s ;;\n", values.files ? " files=1" : "", values.folders ? " folders=1" : "");
    }
}

static void put_subcommand(const struct command *command)
{
    printf("        %s)\n            options='", command->name);
    COMPLETION_EACH_OPTION(option, command) put_names(option, " ");
    printf("'\n            takes='");
    COMPLETION_EACH_OPTION(option, command)
    if (option->arg && !(option->flags & OPTION_ARG_OPTIONAL)) put_names(option, " ");
    completion_values operands;
    completion_operands_of(command, &operands);
    printf(" '\n            operands='%s'%s\n", operands.words, operands.files ? " operand_files=1" : "");
    if (completion_of_program(command)) printf("            program=1\n");
    printf("            case $prev in\n");
    put_values(command);
    printf("            esac\n            ;;\n");
}

void completion_bash(void)
{
    printf("%s", script_start);
    for (const struct command *const *c = command_table; *c; c++)
        printf("%s ", (*c)->name);
    printf("--help --version'\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n");
    for (const struct command *const *c = command_table; *c; c++)
        put_subcommand(*c);
    printf("%s", script_end);
}
