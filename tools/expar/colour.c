/* SPDX-License-Identifier: Apache-2.0 */
/* Escape sequences that a terminal may get, and its width. */
#include "colour.h"
#include "text.h"
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum choice { AUTO, ALWAYS, NEVER };
static const char *const words[] = {"auto", "always", "never"};
static enum choice choice;
static int set_columns = -1; /* -1: the terminal decides */

bool terminal_steered(int fd)
{
    const char *terminal = getenv("TERM");
    return isatty(fd) == 1 && !(terminal && !strcmp(terminal, "dumb"));
}

bool colour_choose(const char *word)
{
    for (int i = AUTO; i <= NEVER; i++) {
        if (strcmp(words[i], word) != 0) continue;
        choice = (enum choice)i;
        return true;
    }
    return false;
}

bool colour_wanted(int fd)
{
    const char *rejected = getenv("NO_COLOR");
    if (choice != AUTO) return choice == ALWAYS;
    return !(rejected && *rejected) && terminal_steered(fd);
}

const char *colour_of(int fd, const char *sequence)
{
    return colour_wanted(fd) ? sequence : "";
}

int terminal_columns(int fd)
{
    struct winsize size;
    int64_t columns;
    const char *given = getenv("COLUMNS");
    if (set_columns >= 0) return set_columns;
    if (isatty(fd) != 1) return 0;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return given && text_to_int(given, 1, 10000, &columns) ? (int)columns : 80;
}

void terminal_set_columns(int columns)
{
    set_columns = columns;
}
