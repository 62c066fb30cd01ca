/* SPDX-License-Identifier: Apache-2.0 */
/* Small files below /proc and /sys. */
#include "check.h"
#include "info/info.h"
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes a path. False if it is too long. */
__attribute__((format(printf, 2, 0))) static bool path_make(char path[PATH_MAX], const char *format, va_list arguments)
{
    int length = vsnprintf(path, PATH_MAX, format, arguments);
    return length >= 0 && length < PATH_MAX;
}

bool check_read(char *text, size_t bytes, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    bool made = path_make(path, format, arguments);
    va_end(arguments);
    return made && info_read_line(path, text, bytes);
}

bool check_read_number(int64_t *value, const char *format, ...)
{
    char path[PATH_MAX], line[64], *end;
    va_list arguments;
    va_start(arguments, format);
    bool made = path_make(path, format, arguments);
    va_end(arguments);
    if (!made || !info_read_line(path, line, sizeof line)) return false;
    long long number = strtoll(line, &end, 10);
    if (end == line) return false;
    *value = number;
    return true;
}

static bool names_take(struct check_names *list, struct dirent **entries, int count)
{
    list->names = calloc((size_t)count + 1, sizeof *list->names);
    for (int i = 0; i < count && list->names; i++)
        if (entries[i]->d_name[0] != '.')
            snprintf(list->names[list->count++], sizeof *list->names, "%s", entries[i]->d_name);
    return list->names != NULL;
}

void check_names_read(struct check_names *list, const char *format, ...)
{
    char path[PATH_MAX];
    struct dirent **entries = NULL;
    va_list arguments;
    *list = (struct check_names){0};
    va_start(arguments, format);
    bool made = path_make(path, format, arguments);
    va_end(arguments);
    int count = made ? scandir(path, &entries, NULL, versionsort) : -1;
    if (count < 0) return;
    names_take(list, entries, count);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

void check_names_free(struct check_names *list)
{
    free(list->names);
    *list = (struct check_names){0};
}

bool check_read_field(const char *path, const char *name, char *text, size_t bytes)
{
    char line[4096];
    const size_t length = strlen(name);
    bool found = false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, length) != 0 || !strchr(": \t", line[length])) continue;
        const char *value = line + length + strspn(line + length, ": \t");
        snprintf(text, bytes, "%.*s", (int)strcspn(value, "\n"), value);
        found = true;
    }
    fclose(file);
    return found;
}
