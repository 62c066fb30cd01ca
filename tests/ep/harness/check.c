/* SPDX-License-Identifier: Apache-2.0 */
/* Counted checks. */
#include "ep/harness/check.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* More of the same says nothing new. */
#define CHECK_PRINTED_MAX 10

static _Thread_local int32_t check_rank;
static _Thread_local int64_t check_count;

void check_begin(int32_t rank)
{
    check_rank = rank;
    check_count = 0;
}

int64_t check_failures(void)
{
    return check_count;
}

bool check_that(bool holds, const char *file, int line, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    if (holds || check_count++ >= CHECK_PRINTED_MAX) return holds;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s:%d: rank %d: %s\n", file, line, (int)check_rank, text);
    return false;
}

bool check_status(expar_status expected, expar_status got, const char *call, const char *file, int line)
{
    return check_that(got == expected, file, line, "%s gave %s (%s), expected %s", call, expar_status_string(got),
                      got == EXPAR_OK ? "" : expar_last_error(), expar_status_string(expected));
}

bool check_text(const char *file, int line, const char *const *words)
{
    const char *text = expar_last_error();
    bool all = true;
    for (; *words; words++)
        all &= check_that(strstr(text, *words) != NULL, file, line, "\"%s\" does not say \"%s\"", text, *words);
    return all;
}

#define FILL_BYTE 0x3c

void check_fill(void *memory, size_t bytes)
{
    memset(memory, FILL_BYTE, bytes);
}

void check_filled(const void *memory, size_t bytes, const char *call)
{
    bool same = true;
    for (size_t i = 0; i < bytes; i++)
        same &= ((const unsigned char *)memory)[i] == FILL_BYTE;
    CHECK(same, "%s that failed wrote what it gives", call);
}
