/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of checks. */
#include "check.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_names[] = {"skipped", "ok", "warning", "failure"};

const char *check_status_text(enum check_status status)
{
    return status_names[status];
}

enum check_status check_status_of(const json_t *row)
{
    const char *text = json_string_value(json_object_get(row, "status"));
    for (int i = CHECK_OK; text && i <= CHECK_FAILURE; i++)
        if (!strcmp(text, status_names[i])) return (enum check_status)i;
    return CHECK_SKIPPED;
}

/* Makes a text safe to print, in place: JSON and terminals get it. Control characters become spaces' visible stand-in
   '?', and so does what is no UTF-8. */
static void clean(char *text)
{
    json_t *whole = json_string(text);
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        bool after_c2 = (char *)c > text && c[-1] == 0xc2 && *c < 0xa0;
        if (*c < 0x20 || *c == 0x7f || (*c >= 0x80 && (!whole || after_c2))) *c = '?';
    }
    /* The first byte of a replaced control character of two bytes is left. */
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c == 0xc2 && c[1] == '?') *c = '?';
    json_decref(whole);
}

static json_t *text_or_null(const char *text)
{
    char copy[1024];
    if (!text) return json_null();
    snprintf(copy, sizeof copy, "%s", text);
    clean(copy);
    return json_string(copy);
}

void check_add(json_t *rows, const struct check_row *row, const char *format, ...)
{
    char value[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    clean(value);
    bool good = row->status == CHECK_OK;
    json_array_append_new(rows,
                          json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "area", row->area, "name", row->name, "status",
                                    status_names[row->status], "value", value, "expected", text_or_null(row->expected),
                                    "remedy", text_or_null(good ? NULL : row->remedy)));
}

int check_exit_code(const json_t *rows, bool strict)
{
    size_t i;
    json_t *row;
    enum check_status worst = CHECK_SKIPPED;
    json_array_foreach(rows, i, row)
    {
        if (check_status_of(row) > worst) worst = check_status_of(row);
    }
    if (worst == CHECK_SKIPPED) return CHECK_EXIT_UNCHECKED;
    if (worst == CHECK_FAILURE) return CHECK_EXIT_FAILURE;
    return worst == CHECK_WARNING && strict ? CHECK_EXIT_WARNING : 0;
}

void check_text_add(struct check_text *text, const char *format, ...)
{
    static const char more[] = "...";
    const size_t most = sizeof text->text - sizeof more;
    va_list arguments;
    if (text->used >= most) return;
    va_start(arguments, format);
    int length = vsnprintf(text->text + text->used, most + 1 - text->used, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    if ((size_t)length <= most - text->used) {
        text->used += (size_t)length;
        return;
    }
    memcpy(text->text + most, more, sizeof more);
    text->used = most;
}
