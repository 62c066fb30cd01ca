/* SPDX-License-Identifier: Apache-2.0 */
/* expar info: the library, the machine, and what is missing on it. */
#include "base/knobs.h"
#include "base/shown.h"
#include "command.h"
#include "info.h"
#include "progress.h"
#include "text.h"
#include <expar/info.h>
#include <expar/status.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <sysexits.h>

#define MAX_RANKS 64

struct info_options {
    bool json, env, knobs, heap;
    int64_t ranks, nodes; /* of the group whose transports are shown */
};

enum { KEY_JSON = 1000, KEY_ENV, KEY_KNOBS, KEY_HEAP, KEY_NODES };

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "Ranks of the group whose transport matrix is shown (default: 4)", 0},
    {"nodes", KEY_NODES, "M", 0, "Nodes that these ranks simulate (default: 2 where N is even, else 1)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object", 0},
    {"env", KEY_ENV, NULL, 0, "Print the environment variables that the library reads, instead", 0},
    {"knobs", KEY_KNOBS, NULL, 0, "Print the tuning constants of the library, instead", 0},
    {"heap", KEY_HEAP, NULL, 0, "Print how full the symmetric heaps of running programs are, instead", 0},
    {0},
};

static const struct command_example examples[] = {
    {"expar info", "the library, processors, memory, GPUs, launchers, transports, and advice"},
    {"expar info -n 8 --nodes 4", "the transport matrix of eight ranks on four nodes"},
    {"expar info --env", "all EXPAR_* variables with their meaning"},
    {"expar info --knobs", "all tuning constants with their values, bounds and meaning"},
    {"expar info --heap", "use, high water, chunks and holes of the heaps of all ranks here"},
    {"expar info --json | jq .memory", "for programs"},
    {NULL, NULL},
};

static int64_t count(struct argp_state *state, const char *option, const char *text)
{
    int64_t value = 1;
    if (!text_to_int(text, 1, MAX_RANKS, &value))
        argp_error(state, "%s '%s': a number from 1 to %d is expected", option, SHOWN(text), MAX_RANKS);
    return value;
}

static void complete(struct argp_state *state, struct info_options *input)
{
    if (input->env + input->knobs + input->heap > 1)
        argp_error(state, "--env, --knobs and --heap: each prints something else; one of the three");
    if (!input->ranks) input->ranks = 4;
    if (!input->nodes) input->nodes = input->ranks % 2 ? 1 : 2;
    if (input->ranks % input->nodes)
        argp_error(state, "--nodes %d does not divide -n %d", (int)input->nodes, (int)input->ranks);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct info_options *input = state->input;
    switch (key) {
    case KEY_JSON:
        input->json = true;
        return 0;
    case KEY_ENV:
        input->env = true;
        return 0;
    case KEY_KNOBS:
        input->knobs = true;
        return 0;
    case KEY_HEAP:
        input->heap = true;
        return 0;
    case 'n':
        input->ranks = count(state, "-n", arg);
        return 0;
    case KEY_NODES:
        input->nodes = count(state, "--nodes", arg);
        return 0;
    case ARGP_KEY_END:
        complete(state, input);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is not expected here", SHOWN(arg));
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static json_t *build_info(void)
{
    struct utsname system;
    char kernel[sizeof system.sysname + sizeof system.release + sizeof system.machine + 3] = "unknown";
    if (uname(&system) == 0)
        snprintf(kernel, sizeof kernel, "%s %s %s", system.sysname, system.release, system.machine);
    return json_pack("{s:s, s:s, s:s, s:s}", "type", EXPAR_BUILD_TYPE, "compiler", EXPAR_BUILD_COMPILER, "sanitizers",
                     *EXPAR_BUILD_SANITIZE ? EXPAR_BUILD_SANITIZE : "none", "kernel", kernel);
}

static json_t *collect(const struct info_options *input)
{
    progress_say("expar info: looking at the processors");
    json_t *cpu = info_cpu(), *memory = info_memory(), *launchers = info_launchers();
    progress_say("expar info: asking the driver for GPUs");
    json_t *cuda = info_cuda();
    progress_say("expar info: trying the transports");
    json_t *transports = info_transports((int)input->ranks, (int)input->nodes);
    json_object_set_new(cuda, "across_nodes", info_across(transports));
    json_t *advice = info_advice(memory, launchers, cuda, transports);
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "version", expar_version(), "build", build_info(),
                     "cpu", cpu, "memory", memory, "cuda", cuda, "launchers", launchers, "transports", transports,
                     "advice", advice);
}

static void print_json(json_t *value)
{
    json_dumpf(value, stdout, JSON_INDENT(2));
    printf("\n");
}

static json_t *collect_env(void)
{
    const char *name, *values, *fallback, *meaning;
    json_t *list = json_array();
    for (size_t i = 0; expar_env_describe(i, &name, &values, &fallback, &meaning); i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "name", name, "values", values, "default",
                                              fallback, "meaning", meaning));
    return list;
}

static void print_env(void)
{
    const char *name, *values, *fallback, *meaning;
    for (size_t i = 0; expar_env_describe(i, &name, &values, &fallback, &meaning); i++)
        printf("%s\n    %s\n    values: %s; default: %s\n", name, meaning, values, fallback);
}

static json_t *collect_knobs(void)
{
    size_t count;
    const knob_entry *knobs = knob_table(&count);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:I, s:s, s:s}", "name", knobs[i].name, "value",
                                        (json_int_t)knob((knob_id)i), "least", (json_int_t)knobs[i].least, "most",
                                        (json_int_t)knobs[i].most, "unit", knobs[i].unit, "meaning", knobs[i].meaning));
    return list;
}

static void print_knobs(void)
{
    size_t count;
    const knob_entry *knobs = knob_table(&count);
    for (size_t i = 0; i < count; i++)
        printf("%s\n    %s\n    unit: %s; value: %" PRId64 "; from %" PRId64 " to %" PRId64 "\n", knobs[i].name,
               knobs[i].meaning, knobs[i].unit, knob((knob_id)i), knobs[i].least, knobs[i].most);
}

/* Prints a table that needs no look at the machine, in place of the whole output. */
static bool print_table(const struct info_options *input)
{
    if (input->json) return false;
    if (input->env) print_env();
    if (input->knobs) print_knobs();
    return input->env || input->knobs;
}

static json_t *gather(const struct info_options *input)
{
    if (input->env) return collect_env();
    if (input->knobs) return collect_knobs();
    return input->heap ? info_heaps() : collect(input);
}

static int run(int argc, char **argv)
{
    struct info_options input = {0};
    command_parse(&command_info, parse, false, argc, argv, &input);
    if (print_table(&input)) return 0;
    if (input.heap) progress_say("expar info: looking for heaps in all processes");
    json_t *value = gather(&input);
    progress_clear();
    if (!value) {
        fprintf(stderr, "expar info: out of memory, or hwloc cannot read this machine\n");
        return EX_OSERR;
    }
    bool printed = true;
    if (input.json)
        print_json(value);
    else
        printed = input.heap ? info_heaps_print(value) : info_print(value);
    json_decref(value);
    return printed ? 0 : EX_OSERR;
}

const struct command command_info = {
    .name = "info",
    .summary = "show the library, the machine, and what is missing on it",
    .description =
        "Shows the version and build of the library, processors, caches and NUMA nodes, memory and the limits on it, "
        "GPUs and which of them reach each other, CUDA's driver and compiler, launchers, and, for each "
        "faster path that this machine does not allow yet, the command "
        "that would provide it.\n\n"
        "To show the transports a group of threads is formed, which also runs their self-tests; EXPAR_TRANSPORTS and "
        "the other variables hold for it. The matrix says for each rank (row) and each PE (column) what the "
        "transport can do: m map, p put, g get, a atomics; a capital where it is the one that is used.\n\n"
        "--heap looks at the heaps of all processes that this user may look at, as their last allocation left them; "
        "ranks "
        "that are threads of one process have none that others can see. A heap may grow to its limit, has grown so far "
        "in chunks, and has that much memory behind it. Holes are free space between blocks: many of which none is "
        "large are fragmentation.",
    .options = options,
    .examples = examples,
    .run = run,
};
