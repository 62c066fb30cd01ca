/* SPDX-License-Identifier: Apache-2.0 */
/* The rank's side of process.h. The process is a child of the rank: it is awaited when it has ended, so no zombie
 * stays. */
#include "net/gda/nic/orders.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEP_NS INT64_C(200000) /* between two looks at whether the process has ended */

enum { CHILD_SOCKET = 3, WHY_BYTES = 160, START_MS = 60000 /* for the first answer */ };

struct nic_process {
    int socket;
    pid_t pid, owner;
    int64_t late_ms;
    /* Held while an order has no answer yet, and by the thread that awaits the end of the process. */
    pthread_mutex_t lock;
    /* Set with the lock held, once the process was awaited, after `why`; it is read (acquire) without the lock, too. */
    _Atomic bool gone;
    char why[WHY_BYTES];
};

/* ---- start ------------------------------------------------------------------------------------------------------- */

/* The program gets one end of the socket, and writes errors to the rank's standard error. It has a process group of its
   own, so a Ctrl-C at a terminal is for the ranks alone. */
static int nic_spawn(const char *program, int socket, pid_t *pid)
{
    char number[16], parent[16];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    snprintf(number, sizeof number, "%d", CHILD_SOCKET);
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    char *const arguments[] = {(char *)(uintptr_t) "gda-nic", number, parent, NULL};
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    int error = posix_spawn_file_actions_adddup2(&files, socket, CHILD_SOCKET);
    if (!error) error = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDWR, 0);
    if (!error) error = posix_spawn_file_actions_adddup2(&files, STDIN_FILENO, STDOUT_FILENO);
    if (!error) error = posix_spawnattr_setsigmask(&attributes, &none);
    if (!error) error = posix_spawnattr_setsigdefault(&attributes, &all);
    if (!error) error = posix_spawnattr_setpgroup(&attributes, 0);
    const short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP;
    if (!error) error = posix_spawnattr_setflags(&attributes, flags);
    if (!error) error = posix_spawn(pid, program, &files, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

static expar_status start_program(const nic_process_plan *plan, nic_process *p)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return error_errno("software NIC: no socket for its process");
    errno = nic_spawn(plan->program, ends[1], &p->pid);
    expar_status status = EXPAR_OK;
    if (errno) status = error_errno("software NIC: its program %s cannot be started", plan->program);
    close(ends[1]);
    p->socket = ends[0];
    return status;
}

/* ---- the end of the process -------------------------------------------------------------------------------------- */

static void say_why(nic_process *p, int result, int state)
{
    if (result > 0 && WIFSIGNALED(state))
        snprintf(p->why, sizeof p->why, "was ended by signal %d (%s)", WTERMSIG(state), strsignal(WTERMSIG(state)));
    else if (result > 0)
        snprintf(p->why, sizeof p->why, "ended with status %d", WEXITSTATUS(state));
    else
        snprintf(p->why, sizeof p->why, "has ended");
}

/* Waits until the process has ended; after late_ms it is killed. By the holder of the lock. */
static void await_end(nic_process *p)
{
    const int64_t end_ns = clock_ns() + p->late_ms * 1000000;
    int state = 0, result;
    bool killed = false;
    if (atomic_load_explicit(&p->gone, memory_order_relaxed)) return;
    /* An error means that another thread of the program has awaited all children. */
    while ((result = waitpid(p->pid, &state, WNOHANG)) == 0 || (result < 0 && errno == EINTR)) {
        if (!killed && clock_ns() > end_ns) killed = kill(p->pid, SIGKILL) == 0;
        nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
    }
    if (!p->why[0]) say_why(p, result, state);
    atomic_store_explicit(&p->gone, true, memory_order_release);
}

static expar_status gone_error(const nic_process *p)
{
    return error_set(EXPAR_ERR_PEER, "software NIC: its process %d %s", (int)p->pid, p->why);
}

/* The process owes an answer: it is stopped, or hangs. It is killed, so that it touches no memory later. */
static expar_status process_give_up(nic_process *p)
{
    snprintf(p->why, sizeof p->why, "gave no answer for %lld ms, and was killed", (long long)p->late_ms);
    kill(p->pid, SIGKILL);
    await_end(p);
    return gone_error(p);
}

expar_status nic_process_check(nic_process *p)
{
    struct pollfd polled = {.fd = p->socket};
    if (atomic_load_explicit(&p->gone, memory_order_acquire)) return gone_error(p);
    if (poll(&polled, 1, 0) <= 0 || !(polled.revents & POLLHUP)) return EXPAR_OK;
    pthread_mutex_lock(&p->lock);
    await_end(p);
    pthread_mutex_unlock(&p->lock);
    return gone_error(p);
}

int nic_process_id(const nic_process *p)
{
    return p->pid;
}

/* A child that the rank has forked may hold the socket, so it is shut down and not only closed. Such a child has no NIC
   of its own to end. */
void nic_process_end(nic_process *p)
{
    if (p->pid > 0 && p->owner == getpid()) {
        shutdown(p->socket, SHUT_RDWR);
        await_end(p);
    }
    if (p->socket >= 0) close(p->socket);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

/* Returns 1 if there is an answer, or the connection has ended; 0: it is late. */
static int await_answer(const nic_process *p)
{
    const int64_t end_ns = clock_ns() + p->late_ms * 1000000;
    for (;;) {
        struct pollfd polled = {.fd = p->socket, .events = POLLIN};
        const int64_t left_ms = (end_ns - clock_ns()) / 1000000 + 1;
        if (left_ms <= 0) return 0;
        if (poll(&polled, 1, (int)(left_ms < 1000 ? left_ms : 1000)) > 0) return 1;
    }
}

static expar_status order_now(nic_process *p, const nic_order *order, int fd, nic_answer *answer)
{
    int unused;
    if (atomic_load_explicit(&p->gone, memory_order_relaxed)) return gone_error(p);
    if (nic_letter_send(p->socket, order, sizeof *order, fd)) {
        if (!await_answer(p)) return process_give_up(p);
        if (nic_letter_receive(p->socket, answer, sizeof *answer, &unused) == (ssize_t)sizeof *answer) return EXPAR_OK;
    }
    await_end(p);
    return gone_error(p);
}

/* Gives the order, and waits for its answer. */
static expar_status give_order(nic_process *p, const nic_order *order, int fd, nic_answer *answer)
{
    pthread_mutex_lock(&p->lock);
    expar_status status = order_now(p, order, fd, answer);
    pthread_mutex_unlock(&p->lock);
    return status == EXPAR_OK && answer->status != EXPAR_OK ? error_set(answer->status, "%s", answer->text) : status;
}

expar_status nic_process_start(const nic_process_plan *plan, nic_process **out)
{
    nic_answer answer;
    const nic_order order = {.kind = ORDER_START, .faults = plan->faults, .spin_ns = plan->spin_ns};
    nic_process *p = calloc(1, sizeof *p);
    if (!p) return error_set(EXPAR_ERR_MEMORY, "software NIC: no memory for its process");
    *p = (nic_process){.socket = -1, .owner = getpid(), .late_ms = START_MS};
    pthread_mutex_init(&p->lock, NULL);
    expar_status status = start_program(plan, p);
    if (status == EXPAR_OK) status = give_order(p, &order, -1, &answer);
    p->late_ms = plan->late_ms;
    if (status != EXPAR_OK) {
        nic_process_end(p);
        return status == EXPAR_ERR_PEER ? error_prefix(EXPAR_ERR_SYSTEM, "%s", plan->program) : status;
    }
    *out = p;
    return EXPAR_OK;
}

expar_status nic_pass_region(nic_process *p, int fd, uint64_t bytes, uint32_t *region)
{
    nic_answer answer;
    const nic_order order = {.kind = ORDER_REGION, .bytes = bytes};
    expar_status status = give_order(p, &order, fd, &answer);
    if (status == EXPAR_OK) *region = answer.region;
    return status;
}

expar_status nic_pass_memory(nic_process *p, const nic_memory *memory, uint32_t region, uint64_t offset)
{
    nic_answer answer;
    const nic_order order = {.kind = ORDER_MEMORY, .memory = *memory, .region = region, .offset = offset};
    return give_order(p, &order, -1, &answer);
}

expar_status nic_pass_memory_removal(nic_process *p, uint32_t port, uint32_t key)
{
    nic_answer answer;
    const nic_order order = {.kind = ORDER_MEMORY_REMOVAL, .memory = {.port = port, .key = key}};
    return give_order(p, &order, -1, &answer);
}

expar_status nic_pass_queue(nic_process *p, const nic_queue *queue, uint32_t region, const nic_places *places)
{
    nic_answer answer;
    const nic_order order = {.kind = ORDER_QUEUE, .queue = *queue, .region = region, .places = *places};
    return give_order(p, &order, -1, &answer);
}

expar_status nic_pass_queue_removal(nic_process *p, uint32_t port, uint32_t qpn)
{
    nic_answer answer;
    const nic_order order = {.kind = ORDER_QUEUE_REMOVAL, .queue = {.port = port, .qpn = qpn}};
    return give_order(p, &order, -1, &answer);
}

expar_status nic_pass_count(nic_process *p, nic_counts *counts)
{
    nic_answer answer;
    const nic_order order = {.kind = ORDER_COUNT};
    expar_status status = give_order(p, &order, -1, &answer);
    if (status == EXPAR_OK) *counts = answer.counts;
    return status;
}
