/* SPDX-License-Identifier: Apache-2.0 */
/* expar check: is this machine, or cluster, fit? Alone it uses ranks that are threads. As a rank of a job it compares
 * what all ranks find, and rank 0 prints. */
#include "base/shown.h"
#include "check.h"
#include "command.h"
#include "cuda/cuda.h"
#include "demo/rank_threads.h"
#include "info/info.h"
#include "progress.h"
#include "run/launch.h"
#include "stop.h"
#include "text.h"
#include <expar/expar.h>
#include <expar/info.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS     64
#define DEFAULT_RANKS 4
#define LONG_S        60
#define MAX_LONG_S    86400
#define MAX_NAMES     16

struct check_options {
    bool json, strict;
    int64_t ranks; /* 0: not given */
    double load_s;
};

enum { KEY_JSON = 1000, KEY_STRICT, KEY_LONG };

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "Use N ranks, which are threads (outside of a job; default: one for each CPU, 2 to 4)", 0},
    {"long", KEY_LONG, "SECONDS", OPTION_ARG_OPTIONAL, "Also load all links at once, for 60 s or for SECONDS", 0},
    {"strict", KEY_STRICT, NULL, 0, "End with exit code 1 if there are warnings", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object", 0},
    {0},
};

static const struct command_example examples[] = {
    {"expar check", "this machine alone"},
    {"expar run --hosts a,b -n 16 --no-prefix -- expar check", "two hosts, compared; rank 0 prints"},
    {"expar check --strict || exit 1", "in a script: warnings end it, too"},
    {"expar check --long", "load all links for 60 s, and watch their error counters"},
    {"expar check --json | jq '.checks[] | select(.status != \"ok\")'", "for programs"},
    {NULL, NULL},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct check_options *input = state->input;
    switch (key) {
    case 'n':
        if (!text_to_int(arg, 1, MAX_RANKS, &input->ranks))
            argp_error(state, "-n '%s': a number from 1 to %d is expected", SHOWN(arg), MAX_RANKS);
        return 0;
    case KEY_LONG:
        input->load_s = LONG_S;
        if (arg && (!text_to_seconds(arg, &input->load_s) || input->load_s > MAX_LONG_S))
            argp_error(state, "--long '%s': seconds above 0, at most %d, are expected", SHOWN(arg), MAX_LONG_S);
        return 0;
    case KEY_STRICT:
        input->strict = true;
        return 0;
    case KEY_JSON:
        input->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is not expected here", SHOWN(arg));
        return EINVAL;
    case ARGP_KEY_END:
        if (input->ranks && launch_job_size() && input->ranks != launch_job_size())
            argp_error(state, "-n %d, but this job has %d ranks", (int)input->ranks, launch_job_size());
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

/* The state of one process. Its threads share it; only the thread of rank 0 writes to it. */
struct check_run {
    struct check_site site;
    struct check_plan plan;
    json_t *rows;
    int32_t ranks;
    struct check_found found;
    int32_t threads;                /* outside of a job: ranks of the next group */
    char transports[MAX_NAMES][32]; /* their names */
    int32_t num_transports;
    const char *tested; /* the transport of a self-test */
    bool prints;        /* this process prints: it has rank 0, or its job has no group */
};

/* Adds everything that a process finds by itself. */
static void look_around(struct check_run *run)
{
    progress_say("expar check: looking at the host");
    check_cpus(&run->site, run->rows);
    check_memory(&run->site, run->rows);
    check_limits(&run->site, run->rows);
    progress_say("expar check: looking at the network");
    check_interfaces(run->rows);
    check_rdma(&run->site, run->rows);
    progress_say("expar check: asking the driver for GPUs");
    json_t *cuda = info_cuda();
    check_gpus(&run->site, cuda, run->rows);
    json_decref(cuda);
}

static void keep_names(struct check_run *run, const expar_group *group)
{
    const char *name;
    while (run->num_transports < MAX_NAMES && expar_transport_describe(group, run->num_transports, &name, NULL, 0))
        snprintf(run->transports[run->num_transports++], sizeof *run->transports, "%s", name);
}

/* Reports a step that has ended early: the others of its kind cannot be trusted. */
static void add_broken(json_t *rows, const char *name, expar_status status)
{
    check_add(rows,
              &(struct check_row){"group", name, CHECK_FAILURE, "all ranks come to the end",
                                  "EXPAR_LOG=info expar check   (names the call and the peer)"},
              "%s: %s", expar_status_string(status), expar_last_error());
}

/* Leaves the group after all ranks have come here, so that no launcher sees a rank end too early. */
static void leave(expar_group *group, expar_status status)
{
    if (status == EXPAR_OK) status = expar_group_barrier(group);
    if (status != EXPAR_OK) expar_group_abort(group);
    expar_group_destroy(group);
}

/* A rank's part of the comparison. */
static int compare(expar_group *group, void *context)
{
    struct check_run *run = context;
    const bool first = expar_group_rank(group) == 0, keeps = first || run->plan.in_job;
    json_t *rows = keeps ? run->rows : json_array();
    struct check_found found;
    expar_status status = check_hosts(group, &run->plan, &found, &rows);
    if (keeps) {
        if (status != EXPAR_OK) add_broken(rows, "hosts", status);
        run->rows = rows;
        run->prints = first;
        run->ranks = expar_group_size(group);
        run->found = found;
    } else {
        json_decref(rows);
    }
    leave(group, status);
    return 0;
}

/* A rank's part of the measurement. */
static int measure_links(expar_group *group, void *context)
{
    struct check_run *run = context;
    const bool keeps = expar_group_rank(group) == 0 || run->plan.in_job;
    expar_status status = check_links(group, &run->plan, run->rows);
    if (keeps && status != EXPAR_OK) add_broken(run->rows, "links", status);
    leave(group, status);
    return 0;
}

/* A rank's part of the look at the network. All transports are there, since each rank is a node of its own. */
static int look_at_network(expar_group *group, void *context)
{
    struct check_run *run = context;
    const bool keeps = expar_group_rank(group) == 0 || run->plan.in_job;
    expar_status status = check_network(group, &run->plan, run->found.num_hosts > 1, run->rows);
    if (keeps && status != EXPAR_OK) add_broken(run->rows, "providers", status);
    if (keeps) keep_names(run, group);
    leave(group, status);
    return 0;
}

static const char right_bytes[] = "puts, gets, atomics and signals carry the right bytes";

/* Makes one row of what all ranks say about what was tested. */
static expar_status gather_wrongs(expar_group *group, struct check_run *run, const struct check_row *row,
                                  const struct check_text *wrong)
{
    const int32_t ranks = expar_group_size(group);
    struct check_row told = *row;
    struct check_text *all = calloc((size_t)ranks, sizeof *all), found = {0};
    expar_status status = all ? expar_group_allgather(group, wrong, all, sizeof *wrong) : EXPAR_ERR_MEMORY;
    for (int32_t rank = 0; rank < ranks && status == EXPAR_OK && !found.used; rank++)
        if (all[rank].used) check_text_add(&found, "%.*s", (int)sizeof all[rank].text - 1, all[rank].text);
    free(all);
    if (status != EXPAR_OK || expar_group_rank(group) != 0) return status;
    told.status = found.used ? CHECK_FAILURE : CHECK_OK;
    check_add(run->rows, &told, "%s", found.used ? found.text : "puts, gets, atomics and signals right");
    return status;
}

/* A rank's part of a self-test. */
static int test_transport(expar_group *group, void *context)
{
    struct check_run *run = context;
    struct check_text wrong = {0};
    char name[48];
    const struct check_row row = {"group", name, CHECK_OK, right_bytes,
                                  "EXPAR_TRANSPORTS=NAMES   (leaves this transport out)"};
    snprintf(name, sizeof name, "selftest_%s", run->tested);
    expar_status status = check_selftest(group, &check_library_operations, -1, &wrong);
    if (status == EXPAR_OK) status = gather_wrongs(group, run, &row, &wrong);
    if (status != EXPAR_OK && (run->plan.in_job || expar_group_rank(group) == 0))
        add_broken(run->rows, run->tested, status);
    leave(group, status);
    return 0;
}

/* Returns this rank's GPU, or -1 if some rank sees none. Ranks of a host take its GPUs in turn. Collective. */
static expar_status choose_gpu(expar_group *group, int32_t *gpu)
{
    const int32_t ranks = expar_group_size(group);
    int32_t mine = 0, *all = calloc((size_t)ranks, sizeof *all);
    if (cuda_open() != EXPAR_OK || cuda_device_count(&mine) != EXPAR_OK) mine = 0;
    expar_status status = all ? expar_group_allgather(group, &mine, all, sizeof mine) : EXPAR_ERR_MEMORY;
    *gpu = mine > 0 ? expar_group_local_rank(group) % mine : -1;
    for (int32_t rank = 0; rank < ranks && status == EXPAR_OK; rank++)
        if (all[rank] == 0) *gpu = -1;
    free(all);
    return status;
}

/* A rank's part of the self-test of GPUs' memory. */
static int test_gpu_memory(expar_group *group, void *context)
{
    struct check_run *run = context;
    struct check_text wrong = {0};
    int32_t gpu = -1;
    struct check_row row = {"GPU", "selftest_gpu", CHECK_SKIPPED, right_bytes,
                            "EXPAR_LOG=info expar check   (says how this memory is reached)"};
    expar_status status = choose_gpu(group, &gpu);
    if (status == EXPAR_OK && gpu < 0) {
        if (expar_group_rank(group) == 0) check_add(run->rows, &row, "some rank sees no GPU");
    } else if (status == EXPAR_OK) {
        status = check_selftest(group, &check_library_operations, gpu, &wrong);
        if (status == EXPAR_OK) status = gather_wrongs(group, run, &row, &wrong);
    }
    if (status != EXPAR_OK && (run->plan.in_job || expar_group_rank(group) == 0))
        add_broken(run->rows, row.name, status);
    leave(group, status);
    return 0;
}

/* Runs a function on all ranks: of the job, or of threads of this process. False: there is no such group, and `error`
   says why. */
static bool with_group(struct check_run *run, rank_body *body, demo_error *error)
{
    expar_group *group;
    if (!run->plan.in_job) {
        rank_threads_run(run->threads, 1, body, run, error);
        return error->text[0] == 0;
    }
    if (expar_group_create(NULL, &group) != EXPAR_OK) {
        snprintf(error->text, sizeof error->text, "%s", expar_last_error());
        return false;
    }
    body(group, run);
    return true;
}

/* Sets a variable, or unsets it with NULL. */
static void variable_set(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* Runs a function on all ranks of a group for which a variable has another value. False: there is no such group. */
static bool with_variable(struct check_run *run, const char *name, const char *value, rank_body *body,
                          demo_error *error)
{
    const char *before = getenv(name);
    char *kept = before ? strdup(before) : NULL;
    variable_set(name, value);
    const bool formed = with_group(run, body, error);
    variable_set(name, kept);
    free(kept);
    return formed;
}

static void add_no_group(struct check_run *run, const char *name, const demo_error *error)
{
    check_add(run->rows,
              &(struct check_row){"group", name, CHECK_FAILURE, "a group of these transports can be formed",
                                  "EXPAR_LOG=info expar check   (names the call that fails)"},
              "%s", error->text);
}

/* Looks at the network by a group whose ranks are nodes, unless the user has chosen nodes. Ranks of one host are one
   node again for the self-tests, so that each has all pairs that its transport reaches. */
static void test_transports(struct check_run *run)
{
    demo_error error = {.text = ""};
    const char *chosen = getenv("EXPAR_RANKS_PER_NODE");
    if (run->threads > DEFAULT_RANKS) run->threads = DEFAULT_RANKS;
    progress_say("expar check: looking at the transports");
    if (!with_variable(run, "EXPAR_RANKS_PER_NODE", chosen ? chosen : "1", look_at_network, &error))
        add_no_group(run, "providers", &error);
    progress_say("expar check: testing the memory of GPUs");
    error = (demo_error){.text = ""};
    if (!with_group(run, test_gpu_memory, &error)) add_no_group(run, "selftest_gpu", &error);
    for (int32_t i = 0; i < run->num_transports; i++) {
        char name[48], say[96];
        error = (demo_error){.text = ""};
        run->tested = run->transports[i];
        snprintf(name, sizeof name, "selftest_%s", run->tested);
        snprintf(say, sizeof say, "expar check: testing the transport %s", run->tested);
        progress_say(say);
        if (!with_variable(run, "EXPAR_TRANSPORTS", run->tested, test_transport, &error))
            add_no_group(run, name, &error);
    }
}

/* A job whose group cannot be formed is a failure of the rendezvous. Each rank says so, for none knows of the
   others. */
static void add_meeting(struct check_run *run, const demo_error *error)
{
    struct check_row row = {
        "network", "rendezvous", error->text[0] ? CHECK_FAILURE : CHECK_OK, "all ranks meet in time",
        "EXPAR_BOOTSTRAP_INTERFACE=DEV on all hosts   (which all reach; ping -M do -s 1472 HOST must pass)"};
    if (error->text[0])
        check_add(run->rows, &row, "%s", error->text);
    else
        check_add(run->rows, &row, "all ranks have met");
}

static void check_all(struct check_run *run)
{
    demo_error error = {.text = ""};
    look_around(run);
    if (!run->plan.in_job) check_rendezvous(run->rows);
    progress_say("expar check: comparing the ranks");
    const bool met = with_variable(run, "EXPAR_TRANSPORTS", "p2p", compare, &error);
    if (!met) run->prints = true;
    if (run->plan.in_job || !met) add_meeting(run, &error);
    if (!met || run->found.blocked) return;
    progress_say("expar check: measuring between ranks");
    if (!with_group(run, measure_links, &error)) add_no_group(run, "links", &error);
    test_transports(run);
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static bool print_json(const struct check_run *run, int code)
{
    json_t *value = json_pack("{s:s, s:i, s:i, s:i, s:O}", "version", expar_version(), "ranks", run->ranks, "hosts",
                              run->found.num_hosts, "exit_code", code, "checks", run->rows);
    const bool printed = value && json_dumpf(value, stdout, JSON_INDENT(2)) == 0;
    if (printed) printf("\n");
    json_decref(value);
    return printed;
}

/* Prints, and returns the exit code. A reader that has gone is no success. */
static int report(const struct check_run *run, const struct check_options *input)
{
    const int code = check_exit_code(run->rows, input->strict);
    bool printed = true;
    progress_clear();
    if (input->json)
        printed = print_json(run, code);
    else
        check_print(run->rows, run->ranks, run->found.num_hosts, input->strict);
    return printed && fflush(stdout) == 0 && !ferror(stdout) ? code : CHECK_EXIT_UNCHECKED;
}

static int32_t default_ranks(void)
{
    cpu_set_t cpus;
    const int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : DEFAULT_RANKS;
    return count < 2 ? 2 : count > DEFAULT_RANKS ? DEFAULT_RANKS : count;
}

static int number_in(const char *name, int otherwise)
{
    int64_t number = otherwise;
    const char *text = getenv(name);
    if (text && text_to_int(text, 1, INT32_MAX, &number)) return (int)number;
    return otherwise;
}

/* Finds out how many ranks share this host, from the launcher's variables. */
static int ranks_here(void)
{
    return number_in("EXPAR_LOCAL_SIZE", number_in("LOCAL_WORLD_SIZE", number_in("OMPI_COMM_WORLD_LOCAL_SIZE", 1)));
}

static int run_check(int argc, char **argv)
{
    struct check_options input = {0};
    command_parse(&command_check, parse, false, argc, argv, &input);
    const bool in_job = launch_inside();
    struct check_run run = {.rows = json_array(), .found = {.num_hosts = 1}};
    launch_prepare_gpus();
    stop_listen();
    run.ranks = in_job ? launch_job_size() : input.ranks ? (int32_t)input.ranks : default_ranks();
    if (run.ranks < 1) run.ranks = 1;
    run.threads = run.ranks;
    run.site = (struct check_site){.proc = "/proc",
                                   .sys = "/sys",
                                   .shm = "/dev/shm",
                                   .nvml = "libnvidia-ml.so.1",
                                   .ranks = run.ranks,
                                   .ranks_here = in_job        ? ranks_here()
                                                 : input.ranks ? run.ranks
                                                               : 1};
    run.plan = (struct check_plan){.site = &run.site, .load_s = input.load_s, .in_job = in_job};
    if (!run.rows) return CHECK_EXIT_UNCHECKED;
    check_all(&run);
    const int code = run.prints ? report(&run, &input) : 0;
    json_decref(run.rows);
    return code;
}

const struct command command_check = {
    .name = "check",
    .summary = "say whether this machine, or the hosts of a job, are fit",
    .description =
        "Looks at the host (CPUs, NUMA, governor, huge pages, limits), the network (interfaces, MTU, providers, RDMA "
        "ports, error counters), the GPUs (driver, compiler, links, ECC, throttling, MIG, places), and at what lies "
        "between ranks: versions, clocks, latency and rate of each pair, rates between GPUs, and a self-test of each "
        "transport with patterns. It changes nothing.\n\n"
        "Each line has a status: ok, warning, failure, or skipped where there is nothing to check. Below a warning or "
        "a failure are the expectation, and after '>' the command that mends it.\n\n"
        "Outside of a job the ranks are threads of this process. As the program of a job (expar run, srun, mpirun) "
        "each rank looks at its own host, and rank 0 prints what all have found: the worst status counts, and values "
        "that differ are given with their ranks.",
    .more = "The exit code is 0 if the machine is fit; 1 if there are warnings and --strict is given; 2 if there are "
            "failures; 3 if it could not be checked, or the output could not be written. In a job the exit code is "
            "that of rank 0; the other ranks end with 0.",
    .options = options,
    .examples = examples,
    .run = run_check,
};
