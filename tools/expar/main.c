/* SPDX-License-Identifier: Apache-2.0 */
/* The expar command: finds the subcommand and runs it. */
#include "base/shown.h"
#include "command.h"
#include "run/hosts.h"
#include "stop.h"
#include <expar/expar.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#ifdef EXPAR_TOOL_HAS_DEMO
#include "demo/demo_command.h"
#endif

const struct command *const command_table[] = {
    &command_run,        &command_bench, &command_info, &command_check,
#ifdef EXPAR_TOOL_HAS_DEMO
    &command_demo,
#endif
    &command_completion, NULL,
};

static int unknown(const char *typed)
{
    const char *nearest = command_nearest(typed);
    if (nearest)
        fprintf(stderr, "expar: there is no subcommand '%s'; did you mean '%s'?\n", SHOWN(typed), nearest);
    else
        fprintf(stderr, "expar: there is no subcommand '%s'; `expar --help` lists them\n", SHOWN(typed));
    return EX_USAGE;
}

static bool is_one_of(const char *text, const char *a, const char *b)
{
    return !strcmp(text, a) || !strcmp(text, b);
}

/* Returns an error code if results did not reach stdout, for example because the disk is full. */
static int flushed(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    perror("expar: cannot write the output");
    return code ? code : EX_IOERR;
}

int main(int argc, char **argv)
{
    /* Tables use the letters of the user's language. Numbers keep their decimal points. */
    setlocale(LC_CTYPE, "");
    if (argc < 2) {
        fprintf(stderr, "expar: which subcommand? `expar --help` lists them\n");
        return EX_USAGE;
    }
    const char *name = argv[1];
    if (is_one_of(name, "--help", "-h") || !strcmp(name, "help")) {
        command_print_help();
        return flushed(0);
    }
    if (is_one_of(name, "--version", "-V")) {
        printf("expar %s\n", expar_version());
        return flushed(0);
    }
    if (!strcmp(name, HOSTS_AGENT)) return flushed(agent_run(argc - 1, argv + 1));
    if (!strcmp(name, "man")) return flushed(command_man(argc - 1, argv + 1));
    const struct command *command = command_find(name);
    return command ? stop_exit_code(flushed(command->run(argc - 1, argv + 1))) : unknown(name);
}
