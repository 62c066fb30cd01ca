/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's output, line by line. The launcher is the only writer of its stdout and stderr and writes whole lines, so
   lines of different ranks never mix. */
#include "job.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool job_lines_open(struct job_lines *lines, int source, int target, int rank)
{
    *lines = (struct job_lines){.source = source, .target = target};
    lines->buffer = malloc(JOB_LINE_BYTES);
    bool colour = isatty(target) && !getenv("NO_COLOR");
    if (colour)
        snprintf(lines->prefix, sizeof lines->prefix, "\033[%dm[%d]\033[0m ", 31 + rank % 6, rank);
    else
        snprintf(lines->prefix, sizeof lines->prefix, "[%d] ", rank);
    return lines->buffer != NULL;
}

static bool write_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(fd, bytes, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        bytes += written;
        count -= (size_t)written;
    }
    return true;
}

/* One line with its prefix and end, in one write where the kernel takes it. */
static bool write_line(const struct job_lines *lines, const char *line, size_t count)
{
    char text[sizeof lines->prefix + JOB_LINE_BYTES + 1];
    size_t prefix_bytes = strlen(lines->prefix);
    memcpy(text, lines->prefix, prefix_bytes);
    memcpy(text + prefix_bytes, line, count);
    text[prefix_bytes + count] = '\n';
    return write_all(lines->target, text, prefix_bytes + count + 1);
}

/* Writes the whole lines in the buffer and moves the rest to its start. A full buffer without a line end counts as a
 * line. */
static bool write_whole_lines(struct job_lines *lines)
{
    char *start = lines->buffer, *end = lines->buffer + lines->used;
    for (char *stop; (stop = memchr(start, '\n', (size_t)(end - start))); start = stop + 1)
        if (!write_line(lines, start, (size_t)(stop - start))) return false;
    if (start == lines->buffer && lines->used == JOB_LINE_BYTES) {
        if (!write_line(lines, start, lines->used)) return false;
        start = end;
    }
    lines->used = (size_t)(end - start);
    memmove(lines->buffer, start, lines->used);
    return true;
}

bool job_lines_forward(struct job_lines *lines)
{
    while (lines->source >= 0) {
        ssize_t count = read(lines->source, lines->buffer + lines->used, JOB_LINE_BYTES - lines->used);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return true;
        if (count <= 0) {
            close(lines->source);
            lines->source = -1;
            return true;
        }
        lines->used += (size_t)count;
        if (!write_whole_lines(lines)) return false;
    }
    return true;
}

void job_lines_close(struct job_lines *lines)
{
    if (!lines->buffer) return;
    bool writable = job_lines_forward(lines);
    if (writable && lines->used > 0) write_line(lines, lines->buffer, lines->used);
    if (lines->source >= 0) close(lines->source);
    free(lines->buffer);
    *lines = (struct job_lines){.source = -1};
}
