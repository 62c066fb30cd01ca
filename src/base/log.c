/* SPDX-License-Identifier: Apache-2.0 */
/* The log: which lines are written, and how they look. Each line is one write, so that lines of several ranks never
 * mix. */
#include "base/log.h"
#include "base/shown.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LEVEL_UNREAD (-1)

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

/* Level from EXPAR_LOG, or LEVEL_UNREAD. The first threads that log write it, all with the same value; all threads read
   it. Relaxed, because it orders nothing. */
static atomic_int current_level = LEVEL_UNREAD;
/* The rank for threads that have set none. Written when a process becomes a rank, read by all threads that log.
   Relaxed, because it orders nothing. */
static _Atomic int32_t process_rank = -1;
static _Thread_local int32_t thread_rank = -1;

void log_set_rank(int32_t rank)
{
    thread_rank = rank;
}

void log_set_process_rank(int32_t rank)
{
    thread_rank = rank;
    atomic_store_explicit(&process_rank, rank, memory_order_relaxed);
}

static int32_t current_rank(void)
{
    return thread_rank >= 0 ? thread_rank : atomic_load_explicit(&process_rank, memory_order_relaxed);
}

static int level_from_env(void)
{
    const char *text = env_string("EXPAR_LOG");
    if (!text) return LOG_WARN;
    for (size_t i = 0; i < ARRAY_LENGTH(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) return (int)i;
    }
    log_write(LOG_WARN, __FILE__, __LINE__, "EXPAR_LOG=%s is none of error, warn, info, debug, trace; taking warn",
              SHOWN(text));
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

/* Writes the part before the text; returns its length. */
static size_t line_head(log_line *line, size_t capacity)
{
    struct timespec now;
    struct tm local;
    char rank[32] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    if (line->rank >= 0) snprintf(rank, sizeof rank, "[rank %d] ", (int)line->rank);
    int bytes =
        snprintf(line->whole, capacity, "expar %02d:%02d:%02d.%03d %s%-5s %s:%d ", local.tm_hour, local.tm_min,
                 local.tm_sec, (int)(now.tv_nsec / 1000000), rank, level_names[line->level], line->file, line->number);
    return (size_t)bytes < capacity ? (size_t)bytes : capacity - 1;
}

static void write_line(log_line *line, const char *format, va_list arguments)
{
    const size_t capacity = sizeof line->whole - 1;
    line->text_at = line_head(line, capacity);
    vsnprintf(line->whole + line->text_at, capacity - line->text_at, format, arguments);
    size_t used = strlen(line->whole);
    line_clean(line->whole, used);
    line->whole[used] = '\n';
    line->whole[used + 1] = '\0';
    line->bytes = used + 1;
    log_out(line);
}

void log_write(log_level level, const char *file, int number, const char *format, ...)
{
    int saved = errno;
    log_line line = {.level = level, .rank = current_rank(), .file = file, .number = number};
    va_list arguments;
    va_start(arguments, format);
    write_line(&line, format, arguments);
    va_end(arguments);
    errno = saved;
}

void log_write_as(int32_t rank, log_level level, const char *file, int number, const char *format, ...)
{
    int saved = errno;
    log_line line = {.level = level, .rank = rank >= 0 ? rank : current_rank(), .file = file, .number = number};
    va_list arguments;
    va_start(arguments, format);
    write_line(&line, format, arguments);
    va_end(arguments);
    errno = saved;
}
