/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the last error of each thread. */
#include "base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[ERROR_TEXT_BYTES];

const char *expar_last_error(void)
{
    return last_text;
}

/* Arguments may point into last_text, so a new text is made elsewhere first. */
static void text_replace(const char *file, int line, const char *text)
{
    memcpy(last_text, text, strlen(text) + 1);
    if (log_wants(LOG_DEBUG)) log_write(LOG_DEBUG, file, line, "%s", last_text);
}

void error_text(const char *file, int line, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_replace(file, line, text);
}

/* Appends as much of `tail` as fits. */
static void text_append(char text[ERROR_TEXT_BYTES], const char *tail)
{
    size_t used = strlen(text);
    size_t bytes = strnlen(tail, ERROR_TEXT_BYTES - 1 - used);
    memcpy(text + used, tail, bytes);
    text[used + bytes] = '\0';
}

expar_status error_prefix(expar_status status, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_append(text, ": ");
    text_append(text, last_text);
    memcpy(last_text, text, strlen(text) + 1);
    return status;
}

void error_text_errno(const char *file, int line, const char *format, ...)
{
    int number = errno;
    char text[ERROR_TEXT_BYTES];
    char reason[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_append(text, ": ");
    text_append(text, strerror_r(number, reason, sizeof reason));
    text_replace(file, line, text);
}

void error_keep(error_kept *kept, expar_status status)
{
    kept->status = status;
    kept->text[0] = '\0';
    if (status != EXPAR_OK) memcpy(kept->text, last_text, strlen(last_text) + 1);
}

expar_status error_restore(const error_kept *kept)
{
    if (kept->status != EXPAR_OK) memcpy(last_text, kept->text, strlen(kept->text) + 1);
    return kept->status;
}
