/* SPDX-License-Identifier: Apache-2.0 */
/* Whether what is written may be coloured. */
#include "colour.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool colour_wanted(int fd)
{
    const char *refused = getenv("NO_COLOR"), *terminal = getenv("TERM");
    if (refused && *refused) return false;
    return isatty(fd) == 1 && !(terminal && !strcmp(terminal, "dumb"));
}
