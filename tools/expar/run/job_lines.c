/* SPDX-License-Identifier: Apache-2.0 */
/* Forwarding a rank's output, line by line. The launcher is the only writer of its stdout and stderr and writes one
 * line after the other, so lines of different ranks never mix. It never waits in a write. A slow reader delays the
 * writes of the ranks, not the launcher. */
#include "colour.h"
#include "job.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

bool job_lines_open(struct job_lines *lines, int source, int target, int rank)
{
    *lines = (struct job_lines){.source = source, .target = target, .log = -1};
    lines->buffer = malloc(JOB_LINE_BYTES);
    if (rank < 0)
        lines->prefix[0] = 0;
    else if (colour_wanted(target))
        snprintf(lines->prefix, sizeof lines->prefix, "\033[%dm[%d]\033[0m ", 31 + rank % 6, rank);
    else
        snprintf(lines->prefix, sizeof lines->prefix, "[%d] ", rank);
    return lines->buffer != NULL;
}

/* ---- the line that is being written ------------------------------------------------------------------------------ */

bool job_output_open(struct job_output *output)
{
    *output = (struct job_output){.text = malloc(JOB_PREFIX_BYTES + JOB_LINE_BYTES + 1)};
    return output->text != NULL;
}

static bool is_writable(int fd)
{
    struct pollfd target = {.fd = fd, .events = POLLOUT};
    return poll(&target, 1, 0) > 0;
}

/* Writes in pieces. A piece is at most as large as a pipe accepts at once when poll reports it as writable. */
bool job_output_push(struct job_output *output)
{
    while (output->written < output->used && is_writable(output->target)) {
        size_t left = output->used - output->written;
        ssize_t count = write(output->target, output->text + output->written, left < PIPE_BUF ? left : PIPE_BUF);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return false;
        output->written += (size_t)count;
    }
    if (output->written == output->used) output->written = output->used = 0;
    return true;
}

/* Adds a line to the rank's log file. A file that cannot be written gets nothing more, and a message says so. */
static void log_line(struct job_lines *lines, const char *line, size_t count)
{
    struct iovec parts[] = {{.iov_base = (void *)(uintptr_t)line, .iov_len = count}, {.iov_base = "\n", .iov_len = 1}};
    if (lines->log < 0) return;
    const ssize_t written = writev(lines->log, parts, 2);
    if (written == (ssize_t)count + 1) return;
    job_say("expar run: %scannot write its log file: %s; the rest of its output is not in it\n", lines->prefix,
            written < 0 ? strerror(errno) : "it is full");
    lines->log = -1;
}

/* Makes a line of `count` bytes, with its prefix and end, the next output. */
static void compose(const struct job_lines *lines, const char *line, size_t count, struct job_output *output)
{
    size_t prefix_bytes = strlen(lines->prefix);
    output->target = lines->target;
    memcpy(output->text, lines->prefix, prefix_bytes);
    memcpy(output->text + prefix_bytes, line, count);
    output->text[prefix_bytes + count] = '\n';
    output->used = prefix_bytes + count + 1;
}

void job_say(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t count = length < 0 ? 0 : (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    if (is_writable(STDERR_FILENO) && write(STDERR_FILENO, text, count) < 0) return;
}

/* ---- a rank's lines ---------------------------------------------------------------------------------------------- */

/* Finds the next line in the buffer. A full buffer without an end counts as one, and so does the rest at the source's
   end. *bytes excludes the line's end; *taken includes it. */
static bool next_line(const struct job_lines *lines, size_t *bytes, size_t *taken)
{
    const char *start = lines->buffer + lines->begun;
    size_t held = lines->used - lines->begun;
    const char *stop = memchr(start, '\n', held);
    *bytes = stop ? (size_t)(stop - start) : held;
    *taken = stop ? *bytes + 1 : held;
    return stop || held == JOB_LINE_BYTES || (lines->source < 0 && held > 0);
}

/* Passes lines on for as long as they are taken. */
static bool hand_over(struct job_lines *lines, struct job_output *output)
{
    size_t bytes, taken;
    while (output->used == 0 && next_line(lines, &bytes, &taken)) {
        log_line(lines, lines->buffer + lines->begun, bytes);
        compose(lines, lines->buffer + lines->begun, bytes, output);
        lines->begun += taken;
        if (!job_output_push(output)) return false;
    }
    return true;
}

/* Reads available data, as much as fits. `last`: no more data will come than is there now. */
static void fill(struct job_lines *lines, bool last)
{
    lines->used -= lines->begun;
    memmove(lines->buffer, lines->buffer + lines->begun, lines->used);
    lines->begun = 0;
    ssize_t count;
    do {
        count = read(lines->source, lines->buffer + lines->used, JOB_LINE_BYTES - lines->used);
    } while (count < 0 && errno == EINTR);
    if (count > 0) lines->used += (size_t)count;
    if (count > 0 || (count < 0 && errno == EAGAIN && !last)) return;
    close(lines->source);
    lines->source = -1;
}

bool job_lines_forward(struct job_lines *lines, struct job_output *output, bool last)
{
    if (!hand_over(lines, output)) return false;
    if (output->used > 0 || lines->source < 0) return true;
    fill(lines, last);
    return hand_over(lines, output);
}

bool job_lines_left(const struct job_lines *lines)
{
    return lines->buffer && (lines->source >= 0 || lines->begun < lines->used);
}

void job_lines_close(struct job_lines *lines)
{
    if (!lines->buffer) return;
    if (lines->source >= 0) close(lines->source);
    free(lines->buffer);
    *lines = (struct job_lines){.source = -1, .log = -1};
}
