/* SPDX-License-Identifier: Apache-2.0 */
/* Output of the log's lines: to the caller's sink, else to a file or to stderr. */
#include "base/log.h"

#include <errno.h>
#include <expar/log.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* A FIFO takes all of a line or nothing (POSIX, write). */
_Static_assert(LOG_LINE_BYTES <= PIPE_BUF, "a line is one piece in a pipe");
_Static_assert((int)LOG_ERROR == EXPAR_LOG_ERROR && (int)LOG_TRACE == EXPAR_LOG_TRACE, "levels are the public ones");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER; /* signals that num_running has become 0 */
/* The sink, and how many threads are in it; guarded by the lock, which no thread holds while the sink runs. */
static expar_log_fn sink;
static void *sink_context;
static int num_running;
/* Whether there is a sink. So a process without a sink takes no lock, and a child may log right after its fork. Written
   under the lock, read by all threads that log. Relaxed, because the sink itself is read under the lock. */
static atomic_bool has_sink;
/* This thread is in the sink, so the sink does not get the lines that it logs now. */
static _Thread_local bool in_sink;

void expar_log_set(expar_log_fn fn, void *context)
{
    pthread_mutex_lock(&lock);
    sink = fn;
    sink_context = context;
    atomic_store_explicit(&has_sink, fn != NULL, memory_order_relaxed);
    /* Otherwise two sinks that each wait for the other's end would wait for ever. */
    while (num_running > 0 && !in_sink)
        pthread_cond_wait(&idle, &lock);
    pthread_mutex_unlock(&lock);
}

static void line_send(int fd, const log_line *line, ssize_t *written)
{
    do {
        *written = write(fd, line->whole, line->bytes);
    } while (*written < 0 && errno == EINTR);
}

/* Sends as line_send does, but a FIFO without a reader gives EPIPE and no signal: SIGPIPE would end the process. */
static void line_send_unsignalled(int fd, const log_line *line, ssize_t *written)
{
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    sigpending(&pending);
    line_send(fd, line, written);
    int number = errno;
    /* Takes only the signal that this write raised: an older one is the program's. */
    const struct timespec now = {0};
    if (*written < 0 && number == EPIPE && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR)
            continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = number;
}

void log_out_plainly(const log_line *line)
{
    ssize_t written = -1;
    int file = log_file_of(line->rank);
    if (file >= 0) {
        line_send_unsignalled(file, line, &written);
        if (written < 0) log_file_failed(line->rank);
    }
    if (written < 0) line_send(STDERR_FILENO, line, &written);
}

/* The sink gets a text of its own, without the newline. The thread's last error is that of the call that logs. */
static void call_sink(expar_log_fn fn, void *context, log_line *line)
{
    char place[256];
    error_kept kept;
    error_save(&kept);
    snprintf(place, sizeof place, "%s:%d", line->file, line->number);
    line->whole[line->bytes - 1] = '\0';
    in_sink = true;
    fn(context, (expar_log_level)line->level, line->rank, place, line->whole + line->text_at);
    in_sink = false;
    error_put_back(&kept);
}

void log_out(log_line *line)
{
    expar_log_fn fn = NULL;
    void *context = NULL;
    if (!in_sink && atomic_load_explicit(&has_sink, memory_order_relaxed)) {
        pthread_mutex_lock(&lock);
        fn = sink;
        context = sink_context;
        if (fn) num_running++;
        pthread_mutex_unlock(&lock);
    }
    if (!fn) {
        log_out_plainly(line);
        return;
    }
    call_sink(fn, context, line);
    pthread_mutex_lock(&lock);
    if (--num_running == 0) pthread_cond_broadcast(&idle);
    pthread_mutex_unlock(&lock);
}
