/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the last error of each thread. */
#include "base/base.h"
#include "base/job_flags.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[ERROR_TEXT_BYTES];
/* Where that error arose, and whether a public call has ended with it. */
static _Thread_local error_place last_place;
static _Thread_local bool last_told;

const char *expar_last_error(void)
{
    return last_text;
}

/* Arguments may point into last_text, so a new text is first made elsewhere. */
static void text_replace(const char *file, int line, const char *text)
{
    memcpy(last_text, text, strlen(text) + 1);
    last_place = (error_place){file, line};
    last_told = false;
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
    if (status == EXPAR_OK) return status;
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
    kept->place = (error_place){NULL, 0};
    if (status != EXPAR_OK) error_save(kept);
}

expar_status error_restore(const error_kept *kept)
{
    if (kept->status != EXPAR_OK) {
        error_put_back(kept);
        last_told = false;
    }
    return kept->status;
}

void error_save(error_kept *kept)
{
    memcpy(kept->text, last_text, strlen(last_text) + 1);
    kept->place = last_place;
    kept->told = last_told;
}

void error_put_back(const error_kept *kept)
{
    memcpy(last_text, kept->text, strlen(kept->text) + 1);
    last_place = kept->place;
    last_told = kept->told;
}

expar_status error_tell(int32_t rank, expar_status status)
{
    if (last_told) return status;
    last_told = true;
    const error_place place = last_place.file ? last_place : (error_place){__FILE__, __LINE__};
    if (log_wants(LOG_INFO))
        log_write_as(rank, LOG_INFO, place.file, place.line, "%s: %s", expar_status_string(status), last_text);
    if (status == EXPAR_ERR_PEER || status == EXPAR_ERR_REMOTE) job_flag_set();
    return status;
}
