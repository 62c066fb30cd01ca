/* SPDX-License-Identifier: Apache-2.0 */
/* shell: runs a command line and keeps what came of it. The tool is "$EXPAR" there, a folder of the
 * test's own "$TMP". */
#ifndef TESTS_TOOL_SHELL_H
#define TESTS_TOOL_SHELL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct shell_result {
    int code;        /* as a shell has it: 128 + signal for a killed one */
    char *out, *err; /* ended by a zero; free with shell_free */
};

/* Sets EXPAR and TMP in the environment; cmocka group set-up and tear-down. The folder is removed at the end. */
int shell_setup(void **state);
int shell_teardown(void **state);

struct shell_result shell(const char *command);
void shell_free(struct shell_result *result);

/* Starts a command line without waiting for it; shell_finish waits and returns its code. */
pid_t shell_start(const char *command);
int shell_finish(pid_t pid);

/* Runs a command and asserts its exit code and a text in its output; NULL: any. */
void shell_expect(const char *command, int code, const char *out_part, const char *err_part);

/* Reads up to `most` process ids, one a line, from "$TMP/NAME"; waits until there are `most`. */
void shell_read_pids(const char *name, pid_t *pids, int most);
/* Waits until a process is gone (a zombie is); fails after a generous time. */
void shell_assert_gone(pid_t pid);

#endif
