/* SPDX-License-Identifier: Apache-2.0 */
/* job: the local launcher of `expar run`: N processes of one program on this machine.
 *
 *   job.c         starts them, watches for deaths, signals and the time limit, ends them, computes the exit code
 *   job_spawn.c   one process: environment, pipes, process group, core, exec
 *   job_lines.c   a rank's output, forwarded in whole lines with its rank before them
 *   job_bind.c    which core for which rank (hwloc)
 *   hosts.h       ranks of several hosts: a child is then ssh to a host, whose agent runs a job of its own
 *   job_flags.c   which rank's errors follow from another rank
 *
 * Nothing outlives the launcher: each rank leads a process group that is killed when its leader has ended, and the
 * kernel kills a rank when the launcher itself dies (PR_SET_PDEATHSIG). */
#ifndef EXPAR_TOOL_JOB_H
#define EXPAR_TOOL_JOB_H

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct job_hosts;

struct job {
    int num_ranks; /* that run here */
    /* Only of an agent: the number of its first rank, and of the ranks of all hosts; else 0. */
    int first_rank, job_size;
    const char *unique_id; /* where the ranks meet; NULL: the launcher makes a place */
    bool lifeline;         /* the end of standard input ends the job; no rank has that input */
    /* Set for the ranks, beside those of the launcher: "NAME=VALUE" */
    const char *const *variables; /* [num_variables] */
    size_t num_variables;
    const char *log_folder; /* each rank's output also goes to a file there; NULL: no files */
    /* The ranks run on these hosts; NULL: they run here. */
    const struct job_hosts *hosts;
    /* The ranks simulate that many nodes; it divides num_ranks. 0: as the environment says. */
    int num_nodes;
    bool bind;         /* each rank to one core, round robin */
    bool keep_going;   /* a rank's failure does not end the others */
    bool prefix;       /* forward output in lines marked with the rank; else the ranks share stdout and stderr */
    double timeout_s;  /* 0: none */
    const char *who;   /* what messages start with: "expar run" */
    const char *file;  /* what to run, searched in PATH when it has no slash */
    char *const *argv; /* its arguments, argv[0] first, ends with NULL */
};

/* Exit codes of the launcher itself, the same as those of shells and timeout(1). */
enum { JOB_EXIT_TIMEOUT = 124, JOB_EXIT_CANNOT_START = 125, JOB_EXIT_NOT_EXECUTABLE = 126, JOB_EXIT_NOT_FOUND = 127 };

/* Runs the job to its end and returns its exit code: 0 when every rank ended with 0. Else it is that of the first rank
   that failed (128 + signal), or one of the above. Prints errors on stderr. */
int job_run(const struct job *job);

/* ---- job_lines.c ------------------------------------------------------------------------------------------------- */

/* The longest line that is forwarded in one piece; longer ones are split. */
#define JOB_LINE_BYTES   65536
#define JOB_PREFIX_BYTES 32

/* The line that is being written. Until it is written, no rank's output is read. */
struct job_output {
    int target;
    char *text;           /* [JOB_PREFIX_BYTES + JOB_LINE_BYTES + 1] */
    size_t used, written; /* used 0: there is no line */
};

bool job_output_open(struct job_output *output);
/* Writes as much as its reader takes at once. False when the target cannot be written any more. */
bool job_output_push(struct job_output *output);

struct job_lines {
    int source;                    /* non-blocking read end; -1 when it has ended */
    int log;                       /* gets the lines, too; the child owns it; -1: none */
    int target;                    /* 1 or 2 */
    char prefix[JOB_PREFIX_BYTES]; /* "[3] ", coloured on a terminal */
    char *buffer;                  /* [JOB_LINE_BYTES]; NULL: not open */
    size_t begun, used;            /* begun … used have been read and not passed on */
};

/* rank -1: the lines have their prefix already. */
bool job_lines_open(struct job_lines *lines, int source, int target, int rank);
/* Passes on whole lines, reads once, and passes on again, as long as `output` takes them. last: it does not wait for
   data that is not in the pipe yet. False when the target cannot be written any more. */
bool job_lines_forward(struct job_lines *lines, struct job_output *output, bool last);
/* True if there is, or may be, data to pass on. */
bool job_lines_left(const struct job_lines *lines);
void job_lines_close(struct job_lines *lines);

/* Prints a message of the launcher on stderr. It is lost if stderr cannot take it now. */
void job_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- job_spawn.c ------------------------------------------------------------------------------------------------- */

struct job_child {
    pid_t pid;      /* 0 when it has been reaped */
    bool own_group; /* leads its own process group; else it shares the launcher's */
    int lifeline;   /* write end of the standard input of a host's agent, whose end ends its ranks; -1: none */
    bool ended;     /* the lifeline was closed, so that the agent ends its ranks */
    int log;        /* the rank's log file; -1: none */
    struct job_lines streams[2];
};

/* Common to all ranks. */
struct job_setting {
    const struct job *job;
    const char *unique_id;       /* text form */
    const char *flags;           /* path of the flags; "": there are none */
    const sigset_t *signal_mask; /* as it was before the launcher blocked its signals */
    pid_t launcher;
    const cpu_set_t *cores; /* [num_ranks]; NULL: not bound */
};

/* Starts one rank, or ssh to a host. Returns 0, or the exit code for the job after saying why it cannot be started. */
int job_spawn(const struct job_setting *setting, int rank, struct job_child *child);
/* Closes what the launcher holds of a child beside its output. */
void job_child_close(struct job_child *child);
/* Sends a signal to all processes of a rank that has not been reaped. For a host any signal but SIGKILL ends its
   agent's input, so that the agent ends its ranks; SIGKILL goes to ssh. */
void job_signal(struct job_child *child, int signal_number);

/* ---- job_flags.c ------------------------------------------------------------------------------------------------- */

/* The flags of all ranks (base/job_flags.h). */
struct job_flags {
    int file;      /* -1: there is none, and no rank can set a flag */
    char path[64]; /* for the ranks; "" without a file */
};

void job_flags_open(struct job_flags *flags, int num_ranks);
/* True if a call of the rank has failed because of another rank. Call this after the rank has exited. */
bool job_flags_read(const struct job_flags *flags, int rank);
void job_flags_close(struct job_flags *flags);

/* ---- job_bind.c -------------------------------------------------------------------------------------------------- */

/* Chooses a core for each rank among those that this process may use. NULL after saying why not. The caller frees
   it. */
cpu_set_t *job_bind_plan(const struct job *job);

#endif
