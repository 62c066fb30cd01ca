/* SPDX-License-Identifier: Apache-2.0 */
/* The command's output through a pipe. */
#include "shell.h"

#include "cmocka_headers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { MAX_OUTPUT = 1 << 20 };

shell_output shell_expar(const char *arguments, int both)
{
    static char line[8192];
    shell_output output = {.text = calloc(1, MAX_OUTPUT)};
    assert_non_null(output.text);
    assert_true(snprintf(line, sizeof line, "'%s' %s %s", EXPAR_COMMAND, arguments, both ? "2>&1" : "2>/dev/null") <
                (int)sizeof line);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t bytes = fread(output.text, 1, MAX_OUTPUT - 1, pipe);
    int status = pclose(pipe);
    assert_true(bytes < MAX_OUTPUT - 1);
    output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return output;
}

void shell_assert_says(const shell_output *output, const char *part)
{
    if (!strstr(output->text, part)) fail_msg("exit code %d, no \"%s\" in: %s", output->code, part, output->text);
}
