/* SPDX-License-Identifier: Apache-2.0 */
/* expar run: starts the ranks of any expar program, on this machine or on several hosts. */
#include "base/shown.h"
#include "command.h"
#include "hosts.h"
#include "job.h"
#include "text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define MAX_RANKS 1024

struct run_options {
    struct job job;
    int program; /* the program's index among the arguments; 0: none */
    const char *host_list;
    struct job_hosts hosts;
    const char **variables; /* as job.variables; grows */
};

enum {
    KEY_NODES = 1000,
    KEY_BIND,
    KEY_ON_DEATH,
    KEY_NO_PREFIX,
    KEY_TIMEOUT,
    KEY_HOSTS,
    KEY_ENV,
    KEY_LOG_DIR,
    KEY_SSH,
    KEY_EXPAR
};

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "Start N ranks (required without counts of --hosts); -np N is the same", 0},
    {"hosts", KEY_HOSTS, "HOST[:COUNT],...", 0,
     "Start the ranks on these hosts by ssh, the first ones on the first host; COUNT is a host's number of ranks. "
     "Without counts each host gets N divided by the number of hosts",
     0},
    {"env", KEY_ENV, "NAME[=VALUE]", 0,
     "Set a variable for all ranks, or hand on the launcher's; may be given several times. EXPAR_* variables are "
     "always "
     "handed on",
     0},
    {"log-dir", KEY_LOG_DIR, "FOLDER", 0,
     "Also write the output of each rank to FOLDER/rank-NNNN.log, on the rank's host", 0},
    {"ssh", KEY_SSH, "COMMAND", 0, "With --hosts: what connects to a host (default: " HOSTS_SSH ")", 0},
    {"expar", KEY_EXPAR, "PATH", 0, "With --hosts: path of expar on the hosts (default: the path of this one)", 0},
    {"nodes", KEY_NODES, "M", 0,
     "Let the ranks simulate M nodes of N/M ranks each: memory is shared inside a node only. Without it "
     "EXPAR_RANKS_PER_NODE counts, if it is set",
     0},
    {"bind", KEY_BIND, NULL, 0, "Bind each rank to one core, round robin", 0},
    {"on-death", KEY_ON_DEATH, "WHAT", 0,
     "When a rank fails: 'kill' the others (default), or 'continue' for programs that go on without it", 0},
    {"no-prefix", KEY_NO_PREFIX, NULL, 0,
     "Do not mark output with its rank: the ranks write straight to stdout and stderr", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "End the job after this time, with exit code 124", 0},
    {0},
};

static const struct command_choice choices[] = {{"on-death", "kill continue"}, {NULL, NULL}};

static const struct command_example examples[] = {
    {"expar run -n 8 -- ./train --steps 10", "eight ranks; each line of output starts with its rank"},
    {"expar run -n 8 --nodes 2 -- ./train", "the same, as two nodes of four ranks"},
    {"expar run -n 4 --bind --timeout 60 -- ./test_all", "one core for each rank, one minute at most"},
    {"expar run -n 4 --on-death=continue -- ./survivor", "the others go on when a rank dies"},
    {"expar run --hosts a,b -n 16 --env OMP_NUM_THREADS=4 -- ./train", "eight ranks on each of two hosts"},
    {"expar run --hosts a:8,b:4 --log-dir logs -- ./train", "twelve ranks, and a log file of each"},
    {NULL, NULL},
};

static int parse_count(struct argp_state *state, const char *option, const char *what, const char *text)
{
    int64_t number = 1;
    if (!text_to_int(text, 1, MAX_RANKS, &number))
        argp_error(state, "%s '%s': a number of %s from 1 to %d is expected", option, SHOWN(text), what, MAX_RANKS);
    return (int)number;
}

/* Checks the environment. Without --nodes the ranks read the variable themselves. A value that they would reject is
   rejected before they start. */
static void check_environment(struct argp_state *state, const struct job *job)
{
    const char *each = getenv("EXPAR_RANKS_PER_NODE");
    int64_t number;
    if (job->num_nodes || !each || !*each) return;
    if (!text_to_int(each, 1, job->num_ranks, &number) || job->num_ranks % number)
        argp_error(state, "EXPAR_RANKS_PER_NODE=%s: a divisor of -n %d is expected", SHOWN(each), job->num_ranks);
}

/* Adds "NAME=VALUE", or a variable of the launcher. */
static void add_variable(struct argp_state *state, struct run_options *input, const char *text)
{
    struct job *job = &input->job;
    const size_t length = strcspn(text, "=");
    const char *entry = text;
    for (char **own = environ; !text[length] && *own; own++)
        if (strncmp(*own, text, length) == 0 && (*own)[length] == '=') entry = *own;
    if (length == 0 || !strchr(entry, '='))
        argp_error(state, "--env '%s': NAME=VALUE, or the NAME of a variable that is set, is expected", SHOWN(text));
    input->variables = reallocarray(input->variables, job->num_variables + 1, sizeof *input->variables);
    if (!input->variables) argp_failure(state, EX_OSERR, 0, "out of memory");
    input->variables[job->num_variables++] = entry;
    job->variables = input->variables;
}

static void check_hosts_options(struct argp_state *state, struct run_options *input)
{
    char why[HOSTS_WHY];
    const char *ssh = input->hosts.ssh, *expar = input->hosts.expar;
    if (!input->host_list && (ssh || expar)) argp_error(state, "--ssh and --expar need --hosts");
    if (input->job.log_folder && !input->job.prefix) argp_error(state, "--log-dir and --no-prefix exclude each other");
    if (!input->host_list) return;
    if (!hosts_parse(input->host_list, &input->job.num_ranks, &input->hosts, why)) argp_error(state, "--hosts %s", why);
    input->hosts.ssh = ssh ? ssh : HOSTS_SSH;
    input->hosts.expar = expar;
}

static void check(struct argp_state *state, struct run_options *input)
{
    struct job *job = &input->job;
    check_hosts_options(state, input);
    if (!job->num_ranks) argp_error(state, "-n N is missing: how many ranks?");
    if (!input->program) argp_error(state, "which program? It follows '--'");
    check_environment(state, job);
    if (job->num_nodes && job->num_ranks % job->num_nodes)
        argp_error(state, "--nodes %d does not divide -n %d", job->num_nodes, job->num_ranks);
}

/* Takes the options of hosts, variables and log files. */
static error_t parse_places(int key, char *arg, struct argp_state *state)
{
    struct run_options *input = state->input;
    switch (key) {
    case KEY_HOSTS:
        input->host_list = arg;
        return 0;
    case KEY_ENV:
        add_variable(state, input, arg);
        return 0;
    case KEY_LOG_DIR:
        input->job.log_folder = arg;
        return 0;
    case KEY_SSH:
        if (!arg[strspn(arg, " ")]) argp_error(state, "--ssh '%s': a command is expected", SHOWN(arg));
        input->hosts.ssh = arg;
        return 0;
    case KEY_EXPAR:
        input->hosts.expar = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct run_options *input = state->input;
    struct job *job = &input->job;
    switch (key) {
    case 'n':
        job->num_ranks = parse_count(state, "-n", "ranks", arg);
        return 0;
    case KEY_NODES:
        job->num_nodes = parse_count(state, "--nodes", "nodes", arg);
        return 0;
    case KEY_BIND:
        job->bind = true;
        return 0;
    case KEY_ON_DEATH:
        if (strcmp(arg, "kill") && strcmp(arg, "continue"))
            argp_error(state, "--on-death '%s': 'kill' or 'continue' is expected", SHOWN(arg));
        job->keep_going = !strcmp(arg, "continue");
        return 0;
    case KEY_NO_PREFIX:
        job->prefix = false;
        return 0;
    case KEY_TIMEOUT:
        if (!text_to_seconds(arg, &job->timeout_s))
            argp_error(state, "--timeout '%s': a number of seconds above 0 is expected", SHOWN(arg));
        return 0;
    case ARGP_KEY_ARGS:
        input->program = state->next;
        return 0;
    case ARGP_KEY_END:
        check(state, input);
        return 0;
    default:
        return parse_places(key, arg, state);
    }
}

/* Runs a job whose children are one ssh for each host. */
static int run_on_hosts(struct run_options *input)
{
    char expar[4096], folder[4096];
    const ssize_t length = readlink("/proc/self/exe", expar, sizeof expar - 1);
    if (length < 0 || !getcwd(folder, sizeof folder)) {
        fprintf(stderr, "expar run: cannot tell this program's path, or its folder: %s\n", strerror(errno));
        return JOB_EXIT_CANNOT_START;
    }
    expar[length] = 0;
    if (!input->hosts.expar) input->hosts.expar = expar;
    input->hosts.folder = folder;
    input->hosts.ranks = &input->job;
    struct job job = input->job;
    job.num_ranks = input->hosts.count;
    job.hosts = &input->hosts;
    job.bind = false; /* the agents bind */
    return job_run(&job);
}

static int run(int argc, char **argv)
{
    struct run_options input = {.job = {.prefix = true, .who = "expar run"}};
    command_parse(&command_run, parse, true, argc, argv, &input);
    input.job.argv = argv + input.program;
    input.job.file = input.job.argv[0];
    const int code = input.host_list ? run_on_hosts(&input) : job_run(&input.job);
    hosts_free(&input.hosts);
    free(input.variables);
    return code;
}

const struct command command_run = {
    .name = "run",
    .summary = "start the ranks of a program, here or on several hosts",
    .arguments = "-- PROGRAM [ARGUMENT...]",
    .description = "Starts N ranks of a program on this machine, or on the hosts of --hosts. Each finds EXPAR_RANK, "
                   "EXPAR_SIZE, EXPAR_UNIQUE_ID, "
                   "EXPAR_LOCAL_RANK and "
                   "EXPAR_LOCAL_SIZE in its environment, from which expar_group_create(NULL, ...) forms the group. "
                   "EXPAR_RANKS_PER_NODE is handed on, or set where --nodes is given. "
                   "Lines of output are "
                   "marked with their rank. Standard input goes to rank 0 only.\n\n"
                   "When a rank is killed or exits with another code than 0, a message says which rank and why, and "
                   "the others are ended: "
                   "SIGTERM, and SIGKILL three seconds later. Nothing is left running when the command ends. "
                   "A rank may fail because of another rank, and exit earlier. The launcher then waits up to five "
                   "seconds, and names the other rank as the first that failed.\n\n"
                   "The exit code is 0 when every rank exited with 0, else that of the first rank that failed, 128 + "
                   "signal for one that "
                   "was killed. 64: what was typed cannot be used; 124: the time limit was over; 125: the job could "
                   "not be started; 126: the program "
                   "cannot be executed; "
                   "127: there is no such program.",
    .more =
        "--hosts connects to each host by ssh, which must not ask for a password, and runs expar there. All hosts need "
        "the same version of expar, the program and this folder at the same paths. The ranks' variables, with the "
        "job's secret, travel on ssh's input, where no list of processes shows them; the ranks have no standard "
        "input. EXPAR_BOOTSTRAP_INTERFACE names the interface at which the ranks meet; without it that is the one "
        "on the way to the hosts. When ssh, the network or the launcher goes, the ranks of the host are ended. "
        "Messages name the host, and 255 is the exit code if ssh cannot connect.",
    .options = options,
    .choices = choices,
    .examples = examples,
    .run = run,
};
