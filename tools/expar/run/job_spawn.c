/* SPDX-License-Identifier: Apache-2.0 */
/* Starting one rank. Between fork and exec the child makes async-signal-safe calls only: the launcher has threads. */
#include "base/job_flags.h"
#include "job.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NUM_SET  7 /* variables that every rank gets */
#define SET_SIZE 320

struct spawn_plan {
    char **envp;
    char (*set)[SET_SIZE]; /* [NUM_SET] "NAME=value", pointed to by envp */
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

static bool environment_fill(struct spawn_plan *plan, const struct job_setting *setting, int rank)
{
    const struct job *job = setting->job;
    const size_t num_set = job->num_nodes > 0 ? NUM_SET : NUM_SET - 1;
    size_t inherited = 0, used = 0;
    while (environ[inherited])
        inherited++;
    plan->envp = calloc(inherited + NUM_SET + 1, sizeof *plan->envp);
    plan->set = calloc(NUM_SET, sizeof *plan->set);
    if (!plan->envp || !plan->set) return false;
    for (size_t i = 0; i < inherited; i++)
        if (!is_replaced(environ[i], num_set)) plan->envp[used++] = environ[i];
    snprintf(plan->set[0], SET_SIZE, "EXPAR_RANK=%d", rank);
    snprintf(plan->set[1], SET_SIZE, "EXPAR_SIZE=%d", job->num_ranks);
    snprintf(plan->set[2], SET_SIZE, "EXPAR_UNIQUE_ID=%s", setting->unique_id);
    snprintf(plan->set[3], SET_SIZE, "EXPAR_LOCAL_RANK=%d", rank);
    snprintf(plan->set[4], SET_SIZE, "EXPAR_LOCAL_SIZE=%d", job->num_ranks);
    snprintf(plan->set[5], SET_SIZE, JOB_FLAGS_VARIABLE "=%s", setting->flags);
    if (job->num_nodes > 0)
        snprintf(plan->set[6], SET_SIZE, "EXPAR_RANKS_PER_NODE=%d", job->num_ranks / job->num_nodes);
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
    free(plan->envp);
    free(plan->set);
}

/* Prepares descriptors and environment of one rank. Returns false with errno set. */
static bool plan_make(struct spawn_plan *plan, const struct job_setting *setting, int rank)
{
    *plan = (struct spawn_plan){.pipes = {{-1, -1}, {-1, -1}}, .report = {-1, -1}};
    bool made = environment_fill(plan, setting, rank) && pipe2(plan->report, O_CLOEXEC) == 0;
    for (int i = 0; i < 2 && made && setting->job->prefix; i++)
        made = pipe2(plan->pipes[i], O_CLOEXEC) == 0;
    int cause = errno;
    if (!made) plan_free(plan);
    errno = cause;
    return made;
}

/* True if the rank leads its own process group. A terminal stops background groups that read from it. Rank 0 has stdin,
   so it then stays in the launcher's group. */
static bool wants_own_group(int rank)
{
    return rank != 0 || !isatty(STDIN_FILENO);
}

static bool child_streams(const struct spawn_plan *plan, int rank)
{
    if (rank != 0) {
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
    if (wants_own_group(rank)) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != setting->launcher) _exit(128 + SIGKILL); /* the launcher died before the line above */
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, setting->signal_mask, NULL);
    bool ready = child_streams(plan, rank);
    if (ready && setting->cores) ready = sched_setaffinity(0, sizeof *setting->cores, &setting->cores[rank]) == 0;
    if (ready) execvpe(setting->job->file, setting->job->argv, plan->envp);
    int cause = errno;
    if (write(plan->report[1], &cause, sizeof cause) != sizeof cause) _exit(JOB_EXIT_CANNOT_START);
    _exit(JOB_EXIT_CANNOT_START);
}

static int reject(const struct job *job, int rank, int cause)
{
    if (cause == ENOENT || cause == ENOTDIR) {
        fprintf(stderr, "%s: cannot find the program '%s'%s\n", job->who, job->file,
                strchr(job->file, '/') ? "" : " in PATH; for one in this folder write './NAME'");
        return JOB_EXIT_NOT_FOUND;
    }
    if (cause == EACCES || cause == ENOEXEC) {
        fprintf(stderr, "%s: cannot execute '%s': %s\n", job->who, job->file, strerror(cause));
        return JOB_EXIT_NOT_EXECUTABLE;
    }
    fprintf(stderr, "%s: cannot start rank %d: %s\n", job->who, rank, strerror(cause));
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
static bool streams_open(struct spawn_plan *plan, int rank, struct job_child *child)
{
    bool opened = true;
    for (int i = 0; i < 2 && plan->pipes[i][0] >= 0; i++) {
        fcntl(plan->pipes[i][0], F_SETFL, O_NONBLOCK);
        opened = job_lines_open(&child->streams[i], plan->pipes[i][0], STDOUT_FILENO + i, rank) && opened;
        plan->pipes[i][0] = -1;
    }
    return opened;
}

int job_spawn(const struct job_setting *setting, int rank, struct job_child *child)
{
    struct spawn_plan plan;
    if (!plan_make(&plan, setting, rank)) return reject(setting->job, rank, errno);
    pid_t pid = fork();
    if (pid == 0) child_run(setting, &plan, rank);
    int cause = pid < 0 ? errno : exec_result(&plan);
    if (pid > 0) {
        child->pid = pid;
        child->own_group = wants_own_group(rank);
        if (!streams_open(&plan, rank, child)) cause = ENOMEM;
    }
    plan_free(&plan);
    return cause ? reject(setting->job, rank, cause) : 0;
}

void job_signal(const struct job_child *child, int signal_number)
{
    if (child->pid <= 0) return;
    if (child->own_group && kill(-child->pid, signal_number) == 0) return;
    kill(child->pid, signal_number);
}
