/* SPDX-License-Identifier: Apache-2.0 */
/* The files that EXPAR_LOG_FILE names: one for each process, or one for each rank if the name has %r. */
#include "base/log.h"
#include "base/shown.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Never closed: lines may come until the process ends. */
typedef struct log_file {
    int32_t rank; /* -1: for lines without a rank, or for all lines if the name has no %r */
    pid_t pid;    /* process that opened it: if the name has %p, a forked child opens a file of its own */
    int fd;       /* -1: it could not be opened, which has been reported */
    bool failed;  /* it could not be written, which has been reported */
    struct log_file *next;
} log_file;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static log_file *files; /* guarded by the lock */
static char *pattern;   /* EXPAR_LOG_FILE at the first look; written once, before is_read */
/* 0: not read yet; 1: no file is asked for; 2: pattern is set. Written under the lock (release), read by all threads
   that log (acquire). So a process without a file takes no lock, and a child may log right after its fork. */
static atomic_int is_read;

/* Reports trouble with the file on stderr: this line has nowhere else to go. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char text[PATH_MAX + 256];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t length = (size_t)bytes < sizeof text ? (size_t)bytes : sizeof text - 1;
    while (write(STDERR_FILENO, text, length) < 0 && errno == EINTR)
        continue;
}

/* With the lock held. */
static bool pattern_read(void)
{
    if (atomic_load_explicit(&is_read, memory_order_relaxed) == 0) {
        const char *text = env_string("EXPAR_LOG_FILE");
        pattern = text ? strdup(text) : NULL;
        atomic_store_explicit(&is_read, pattern ? 2 : 1, memory_order_release);
    }
    return pattern != NULL;
}

/* Returns whether the name has %r or %p; the letter after %% does not count. */
static bool pattern_has(char letter)
{
    for (const char *at = pattern; (at = strchr(at, '%')) && at[1]; at += 2)
        if (at[1] == letter) return true;
    return false;
}

/* Makes the name of the file of `rank`; false: another letter follows a %, or the name is too long. */
static bool pattern_expand(int32_t rank, char path[PATH_MAX])
{
    size_t used = 0;
    for (const char *at = pattern; *at; at++) {
        char piece[32] = {*at};
        if (*at == '%') {
            at++;
            if (*at == 'r')
                snprintf(piece, sizeof piece, rank < 0 ? "none" : "%d", (int)rank);
            else if (*at == 'p')
                snprintf(piece, sizeof piece, "%d", (int)getpid());
            else if (*at != '%')
                return false;
        }
        size_t bytes = strlen(piece);
        if (used + bytes >= PATH_MAX) return false;
        memcpy(path + used, piece, bytes);
        used += bytes;
    }
    path[used] = '\0';
    return true;
}

static bool is_fifo(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISFIFO(facts.st_mode);
}

static int open_file(int32_t rank)
{
    char path[PATH_MAX];
    if (!pattern_expand(rank, path)) {
        say("expar: EXPAR_LOG_FILE=%s: expected a path with %%r (rank), %%p (process) or %%%%; lines go to stderr\n",
            SHOWN(pattern));
        return -1;
    }
    /* A line must never block a rank. Without O_NONBLOCK a FIFO waits for its reader, here and whenever it is full. */
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (fd < 0)
        say("expar: EXPAR_LOG_FILE: cannot open %s: %s; lines go to stderr\n", SHOWN(path),
            errno == ENXIO && is_fifo(path) ? "nobody reads this FIFO" : strerror(errno));
    return fd;
}

/* With the lock held. NULL: no memory. */
static log_file *file_of(int32_t rank)
{
    int32_t own = pattern_has('r') ? rank : -1;
    pid_t pid = pattern_has('p') ? getpid() : 0;
    log_file *file = files;
    while (file && (file->rank != own || file->pid != pid))
        file = file->next;
    if (file) return file;
    file = calloc(1, sizeof *file);
    if (!file) return NULL;
    *file = (log_file){.rank = own, .pid = pid, .fd = open_file(own), .next = files};
    files = file;
    return file;
}

int log_file_of(int32_t rank)
{
    if (atomic_load_explicit(&is_read, memory_order_acquire) == 1) return -1;
    pthread_mutex_lock(&lock);
    log_file *file = pattern_read() ? file_of(rank) : NULL;
    int fd = file ? file->fd : -1;
    pthread_mutex_unlock(&lock);
    return fd;
}

static const char *write_trouble(int number)
{
    if (number == EAGAIN) return "its reader is too slow, and the lines that do not fit go to stderr";
    if (number == EPIPE) return "its reader is gone, and lines go to stderr";
    return strerror(number);
}

void log_file_failed(int32_t rank)
{
    int number = errno;
    pthread_mutex_lock(&lock);
    log_file *file = file_of(rank);
    if (file && !file->failed)
        say("expar: EXPAR_LOG_FILE=%s: cannot write: %s\n", SHOWN(pattern), write_trouble(number));
    if (file) file->failed = true;
    pthread_mutex_unlock(&lock);
}
