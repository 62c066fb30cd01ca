/* SPDX-License-Identifier: Apache-2.0 */
/* expar demo: its options. The process that the user started starts the ranks, and each rank runs. */
#include "demo_command.h"
#include "base/shown.h"

#include "rank_threads.h"
#include "ranks.h"
#include "reference.h"
#include "report.h"
#include "run/launch.h"
#include "stop.h"
#include "text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define DEFAULT_RANKS 8
#define DEFAULT_BYTES 160
#define MAX_RANKS     1024

enum {
    KEY_PROMPT = 1000,
    KEY_FILE,
    KEY_BYTES,
    KEY_NODES,
    KEY_DEVICE,
    KEY_GPU,
    KEY_PATH,
    KEY_DECODE,
    KEY_MODEL,
    KEY_JSON
};

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "Spread the experts over N ranks (default 8)", 0},
    {"prompt", KEY_PROMPT, "TEXT", 0, "Continue TEXT; may be given several times: prompt i goes to rank i mod N", 0},
    {"file", KEY_FILE, "FILE", 0, "Continue the last 256 bytes of FILE; may be given several times", 0},
    {"bytes", KEY_BYTES, "COUNT", 0, "Write COUNT bytes after each prompt (default 160)", 0},
    {"path", KEY_PATH, "PATH", 0, "How rows travel in normal mode: auto (default), direct, queue", 0},
    {"decode", KEY_DECODE, "MODE", 0,
     "Dispatch and combine of decode: low-latency (default), or normal; prefill is in normal mode", 0},
    {"device", KEY_DEVICE, "DEVICE", 0,
     "Where the model runs: cpu (default), or cuda: the ranks are threads that share the GPUs", 0},
    {"gpu", KEY_GPU, NULL, 0,
     "Run on the GPUs, as --device cuda; where that is not possible, say why in one sentence and run on the CPU", 0},
    {"nodes", KEY_NODES, "M", 0,
     "Let the ranks simulate M nodes, with a network between them (default: as the hosts are)", 0},
    {"model", KEY_MODEL, "FOLDER", 0, "Take the model from config.json and model.safetensors in FOLDER", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object at the end, and nothing else", 0},
    {0},
};

static const struct command_choice choices[] = {
    {"path", "auto direct queue"}, {"decode", "low-latency normal"}, {"device", "cpu cuda"}, {NULL, NULL}};

static const struct command_example examples[] = {
    {"expar demo", "eight shipped prompts on eight ranks"},
    {"expar demo -n 4 --prompt 'Call me Ishmael. ' --bytes 200", "one prompt of your own on four ranks"},
    {"expar demo --nodes 2", "as two nodes of four ranks; with what crosses the network"},
    {"expar demo --decode normal", "decode in normal mode, too: the same text in another time"},
    {"expar demo --device cuda", "attention, experts, dispatch and combine on the GPUs of this host"},
    {"expar demo --gpu", "the same where there are GPUs, else on the CPU"},
    {"expar demo --file letter.txt --json", "continue a file, and print JSON"},
    {"expar run -n 2 --no-prefix -- expar demo", "inside a group that something else has started"},
    {NULL, NULL},
};

static int run(int argc, char **argv);

const struct command command_demo = {
    .name = "demo",
    .summary = "a real MoE language model, spread over N ranks, continues prompts",
    .description =
        "Runs a small mixture-of-experts language model, expert parallel: attention on every rank, experts only on "
        "their owner, tokens by dispatch and combine: whole prompts in normal mode, then a byte of each text in "
        "low-latency mode. The first prompt's continuation is printed as it comes, then "
        "the other texts, the experts' load, tokens per second and bytes moved.\n\n"
        "Every text is compared with a reference that one rank computes without dispatch, and with the continuation "
        "that the model was shipped with, where there is one. On GPUs the arithmetic is the same, product by product, "
        "so "
        "the texts are too; where one is not, the first byte that differs is shown, and by how much the reference's "
        "best logit led there. The exit code is 0 only when all are equal.",
    .options = options,
    .choices = choices,
    .examples = examples,
    .run = run,
};

typedef struct demo_request {
    demo_task task;
    bool gpu; /* GPUs if they can be used */
    const char *directory;
} demo_request;

static int64_t parse_count(struct argp_state *state, const char *option, const char *text, int64_t high)
{
    int64_t number = 0;
    if (!text_to_int(text, 1, high, &number))
        argp_error(state, "%s '%s': a number from 1 to %lld is expected", option, SHOWN(text), (long long)high);
    return number;
}

static expar_ep_path parse_path(struct argp_state *state, const char *text)
{
    if (!strcmp(text, "direct")) return EXPAR_EP_PATH_DIRECT;
    if (!strcmp(text, "queue")) return EXPAR_EP_PATH_QUEUE;
    if (strcmp(text, "auto")) argp_error(state, "--path '%s': auto, direct or queue is expected", SHOWN(text));
    return EXPAR_EP_PATH_AUTO;
}

/* Returns whether decode uses low-latency mode, as the option says. */
static bool parse_decode(struct argp_state *state, const char *text)
{
    if (!strcmp(text, "low-latency")) return true;
    if (strcmp(text, "normal")) argp_error(state, "--decode '%s': low-latency or normal is expected", SHOWN(text));
    return false;
}

static const compute_kind *parse_device(struct argp_state *state, const char *text)
{
    static const compute_kind *const kinds[] = {&compute_cpu, &compute_cuda};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(text, kinds[i]->name)) return kinds[i];
    argp_error(state, "--device '%s': cpu or cuda is expected", SHOWN(text));
    return NULL;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    demo_request *request = state->input;
    demo_task *task = &request->task;
    demo_error error = {.text = ""};
    switch (key) {
    case 'n':
        task->ranks = (int32_t)parse_count(state, "-n", arg, MAX_RANKS);
        return 0;
    case KEY_PROMPT:
        if (!prompt_list_add_text(&task->prompts, arg, &error)) argp_error(state, "%s", text_harmless(error.text));
        return 0;
    case KEY_FILE:
        if (!prompt_list_add_file(&task->prompts, arg, &error)) argp_error(state, "%s", text_harmless(error.text));
        return 0;
    case KEY_BYTES:
        task->bytes = (int32_t)parse_count(state, "--bytes", arg, INT32_MAX);
        return 0;
    case KEY_PATH:
        task->path = parse_path(state, arg);
        return 0;
    case KEY_DEVICE:
        task->kind = parse_device(state, arg);
        request->gpu = false;
        return 0;
    case KEY_GPU:
        task->kind = &compute_cuda;
        request->gpu = true;
        return 0;
    case KEY_DECODE:
        task->low_latency = parse_decode(state, arg);
        return 0;
    case KEY_NODES:
        task->nodes = (int32_t)parse_count(state, "--nodes", arg, MAX_RANKS);
        return 0;
    case KEY_MODEL:
        request->directory = arg;
        return 0;
    case KEY_JSON:
        task->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is no option; a prompt follows --prompt", SHOWN(arg));
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Rank 0 calls this after the parallel run; the group is gone by then. */
static bool finish(const demo_printer *printer, demo_results *results, demo_error *error)
{
    const demo_task *task = printer->task;
    if (!task->json) demo_report_texts(printer, results);
    if (isatty(STDERR_FILENO) == 1) fprintf(stderr, "\ncomputing the single-rank reference ...\n");
    if (!demo_reference_compare(task, results, error)) return false;
    if (!task->json)
        demo_report_figures(printer, results);
    else if (!demo_report_json(printer->out, task, results))
        return demo_fail(error, "cannot write the JSON");
    return demo_results_match(results) || demo_fail(error, "the texts do not equal the reference");
}

static int fail(demo_error *error)
{
    if (error->text[0]) fprintf(stderr, "expar demo: %s\n", text_harmless(error->text));
    return error->text[0] ? error->code : EXIT_FAILURE;
}

/* Runs the parallel part. A failure is printed before the group is left. No rank leaves before rank 0, so that no
   launcher ends rank 0 before it has printed. */
static bool run_in_group(expar_group *group, demo_printer *printer, demo_results *results)
{
    demo_error error = {.text = ""};
    bool streams = expar_group_rank(group) == 0 && !printer->task->json;
    if (demo_ranks_run(group, printer->task, streams ? demo_report_byte : NULL, printer, results, &error)) return true;
    if (printer->started) demo_report_break(printer);
    fail(&error);
    return false;
}

/* Chooses the number of ranks, now that the group is known. */
static bool fit_group(demo_task *task, int32_t size, demo_error *error)
{
    if (task->ranks != 0 && task->ranks != size)
        return demo_reject(error, "-n %d was given inside a group of %d ranks", task->ranks, size);
    task->ranks = size;
    return true;
}

/* Runs one rank in its group, and leaves the group. Returns the exit code. */
static int run_member(expar_group *group, void *context)
{
    const demo_task *task = context;
    demo_error error = {.text = ""};
    bool first = expar_group_rank(group) == 0;
    demo_printer printer = demo_printer_for(stdout, task);
    demo_results results = {0};
    bool ready = demo_results_create(task, &results, &error);
    int code = ready ? EXIT_SUCCESS : fail(&error);
    if (ready && !run_in_group(group, &printer, &results)) code = EXIT_FAILURE;
    if (!demo_check(&error, "leaving the group", expar_group_destroy(group)) && code == EXIT_SUCCESS)
        code = fail(&error);
    if (first && code == EXIT_SUCCESS && !finish(&printer, &results, &error)) code = fail(&error);
    demo_results_free(&results);
    return code;
}

/* Joins the group. Its ranks are on several nodes or simulate them. If none are given and the ranks are on one host,
   there is one node. */
static bool join(demo_task *task, expar_group **group, demo_error *error)
{
    expar_group_options wanted = EXPAR_GROUP_OPTIONS_INIT;
    const int32_t size = task->ranks ? task->ranks : (int32_t)launch_job_size();
    if (task->nodes > 1) wanted.ranks_per_node = size / task->nodes;
    if (!demo_check(error, "joining the group", expar_group_create(&wanted, group))) return false;
    task->nodes = expar_group_size(*group) / expar_group_ranks_per_node(*group);
    return true;
}

/* Runs one rank, from joining the group on. Returns the exit code. */
static int run_rank(demo_request *request)
{
    demo_error error = {.text = ""};
    demo_task *task = &request->task;
    expar_group *group = NULL;
    if (!join(task, &group, &error)) return fail(&error);
    if (fit_group(task, expar_group_size(group), &error) && demo_task_prepare(task, request->directory, &error))
        return run_member(group, task);
    int code = fail(&error);
    expar_group_destroy(group);
    return code;
}

/* Starts ranks that need not ask for GPUs again. */
static int launch_on_cpu(int32_t ranks, int argc, char **argv)
{
    static char device[] = "--device=cpu"; /* the last choice of a device counts */
    char **arguments = calloc((size_t)argc + 2, sizeof *arguments);
    if (!arguments) return EX_OSERR;
    memcpy(arguments, argv, (size_t)argc * sizeof *arguments);
    arguments[argc] = device;
    int code = launch_self(ranks, false, argc + 1, arguments);
    free(arguments);
    return code;
}

/* Returns an error's text without the option and the call. */
static const char *cause_in(const char *text)
{
    static const char *const starts[] = {"--device cuda: ", "expar_cuda_get_driver: "};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(text, starts[i], strlen(starts[i])) == 0) text += strlen(starts[i]);
    return text;
}

/* With --gpu: takes the CPU if GPUs cannot be used. One rank of a job says why. */
static void choose_device(demo_request *request)
{
    demo_error error = {.text = ""};
    const char *rank = getenv("EXPAR_RANK");
    if (!request->gpu || request->task.kind->check(&error)) return;
    request->task.kind = &compute_cpu;
    if (!launch_inside() || (rank && strcmp(rank, "0") == 0))
        fprintf(stderr, "expar demo: the model runs on the CPU, because no GPU can be used: %s\n",
                cause_in(error.text));
}

/* Checks what can be checked once, and starts the ranks. */
static int run_outside(demo_request *request, int argc, char **argv)
{
    demo_error error = {.text = ""};
    demo_task *task = &request->task;
    if (task->ranks == 0) task->ranks = DEFAULT_RANKS;
    if (!demo_task_prepare(task, request->directory, &error)) return fail(&error);
    if (!task->kind->threads && request->gpu) return launch_on_cpu(task->ranks, argc, argv);
    if (!task->kind->threads) return launch_self(task->ranks, false, argc, argv);
    int code = rank_threads_run(task->ranks, task->nodes, run_member, task, &error);
    return error.text[0] ? fail(&error) : code;
}

static int run(int argc, char **argv)
{
    demo_error error = {.text = ""};
    demo_request request = {.task = {.bytes = DEFAULT_BYTES, .low_latency = true, .kind = &compute_cpu, .nodes = 1}};
    int code;
    launch_prepare_gpus();
    command_parse(&command_demo, parse, false, argc, argv, &request);
    choose_device(&request);
    if (launch_inside() || request.task.kind->threads) stop_listen();
    if (!request.task.kind->check(&error))
        code = fail(&error);
    else
        code = launch_inside() ? run_rank(&request) : run_outside(&request, argc, argv);
    demo_task_free(&request.task);
    return code;
}
