/* SPDX-License-Identifier: Apache-2.0 */
/* Escape sequences that a terminal may get. */
#include "colour.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool terminal_steered(int fd)
{
    const char *terminal = getenv("TERM");
    return isatty(fd) == 1 && !(terminal && !strcmp(terminal, "dumb"));
}

bool colour_wanted(int fd)
{
    const char *rejected = getenv("NO_COLOR");
    return !(rejected && *rejected) && terminal_steered(fd);
}
