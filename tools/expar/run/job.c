/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a job from its first process to its last, in one thread with one poll loop over signals and the ranks'
 * output. */
#include "job.h"
#include "hosts.h"
#include <errno.h>
#include <expar/group.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The time between SIGTERM and SIGKILL, and the time limit for reading output once the job must end. */
#define GRACE_NS INT64_C(3000000000)
#define NEVER_NS INT64_MAX
/* How long the launcher waits for the rank that made the others fail, after one of those has exited. */
#define CULPRIT_NS INT64_C(5000000000)

/* The exit code of ssh for its own errors. */
#define SSH_FAILED 255

/* A rank that has failed, or the agent of a host. */
struct job_failure {
    int rank; /* -1: none */
    pid_t pid;
    int status;   /* of waitpid */
    bool because; /* its calls failed because of another rank */
};

struct job_state {
    const struct job *job;
    struct job_child *children; /* [num_ranks] */
    struct job_flags flags;
    /* The failure that counts as the first, so far. It is final once `failed` is set. */
    struct job_failure first;
    int64_t culprit_ns;    /* the deadline at which it becomes final */
    struct pollfd *polled; /* [2 + 2·num_ranks] */
    bool lifeline;         /* standard input is watched: its end ends the job */
    struct job_output output;
    int num_alive;
    int exit_code; /* of the first failure */
    bool failed, ending;
    int64_t limit_ns; /* the end of the time limit */
    int64_t kill_ns;  /* the deadline at which ranks that were asked to end are killed */
    /* The deadline at which output that nobody reads is dropped. There is none until the job must end. */
    int64_t drop_ns;
    int signal_fd;
    sigset_t old_mask;
    struct sigaction old_pipe;
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(struct job_state *state, int exit_code)
{
    if (!state->failed) state->exit_code = exit_code;
    state->failed = true;
}

static void signal_all(struct job_state *state, int signal_number)
{
    for (int rank = 0; rank < state->job->num_ranks; rank++)
        job_signal(&state->children[rank], signal_number);
}

/* Call this when the user, or the time limit, ends the job. */
static void hurry(struct job_state *state)
{
    if (state->drop_ns == NEVER_NS) state->drop_ns = now_ns() + GRACE_NS;
}

/* Asks all ranks to end. Those that have not ended after the grace period are killed. */
static void begin_end(struct job_state *state, int signal_number)
{
    signal_all(state, signal_number);
    signal_all(state, SIGCONT); /* a stopped process receives its signal only when it continues */
    /* An agent needs the same time for its ranks. */
    if (!state->ending) state->kill_ns = now_ns() + (state->job->hosts ? 2 : 1) * GRACE_NS;
    state->ending = true;
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

static int exit_code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The agent of a host has named the rank that failed. Only what ssh says itself is left. */
static void report_host(const struct job_state *state, const struct job_failure *failure)
{
    const char *name = state->job->hosts->list[failure->rank].name;
    if (WIFSIGNALED(failure->status))
        job_say("%s: host %s: ssh was killed by signal %d\n", state->job->who, name, WTERMSIG(failure->status));
    else if (WEXITSTATUS(failure->status) == SSH_FAILED)
        job_say("%s: host %s: ssh ended with code %d: no connection, or it broke; ending the others\n", state->job->who,
                name, SSH_FAILED);
}

static void report_failure(const struct job_state *state, const struct job_failure *failure)
{
    if (state->job->hosts) {
        report_host(state, failure);
        return;
    }
    char what[96];
    const int status = failure->status;
    if (WIFSIGNALED(status))
        snprintf(what, sizeof what, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(what, sizeof what, "exited with code %d", WEXITSTATUS(status));
    const char *next = state->num_alive == 0    ? ""
                       : state->job->keep_going ? "; the others go on"
                                                : "; ending the others";
    job_say("%s: rank %d (pid %d) %s%s%s\n", state->job->who, state->job->first_rank + failure->rank, (int)failure->pid,
            what, failure->because ? " after an error that another rank caused" : "", next);
}

static int rank_of(const struct job_state *state, pid_t pid)
{
    for (int rank = 0; rank < state->job->num_ranks; rank++)
        if (state->children[rank].pid == pid) return rank;
    return -1;
}

/* Finds a process that has ended. It is not reaped yet, so that its pid and group cannot be reused. */
static bool next_dead(pid_t *pid)
{
    siginfo_t info = {0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return false;
    *pid = info.si_pid;
    return info.si_pid != 0;
}

/* Makes the first failure final: the exit code is known, and the others are ended. */
static void settle(struct job_state *state)
{
    state->culprit_ns = NEVER_NS;
    if (state->first.rank < 0 || state->failed) return;
    fail(state, exit_code_of(state->first.status));
    if (state->job->keep_going || state->ending) return;
    report_failure(state, &state->first);
    begin_end(state, SIGTERM);
}

/* Chooses between two failures. One without a flag comes first. Otherwise a death by a signal does, because errors of
   other ranks are most likely its consequence. */
static bool is_before(const struct job_failure *failure, const struct job_failure *other)
{
    if (other->rank < 0 || failure->because != other->because) return other->rank < 0 || other->because;
    return WIFSIGNALED(failure->status) && !WIFSIGNALED(other->status);
}

static void weigh_failure(struct job_state *state, const struct job_failure *failure)
{
    if (state->job->keep_going && !state->ending) report_failure(state, failure);
    if (state->failed) return;
    if (state->first.rank < 0 && !state->job->keep_going) state->culprit_ns = now_ns() + CULPRIT_NS;
    if (is_before(failure, &state->first)) state->first = *failure;
}

/* Reaps all processes that have ended. If a rank failed because of another rank, the other may still be exiting. The
   launcher then waits for it before it ends the ranks, so that it can report its end. */
static void reap(struct job_state *state)
{
    pid_t pid;
    while (next_dead(&pid)) {
        int rank = rank_of(state, pid), status = 0;
        if (rank >= 0 && state->children[rank].own_group) kill(-pid, SIGKILL); /* processes that it left running */
        waitpid(pid, &status, 0);
        if (rank < 0) continue;
        state->children[rank].pid = 0;
        state->num_alive--;
        if (status != 0)
            weigh_failure(state, &(struct job_failure){rank, pid, status,
                                                       job_flags_read(&state->flags, state->job->first_rank + rank)});
    }
    /* An agent does not know the ranks of other hosts. It waits until the launcher has heard of the first. */
    if (!state->first.because || (state->num_alive == 0 && !state->lifeline)) settle(state);
}

/* ---- signals, output, time --------------------------------------------------------------------------------------- */

/* Forwards a signal to the ranks. Ctrl-C at a terminal has already reached those that share the launcher's process
   group. */
static void forward_signal(struct job_state *state, const struct signalfd_siginfo *info)
{
    bool from_terminal = info->ssi_code == SI_KERNEL;
    int number = (int)info->ssi_signo;
    const bool again = state->ending;
    settle(state);
    fail(state, 128 + number);
    if (state->drop_ns != NEVER_NS) state->drop_ns = 0; /* asked twice */
    hurry(state);
    if (again) signal_all(state, SIGKILL);
    if (state->ending) return;
    job_say("%s: got signal %d (%s); ending the ranks\n", state->job->who, number, strsignal(number));
    for (int rank = 0; rank < state->job->num_ranks; rank++)
        if (state->children[rank].own_group || !from_terminal) job_signal(&state->children[rank], number);
    begin_end(state, SIGCONT);
}

static void read_signals(struct job_state *state)
{
    struct signalfd_siginfo info;
    while (read(state->signal_fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD) forward_signal(state, &info);
    reap(state);
}

/* Ends the job when standard input has ended: ssh, or the launcher, has gone or wants that. */
static void watch_lifeline(struct job_state *state)
{
    char unused[64];
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (!state->lifeline || poll(&input, 1, 0) <= 0 || read(STDIN_FILENO, unused, sizeof unused) > 0) return;
    state->lifeline = false;
    if (state->first.rank < 0) fail(state, 128 + SIGTERM);
    settle(state);
    hurry(state);
    if (!state->ending) begin_end(state, SIGTERM);
}

static void check_times(struct job_state *state)
{
    int64_t now = now_ns();
    if (now >= state->culprit_ns) settle(state);
    if (now >= state->limit_ns) {
        state->limit_ns = NEVER_NS;
        job_say("%s: the time limit of %g s is over; ending the ranks\n", state->job->who, state->job->timeout_s);
        settle(state);
        fail(state, JOB_EXIT_TIMEOUT);
        hurry(state);
        if (!state->ending) begin_end(state, SIGTERM);
    }
    if (now >= state->kill_ns) {
        signal_all(state, SIGKILL);
        state->kill_ns = NEVER_NS;
    }
}

static int poll_timeout_ms(const struct job_state *state)
{
    int64_t next = state->kill_ns;
    if (state->limit_ns < next) next = state->limit_ns;
    if (state->drop_ns < next) next = state->drop_ns;
    if (state->culprit_ns < next) next = state->culprit_ns;
    if (next == NEVER_NS) return -1;
    int64_t left_ms = (next - now_ns()) / 1000000 + 1;
    return left_ms < 0 ? 0 : left_ms > 1000000 ? 1000000 : (int)left_ms;
}

static struct job_lines *stream_of(const struct job_state *state, int number)
{
    return &state->children[number / 2].streams[number % 2];
}

/* Collects the descriptors to poll: signals, and the target of the line that is being written. Without such a line, all
   sources of output are polled. */
static nfds_t collect_polled(struct job_state *state)
{
    nfds_t count = 0;
    state->polled[count++] = (struct pollfd){.fd = state->signal_fd, .events = POLLIN};
    state->polled[count++] = (struct pollfd){.fd = state->lifeline ? STDIN_FILENO : -1, .events = POLLIN};
    if (state->output.used > 0) {
        state->polled[count++] = (struct pollfd){.fd = state->output.target, .events = POLLOUT};
        return count;
    }
    for (int i = 0; i < 2 * state->job->num_ranks; i++)
        if (stream_of(state, i)->buffer && stream_of(state, i)->source >= 0)
            state->polled[count++] = (struct pollfd){.fd = stream_of(state, i)->source, .events = POLLIN};
    return count;
}

/* Forwards output of each stream once. So signals and deadlines are checked however much the ranks write. */
static bool forward_output(struct job_state *state)
{
    const bool last = state->num_alive == 0;
    bool good = job_output_push(&state->output);
    for (int i = 0; i < 2 * state->job->num_ranks && good; i++)
        if (stream_of(state, i)->buffer) good = job_lines_forward(stream_of(state, i), &state->output, last);
    return good;
}

/* Drops the ranks' output from now on. */
static void lose_output(struct job_state *state)
{
    if (!state->ending) job_say("%s: cannot write the output; ending the ranks\n", state->job->who);
    state->output.used = state->output.written = 0;
    for (int i = 0; i < 2 * state->job->num_ranks; i++)
        if (stream_of(state, i)->target == state->output.target) job_lines_close(stream_of(state, i));
    settle(state);
    fail(state, 128 + SIGPIPE);
    if (!state->ending) begin_end(state, SIGTERM);
}

static bool output_left(const struct job_state *state)
{
    bool left = state->output.used > 0;
    for (int i = 0; i < 2 * state->job->num_ranks && !left; i++)
        left = job_lines_left(stream_of(state, i));
    return left;
}

/* True while an agent without ranks waits for word of a rank on another host. */
static bool awaits_culprit(const struct job_state *state)
{
    return state->lifeline && state->culprit_ns != NEVER_NS && !state->failed;
}

static void supervise(struct job_state *state)
{
    while (state->num_alive > 0 || awaits_culprit(state) || (output_left(state) && now_ns() < state->drop_ns)) {
        /* Output of dead ranks can be read at once, unless its target is blocked. */
        int wait_ms =
            state->num_alive > 0 || awaits_culprit(state) || state->output.used > 0 ? poll_timeout_ms(state) : 0;
        if (poll(state->polled, collect_polled(state), wait_ms) >= 0) {
            if (!forward_output(state)) lose_output(state);
            watch_lifeline(state);
            read_signals(state);
        }
        check_times(state);
    }
    if (output_left(state)) job_say("%s: nobody reads the output; the rest is lost\n", state->job->who);
}

/* ---- start and end ----------------------------------------------------------------------------------------------- */

static bool signals_open(struct job_state *state)
{
    sigset_t mask;
    sigemptyset(&mask);
    static const int numbers[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&mask, numbers[i]);
    sigprocmask(SIG_BLOCK, &mask, &state->old_mask);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, &state->old_pipe);
    state->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return state->signal_fd >= 0;
}

static bool state_open(struct job_state *state, const struct job *job)
{
    size_t num_ranks = (size_t)job->num_ranks;
    *state = (struct job_state){.job = job, .limit_ns = NEVER_NS, .kill_ns = NEVER_NS, .drop_ns = NEVER_NS};
    state->culprit_ns = NEVER_NS;
    state->first.rank = -1;
    state->lifeline = job->lifeline;
    job_flags_open(&state->flags, job->job_size ? job->job_size : job->num_ranks);
    if (job->timeout_s > 0) state->limit_ns = now_ns() + (int64_t)(job->timeout_s * 1e9);
    bool signals = signals_open(state);
    state->children = calloc(num_ranks, sizeof *state->children);
    state->polled = calloc(2 + 2 * num_ranks, sizeof *state->polled);
    for (size_t i = 0; i < num_ranks && state->children; i++)
        state->children[i].lifeline = state->children[i].log = -1;
    return job_output_open(&state->output) && signals && state->children && state->polled;
}

static void state_close(struct job_state *state)
{
    for (int i = 0; state->children && i < 2 * state->job->num_ranks; i++)
        job_lines_close(stream_of(state, i));
    for (int rank = 0; state->children && rank < state->job->num_ranks; rank++)
        job_child_close(&state->children[rank]);
    free(state->output.text);
    free(state->polled);
    free(state->children);
    job_flags_close(&state->flags);
    if (state->signal_fd >= 0) close(state->signal_fd);
    sigaction(SIGPIPE, &state->old_pipe, NULL);
    sigprocmask(SIG_SETMASK, &state->old_mask, NULL);
}

/* Starts the ranks in order. If one cannot be started, the others are killed, and no further message is printed. */
static void spawn_all(struct job_state *state, const struct job_setting *setting)
{
    int code = 0;
    for (int rank = 0; rank < state->job->num_ranks && code == 0; rank++) {
        code = job_spawn(setting, rank, &state->children[rank]);
        if (state->children[rank].pid > 0) state->num_alive++;
    }
    if (code == 0) return;
    fail(state, code);
    state->ending = true;
    signal_all(state, SIGKILL);
}

/* Makes the place where the ranks meet. Other hosts must reach it: the user names an interface, or the kernel tells
   from where its packets to them leave. */
static bool place_make(const struct job *job, expar_unique_id *id)
{
    const char *named = getenv("EXPAR_BOOTSTRAP_INTERFACE");
    char own[64];
    const bool found = job->hosts && !(named && *named) && hosts_own_address(job->hosts, own);
    if (job->hosts && !(named && *named) && !found) {
        fprintf(stderr,
                "%s: no host has a name that this one can look up; EXPAR_BOOTSTRAP_INTERFACE must name the "
                "interface that the hosts reach\n",
                job->who);
        return false;
    }
    if ((found ? expar_unique_id_create_on(own, id) : expar_unique_id_create(id)) == EXPAR_OK) return true;
    fprintf(stderr, "%s: %s\n", job->who, expar_last_error());
    return false;
}

static int run_ranks(struct job_state *state, const cpu_set_t *cores)
{
    expar_unique_id id;
    char id_text[EXPAR_UNIQUE_ID_TEXT];
    const bool given = state->job->unique_id != NULL;
    if (!given && !place_make(state->job, &id)) return JOB_EXIT_CANNOT_START;
    if (!given) expar_unique_id_format(&id, id_text);
    struct job_setting setting = {.job = state->job,
                                  .unique_id = given ? state->job->unique_id : id_text,
                                  .flags = state->flags.path,
                                  .signal_mask = &state->old_mask,
                                  .launcher = getpid(),
                                  .cores = cores};
    spawn_all(state, &setting);
    supervise(state);
    if (!given) expar_unique_id_retire(&id);
    return state->exit_code;
}

int job_run(const struct job *job)
{
    struct job_state state;
    cpu_set_t *cores = NULL;
    int code = JOB_EXIT_CANNOT_START;

    fflush(NULL);
    if (!state_open(&state, job))
        fprintf(stderr, "%s: cannot prepare the job: %s\n", job->who, strerror(errno));
    else if (!job->bind || (cores = job_bind_plan(job)))
        code = run_ranks(&state, cores);
    free(cores);
    state_close(&state);
    return code;
}
