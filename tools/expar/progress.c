/* SPDX-License-Identifier: Apache-2.0 */
/* The progress line for a waiting user. */
#include "progress.h"
#include "colour.h"
#include <stdio.h>
#include <unistd.h>

static const char ERASE[] = "\r\033[K"; /* from the line's beginning to its end */

static bool shown;

void progress_say(const char *what)
{
    shown = terminal_steered(STDERR_FILENO);
    if (shown) fprintf(stderr, "%s%s ...", ERASE, what);
}

void progress_clear(void)
{
    if (shown) fprintf(stderr, "%s", ERASE);
    shown = false;
}
