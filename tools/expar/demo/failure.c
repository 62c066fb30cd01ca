/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's error text. */
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

__attribute__((format(printf, 3, 0))) static void set(demo_error *error, int code, const char *format,
                                                      va_list arguments)
{
    vsnprintf(error->text, sizeof error->text, format, arguments);
    error->code = code;
}

bool demo_fail(demo_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(error, EXIT_FAILURE, format, arguments);
    va_end(arguments);
    return false;
}

bool demo_reject(demo_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(error, EX_USAGE, format, arguments);
    va_end(arguments);
    return false;
}

bool demo_check(demo_error *error, const char *call, expar_status status)
{
    if (status == EXPAR_OK) return true;
    return demo_fail(error, "%s: %s: %s", call, expar_status_string(status), expar_last_error());
}

void *demo_alloc(demo_error *error, size_t bytes)
{
    void *block = malloc(bytes ? bytes : 1);
    if (!block) demo_fail(error, "out of memory: %zu bytes were wanted", bytes);
    return block;
}

void *demo_calloc(demo_error *error, size_t count, size_t bytes)
{
    void *block = calloc(count ? count : 1, bytes ? bytes : 1);
    if (!block) demo_fail(error, "out of memory: %zu times %zu bytes were wanted", count, bytes);
    return block;
}
