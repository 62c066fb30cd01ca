/* SPDX-License-Identifier: Apache-2.0 */
/* expar run: starts the ranks of any expar program on this machine. */
#include "base/shown.h"
#include "command.h"
#include "job.h"
#include "text.h"
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 1024

struct run_options {
    struct job job;
    int program; /* the program's index among the arguments; 0: none */
};

enum { KEY_NODES = 1000, KEY_BIND, KEY_ON_DEATH, KEY_NO_PREFIX, KEY_TIMEOUT };

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "Start N ranks (required); -np N is the same", 0},
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

static void check(struct argp_state *state, struct run_options *input)
{
    struct job *job = &input->job;
    if (!job->num_ranks) argp_error(state, "-n N is missing: how many ranks?");
    if (!input->program) argp_error(state, "which program? It follows '--'");
    check_environment(state, job);
    if (job->num_nodes && job->num_ranks % job->num_nodes)
        argp_error(state, "--nodes %d does not divide -n %d", job->num_nodes, job->num_ranks);
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
        return ARGP_ERR_UNKNOWN;
    }
}

static int run(int argc, char **argv)
{
    struct run_options input = {.job = {.prefix = true, .who = "expar run"}};
    command_parse(&command_run, parse, true, argc, argv, &input);
    input.job.argv = argv + input.program;
    input.job.file = input.job.argv[0];
    return job_run(&input.job);
}

const struct command command_run = {
    .name = "run",
    .summary = "start the ranks of a program on this machine",
    .arguments = "-- PROGRAM [ARGUMENT...]",
    .description = "Starts N ranks of a program on this machine. Each finds EXPAR_RANK, EXPAR_SIZE, EXPAR_UNIQUE_ID, "
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
    .options = options,
    .choices = choices,
    .examples = examples,
    .run = run,
};
