/* SPDX-License-Identifier: Apache-2.0 */
/* Starting one rank. Between fork and exec the child makes async-signal-safe calls only: the launcher has threads. */
#include "base/job_flags.h"
#include "base/shown.h"
#include "hosts.h"
#include "job.h"
#include "text.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define NUM_SET  7 /* variables that every rank gets */
#define SET_SIZE 320

struct spawn_plan {
    char **envp;
    char (*set)[SET_SIZE]; /* [NUM_SET] "NAME=value", pointed to by envp */
    char **command;        /* that of ssh; NULL: the job's */
    int input[2];          /* standard input of ssh, else -1 */
    int pipes[2][2];       /* stdout, stderr; -1 without prefixes */
    int report[2];         /* errno of a failed exec; closed by a good one */
};

/* True for "NAME=…" of the first num_set variables that the launcher sets itself. */
static bool is_replaced(const char *entry, size_t num_set)
{
    static const char *const names[] = {"EXPAR_RANK",          "EXPAR_SIZE",       "EXPAR_UNIQUE_ID",
                                        "EXPAR_LOCAL_RANK",    "EXPAR_LOCAL_SIZE", JOB_FLAGS_VARIABLE,
                                        "EXPAR_RANKS_PER_NODE"};
    for (size_t i = 0; i < num_set; i++) {
        size_t length = strlen(names[i]);
        if (!strncmp(entry, names[i], length) && entry[length] == '=') return true;
    }
    return false;
}

/* True if the job has a variable of the same name. */
static bool is_given(const struct job *job, const char *entry)
{
    const size_t length = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < job->num_variables; i++)
        if (strncmp(job->variables[i], entry, length) == 0) return true;
    return false;
}

/* Writes the variables that the launcher sets itself. */
static void settings_write(struct spawn_plan *plan, const struct job_setting *setting, int rank)
{
    const struct job *job = setting->job;
    const int size = job->job_size ? job->job_size : job->num_ranks;
    snprintf(plan->set[0], SET_SIZE, "EXPAR_RANK=%d", job->first_rank + rank);
    snprintf(plan->set[1], SET_SIZE, "EXPAR_SIZE=%d", size);
    snprintf(plan->set[2], SET_SIZE, "EXPAR_UNIQUE_ID=%s", setting->unique_id);
    snprintf(plan->set[3], SET_SIZE, "EXPAR_LOCAL_RANK=%d", rank);
    snprintf(plan->set[4], SET_SIZE, "EXPAR_LOCAL_SIZE=%d", job->num_ranks);
    snprintf(plan->set[5], SET_SIZE, JOB_FLAGS_VARIABLE "=%s", setting->flags);
    if (job->num_nodes > 0) snprintf(plan->set[6], SET_SIZE, "EXPAR_RANKS_PER_NODE=%d", size / job->num_nodes);
}

static bool environment_fill(struct spawn_plan *plan, const struct job_setting *setting, int rank)
{
    const struct job *job = setting->job;
    const size_t num_set = job->num_nodes > 0 ? NUM_SET : NUM_SET - 1;
    size_t inherited = 0, used = 0;
    while (environ[inherited])
        inherited++;
    plan->envp = calloc(inherited + job->num_variables + NUM_SET + 1, sizeof *plan->envp);
    plan->set = calloc(NUM_SET, sizeof *plan->set);
    if (!plan->envp || !plan->set) return false;
    for (size_t i = 0; i < inherited; i++)
        if (!is_replaced(environ[i], num_set) && !is_given(job, environ[i])) plan->envp[used++] = environ[i];
    for (size_t i = 0; i < job->num_variables; i++)
        if (!is_replaced(job->variables[i], num_set)) plan->envp[used++] = (char *)(uintptr_t)job->variables[i];
    settings_write(plan, setting, rank);
    for (size_t i = 0; i < num_set; i++)
        plan->envp[used++] = plan->set[i];
    return true;
}

static void pair_close(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0) close(pair[i]);
    pair[0] = pair[1] = -1;
}

static void plan_free(struct spawn_plan *plan)
{
    for (int i = 0; i < 2; i++)
        pair_close(plan->pipes[i]);
    pair_close(plan->report);
    pair_close(plan->input);
    hosts_free_words(plan->command);
    free(plan->envp);
    free(plan->set);
}

/* Prepares descriptors and environment of one rank. Returns false with errno set. */
static bool plan_make(struct spawn_plan *plan, const struct job_setting *setting, int rank)
{
    const struct job_hosts *hosts = setting->job->hosts;
    *plan = (struct spawn_plan){.pipes = {{-1, -1}, {-1, -1}}, .report = {-1, -1}, .input = {-1, -1}};
    bool made = environment_fill(plan, setting, rank) && pipe2(plan->report, O_CLOEXEC) == 0;
    if (made && hosts)
        made = pipe2(plan->input, O_CLOEXEC) == 0 && (plan->command = hosts_command(hosts, rank)) != NULL;
    for (int i = 0; i < 2 && made && setting->job->prefix; i++)
        made = pipe2(plan->pipes[i], O_CLOEXEC) == 0;
    int cause = errno;
    if (!made) plan_free(plan);
    errno = cause;
    return made;
}

/* True if the rank leads its own process group. A terminal stops background groups that read from it. Rank 0 has stdin,
   so it then stays in the launcher's group. */
static bool wants_own_group(const struct job *job, int rank)
{
    return rank != 0 || job->hosts || !isatty(STDIN_FILENO);
}

static bool child_streams(const struct spawn_plan *plan, const struct job *job, int rank)
{
    if (plan->input[0] >= 0) {
        if (dup2(plan->input[0], STDIN_FILENO) < 0) return false;
    } else if (rank != 0 || job->lifeline) {
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) return false;
        if (nothing != STDIN_FILENO) close(nothing);
    }
    for (int i = 0; i < 2; i++)
        if (plan->pipes[i][1] >= 0 && dup2(plan->pipes[i][1], STDOUT_FILENO + i) < 0) return false;
    return true;
}

/* Runs in the child. It never returns. */
static void child_run(const struct job_setting *setting, const struct spawn_plan *plan, int rank)
{
    const struct job *job = setting->job;
    if (wants_own_group(job, rank)) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != setting->launcher) _exit(128 + SIGKILL); /* the launcher died before the line above */
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, setting->signal_mask, NULL);
    bool ready = child_streams(plan, job, rank);
    if (ready && setting->cores) ready = sched_setaffinity(0, sizeof *setting->cores, &setting->cores[rank]) == 0;
    const char *file = plan->command ? plan->command[0] : job->file;
    if (ready) execvpe(file, plan->command ? plan->command : job->argv, plan->envp);
    int cause = errno;
    if (write(plan->report[1], &cause, sizeof cause) != sizeof cause) _exit(JOB_EXIT_CANNOT_START);
    _exit(JOB_EXIT_CANNOT_START);
}

static int reject(const struct job *job, int rank, int cause)
{
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s", job->file);
    text_harmless(file);
    if (job->hosts) {
        fprintf(stderr, "%s: cannot start '%s': %s\n", job->who, job->hosts->ssh, strerror(cause));
        return JOB_EXIT_CANNOT_START;
    }
    if (cause == ENOENT || cause == ENOTDIR) {
        fprintf(stderr, "%s: cannot find the program '%s'%s\n", job->who, file,
                strchr(file, '/') ? "" : " in PATH; for one in this folder write './NAME'");
        return JOB_EXIT_NOT_FOUND;
    }
    if (cause == EACCES || cause == ENOEXEC) {
        fprintf(stderr, "%s: cannot execute '%s': %s\n", job->who, file, strerror(cause));
        return JOB_EXIT_NOT_EXECUTABLE;
    }
    fprintf(stderr, "%s: cannot start rank %d: %s\n", job->who, job->first_rank + rank, strerror(cause));
    return JOB_EXIT_CANNOT_START;
}

/* Waits until the child has executed the program (the pipe closes) or says why it could not. Returns
   that errno or 0. */
static int exec_result(struct spawn_plan *plan)
{
    close(plan->report[1]);
    plan->report[1] = -1;
    int cause = 0;
    ssize_t count;
    do
        count = read(plan->report[0], &cause, sizeof cause);
    while (count < 0 && errno == EINTR);
    return count == sizeof cause ? cause : 0;
}

/* Takes over the read ends of the pipes. */
static bool streams_open(struct spawn_plan *plan, const struct job *job, int rank, struct job_child *child)
{
    bool opened = true;
    for (int i = 0; i < 2 && plan->pipes[i][0] >= 0; i++) {
        fcntl(plan->pipes[i][0], F_SETFL, O_NONBLOCK);
        opened = job_lines_open(&child->streams[i], plan->pipes[i][0], STDOUT_FILENO + i,
                                job->hosts ? -1 : job->first_rank + rank) &&
                 opened;
        child->streams[i].log = child->log;
        plan->pipes[i][0] = -1;
    }
    return opened;
}

/* Creates the rank's log file. False, and a message, if that fails. */
static bool log_open(const struct job *job, int rank, struct job_child *child)
{
    char path[4096];
    if (!job->log_folder || job->hosts) return true;
    snprintf(path, sizeof path, "%s/rank-%04d.log", job->log_folder, job->first_rank + rank);
    if (mkdir(job->log_folder, 0777) == 0 || errno == EEXIST)
        child->log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (child->log < 0) fprintf(stderr, "%s: cannot write %s: %s\n", job->who, SHOWN(path), strerror(errno));
    return child->log >= 0;
}

/* Gives a host's agent its order. The pipe holds all of it. */
static bool order_send(struct spawn_plan *plan, const struct job_setting *setting, int host, struct job_child *child)
{
    char *order = NULL;
    if (plan->input[1] < 0) return true;
    const size_t bytes = order_write(setting->job->hosts, host, setting->unique_id, &order);
    const bool sent = bytes > 0 && write(plan->input[1], order, bytes) == (ssize_t)bytes;
    free(order);
    child->lifeline = plan->input[1];
    plan->input[1] = -1;
    errno = sent ? 0 : E2BIG;
    return sent;
}

void job_child_close(struct job_child *child)
{
    if (child->lifeline >= 0) close(child->lifeline);
    if (child->log >= 0) close(child->log);
    child->lifeline = child->log = -1;
}

int job_spawn(const struct job_setting *setting, int rank, struct job_child *child)
{
    struct spawn_plan plan;
    if (!log_open(setting->job, rank, child)) return JOB_EXIT_CANNOT_START;
    if (!plan_make(&plan, setting, rank)) return reject(setting->job, rank, errno);
    pid_t pid = fork();
    if (pid == 0) child_run(setting, &plan, rank);
    int cause = pid < 0 ? errno : exec_result(&plan);
    if (pid > 0) {
        child->pid = pid;
        child->own_group = wants_own_group(setting->job, rank);
        if (!streams_open(&plan, setting->job, rank, child)) cause = ENOMEM;
        if (!order_send(&plan, setting, rank, child)) cause = errno;
    }
    plan_free(&plan);
    return cause ? reject(setting->job, rank, cause) : 0;
}

void job_signal(struct job_child *child, int signal_number)
{
    if (child->pid <= 0) return;
    if (child->lifeline >= 0 && signal_number != SIGKILL) {
        close(child->lifeline);
        child->lifeline = -1;
        child->ended = true;
    }
    if (child->ended && signal_number != SIGKILL) return;
    if (child->own_group && kill(-child->pid, signal_number) == 0) return;
    kill(child->pid, signal_number);
}
