/* SPDX-License-Identifier: Apache-2.0 */
/* Cells of printed tables. */
#include "cells.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

const char *cells_line(const char *text, const char *start)
{
    const char *line = text;
    for (; line && strncmp(line, start, strlen(start)) != 0; line = line ? line + 1 : NULL)
        line = strchr(line, '\n');
    if (!line) fail_msg("no line begins with '%s' in:\n%s", start, text);
    return line;
}

void cells_assert_under(const char *titles, const char *title, const char *line, const char *expected)
{
    char cell[32];
    const char *at = strstr(titles, title);
    assert_true(at && at < strchr(titles, '\n'));
    int width = (int)(strlen(title) > strlen(expected) ? strlen(title) : strlen(expected));
    int end = (int)(at - titles + (ptrdiff_t)strlen(title));
    snprintf(cell, sizeof cell, "%*s", width + 1, expected);
    if ((int)(strchr(line, '\n') - line) < end || strncmp(line + end - width - 1, cell, (size_t)width + 1) != 0)
        fail_msg("'%s' is not under '%s' of\n%s", expected, title, titles);
}
