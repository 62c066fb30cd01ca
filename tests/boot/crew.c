/* SPDX-License-Identifier: Apache-2.0 */
/* crew: forks the ranks of a group and collects how each one ended. */
#include "boot/crew.h"
#include "boot/unit.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { QUIET_LOOKS = 3 }; /* in a row */
#define CREW_LIMIT_NS ((int64_t)60 * 1000 * 1000 * 1000)

static void child_main(int32_t rank, crew_body body, void *context, int pipe_fd)
{
    outcome mine = {.reported = true};
    log_set_rank(rank);
    mine.status = body(rank, context);
    mine.end_ns = clock_ns();
    if (mine.status != EXPAR_OK) snprintf(mine.text, sizeof mine.text, "%s", expar_last_error());
    if (write(pipe_fd, &mine, sizeof mine) != sizeof mine) _exit(1);
    /* Not exit: the leak checker would wait for locks that a thread of the parent held when this process was forked. */
    fflush(NULL);
    _exit(0);
}

static char thread_state(const char *tid)
{
    char path[300], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file) return 'X'; /* it has ended */
    size_t count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[count] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' ? name_end[2] : 'R';
}

static bool others_sleep(void)
{
    bool sleep = true;
    pid_t self = gettid();
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;) {
        if (task->d_name[0] == '.' || atoi(task->d_name) == self) continue;
        sleep &= strchr("SXZ", thread_state(task->d_name)) != NULL;
    }
    closedir(tasks);
    return sleep;
}

/* The child of a fork has the locks as they were, and no thread to open them. That includes those of a sanitizer's
   allocator, which a rendezvous takes at its start and its end. It sleeps in poll once it has nothing to do, and only
   ranks give it work. */
static void await_quiet_threads(void)
{
    int64_t deadline_ns = clock_ns() + CREW_LIMIT_NS;
    for (int quiet = 0; quiet < QUIET_LOOKS; quiet = others_sleep() ? quiet + 1 : 0) {
        assert_true(clock_ns() < deadline_ns);
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

/* Ranks run only once all are forked: a fork beside a busy thread of this process is what sanitizers do not bear. */
static void await_gate(const int gate[2])
{
    char byte;
    close(gate[1]);
    if (read(gate[0], &byte, 1) != 0) _exit(1);
    close(gate[0]);
}

static void add(crew *self, crew_body body, void *context, const int gate[2])
{
    int ends[2];
    int32_t rank = self->size++;
    assert_true(rank < CREW_MAX);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(ends[0]);
        await_gate(gate);
        child_main(rank, body, context, ends[1]);
    }
    close(ends[1]);
    self->pids[rank] = pid;
    self->pipes[rank] = ends[0];
}

void crew_start(crew *self, int32_t size, crew_body body, void *context)
{
    int gate[2];
    *self = (crew){0};
    await_quiet_threads();
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    while (self->size < size)
        add(self, body, context, gate);
    close(gate[0]);
    close(gate[1]);
}

/* The pipe ends with the process at the latest. */
static void collect(crew *self, int32_t rank, int64_t deadline_ns)
{
    outcome *one = &self->outcomes[rank];
    struct pollfd entry = {.fd = self->pipes[rank], .events = POLLIN};
    int64_t left_ms = (deadline_ns - clock_ns()) / 1000000;
    bool in_time = poll(&entry, 1, left_ms > 0 ? (int)left_ms : 0) > 0;
    if (!in_time) kill(self->pids[rank], SIGKILL);
    if (read(self->pipes[rank], one, sizeof *one) != sizeof *one) *one = (outcome){0};
    close(self->pipes[rank]);
    assert_int_equal(waitpid(self->pids[rank], &one->wait_status, 0), self->pids[rank]);
    if (!in_time) snprintf(one->text, sizeof one->text, "hung");
}

void crew_finish(crew *self)
{
    int64_t deadline_ns = clock_ns() + CREW_LIMIT_NS;
    for (int32_t rank = 0; rank < self->size; rank++)
        collect(self, rank, deadline_ns);
    for (int32_t rank = 0; rank < self->size; rank++)
        assert_string_not_equal(self->outcomes[rank].text, "hung");
}

void crew_assert_ok(const crew *self)
{
    for (int32_t rank = 0; rank < self->size; rank++) {
        const outcome *one = &self->outcomes[rank];
        if (!one->reported || one->status != EXPAR_OK || one->wait_status != 0)
            fail_msg("rank %d: %s, wait status %d: %s", rank, expar_status_string(one->status), one->wait_status,
                     one->text);
    }
}

void crew_run_ok(int32_t size, crew_body body, void *context)
{
    crew self;
    crew_start(&self, size, body, context);
    crew_finish(&self);
    crew_assert_ok(&self);
}

static void print_outcomes(const crew *self)
{
    for (int32_t rank = 0; rank < self->size; rank++) {
        const outcome *one = &self->outcomes[rank];
        print_message("  rank %d: %s, reported %d, wait status %d: %s\n", rank, expar_status_string(one->status),
                      one->reported, one->wait_status, one->text);
    }
}

void crew_assert_error(const crew *self, int32_t rank, expar_status status, const char *part)
{
    const outcome *one = &self->outcomes[rank];
    if (one->reported && one->status == status && strstr(one->text, part)) return;
    print_outcomes(self);
    fail_msg("rank %d: expected %s with \"%s\"", rank, expar_status_string(status), part);
}

boot_request crew_request(const expar_unique_id *id, int32_t rank, int32_t size)
{
    boot_request request = {.rank = rank, .size = size, .timeout_ms = 20000, .heap_bytes = 1 << 20};
    if (id) {
        request.id = *id;
        request.have_id = true;
    }
    return request;
}
