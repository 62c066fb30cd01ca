/* SPDX-License-Identifier: Apache-2.0 */
/* The log: lines on stderr, one write each, so that lines of several ranks never mix. */
#include "base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES   (ERROR_TEXT_BYTES + 256)
#define LEVEL_UNREAD (-1)

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

/* Level from EXPAR_LOG, or LEVEL_UNREAD. Written by the first threads that log, all with the same value; read by all.
   Relaxed: nothing else hangs on it. */
static atomic_int current_level = LEVEL_UNREAD;
static _Thread_local int32_t thread_rank = -1;

void log_set_rank(int32_t rank)
{
    thread_rank = rank;
}

static int level_from_env(void)
{
    const char *text = env_string("EXPAR_LOG");
    if (!text) return LOG_WARN;
    for (size_t i = 0; i < ARRAY_LENGTH(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) return (int)i;
    }
    log_write(LOG_WARN, __FILE__, __LINE__, "EXPAR_LOG=%s is none of error, warn, info, debug, trace; taking warn",
              text);
    return LOG_WARN;
}

bool log_wants(log_level level)
{
    int wanted = atomic_load_explicit(&current_level, memory_order_relaxed);
    if (wanted == LEVEL_UNREAD) {
        wanted = level_from_env();
        atomic_store_explicit(&current_level, wanted, memory_order_relaxed);
    }
    return (int)level <= wanted;
}

/* Keeps one record on one line, and control sequences in peers' data out of terminals. */
static void line_clean(char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f) line[i] = ' ';
    }
}

static void line_write(const char *line, size_t bytes)
{
    ssize_t written;
    do {
        written = write(STDERR_FILENO, line, bytes);
    } while (written < 0 && errno == EINTR);
}

/* Writes the part before the text; returns its length. */
static size_t line_head(char *line, size_t capacity, log_level level, const char *file, int number)
{
    struct timespec now;
    struct tm local;
    char rank[32] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    if (thread_rank >= 0) snprintf(rank, sizeof rank, "[rank %d] ", (int)thread_rank);
    int bytes = snprintf(line, capacity, "expar %02d:%02d:%02d.%03d %s%-5s %s:%d ", local.tm_hour, local.tm_min,
                         local.tm_sec, (int)(now.tv_nsec / 1000000), rank, level_names[level], file, number);
    return (size_t)bytes < capacity ? (size_t)bytes : capacity - 1;
}

void log_write(log_level level, const char *file, int line, const char *format, ...)
{
    int saved = errno;
    char text[LINE_BYTES];
    size_t used = line_head(text, sizeof text - 1, level, file, line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - 1 - used, format, arguments);
    va_end(arguments);
    used = strlen(text);
    line_clean(text, used);
    text[used] = '\n';
    line_write(text, used + 1);
    errno = saved;
}
