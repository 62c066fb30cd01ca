/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the expar command as a user does. */
#ifndef TESTS_DEMO_SHELL_H
#define TESTS_DEMO_SHELL_H

#include <stddef.h>

typedef struct shell_output {
    char *text; /* what was printed; the caller frees */
    int code;   /* exit code; -1: ended by a signal */
} shell_output;

/* `expar <arguments>` by the shell. With both, stderr comes with stdout; else it is dropped. Fails the running test
   when the command cannot be started. */
shell_output shell_expar(const char *arguments, int both);

/* Fails the running test, showing the output, unless it contains `part`. */
void shell_assert_says(const shell_output *output, const char *part);

#endif
