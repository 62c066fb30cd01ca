/* SPDX-License-Identifier: Apache-2.0 */
/* The options of the benchmark, and all checks that are possible before ranks exist. */
#include "base/shown.h"
#include "bench/bench.h"
#include "bench/frame/output.h"
#include "bench/frame/patterns.h"
#include "bench/frame/routing.h"
#include "bench/option_keys.h"
#include "bench/rma/rma.h"
#include "text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#define MAX_RANKS   1024
#define MAX_TOKENS  (INT64_C(1) << 20)
#define MAX_HIDDEN  (1 << 20)
#define MAX_ITERS   50000
#define MAX_THREADS 1024

void bench_options_init(struct bench_options *options)
{
    *options = (struct bench_options){.nodes = 1,
                                      .tokens = {256},
                                      .num_tokens = 1,
                                      .hidden = 7168,
                                      .dtypes = {EXPAR_BF16},
                                      .num_dtypes = 1,
                                      .num_workers = 1,
                                      .routing = "uniform",
                                      .iters = 50,
                                      .pairs = BENCH_PAIRS,
                                      .warmup = 5,
                                      .path = EXPAR_EP_PATH_AUTO,
                                      .patterns = BENCH_ISOLATED,
                                      .seed = 1,
                                      .started = time(NULL),
                                      .ll = {.exact = true, .reduced = true, .decode_phases = BENCH_WHOLE_AND_HOOKED},
                                      .rma = {.sizes_bytes = {8, 64, 512, 4096, 65536, 1048576}, .num_sizes = 6}};
    if (getloadavg(options->load, 3) != 3) options->load[0] = options->load[1] = options->load[2] = -1;
}

static int64_t number(struct argp_state *state, const char *option, const char *text, int64_t low, int64_t high)
{
    int64_t value = low;
    if (!text_to_int(text, low, high, &value))
        argp_error(state, "%s '%s': a number from %lld to %lld is expected", option, SHOWN(text), (long long)low,
                   (long long)high);
    return value;
}

/* ---- what was given ---------------------------------------------------------------------------------------------- */

/* Returns the bit of an option; 0 for a key that is none of ours. */
static uint64_t bit_of(int key)
{
    return key < KEY_NODES || key > KEY_TRANSPORTS ? 0 : UINT64_C(1) << (key - KEY_NODES);
}

static const char *name_of(int key)
{
    const struct argp_option *option = bench_option_table;
    while (option->key != key)
        option++;
    return option->name;
}

/* Rejects options that would have no effect. */
static void reject_given(struct argp_state *state, const struct bench_options *options, const int *keys, int count,
                         const char *why)
{
    for (int i = 0; i < count; i++)
        if (options->given & bit_of(keys[i])) argp_error(state, "--%s: %s", name_of(keys[i]), why);
}

static void reject_both(struct argp_state *state, const struct bench_options *options, int key, int other)
{
    if ((options->given & bit_of(key)) && (options->given & bit_of(other)))
        argp_error(state, "--%s and --%s: one of them is expected", name_of(key), name_of(other));
}

/* ---- --tokens ---------------------------------------------------------------------------------------------------- */

static void add_tokens(struct argp_state *state, struct bench_options *options, int64_t tokens)
{
    if (options->num_tokens == BENCH_MAX_SWEEP)
        argp_error(state, "--tokens: more than %d token counts", BENCH_MAX_SWEEP);
    options->tokens[options->num_tokens++] = tokens;
}

/* Parses one entry of the list: a number, or A..B, which stands for A, the powers of two between, and B. */
static void parse_tokens_entry(struct argp_state *state, struct bench_options *options, char *entry)
{
    char *dots = strstr(entry, "..");
    if (!dots) {
        add_tokens(state, options, number(state, "--tokens", entry, 0, MAX_TOKENS));
        return;
    }
    *dots = '\0';
    int64_t low = number(state, "--tokens", entry, 0, MAX_TOKENS);
    int64_t high = number(state, "--tokens", dots + 2, low, MAX_TOKENS), power = 1;
    add_tokens(state, options, low);
    for (; power < high; power *= 2)
        if (power > low) add_tokens(state, options, power);
    if (high > low) add_tokens(state, options, high);
}

/* Calls `add` for each entry of a list A,B,C. */
static void parse_list(struct argp_state *state, const char *option, const char *text,
                       void (*add)(struct argp_state *, struct bench_options *, char *))
{
    char copy[1024], *rest = copy, *entry;
    if (strlen(text) >= sizeof copy) argp_error(state, "%s: the list is too long", option);
    strncpy(copy, text, sizeof copy - 1);
    copy[sizeof copy - 1] = '\0';
    while ((entry = strsep(&rest, ",")))
        add(state, state->input, entry);
}

static void add_workers(struct argp_state *state, struct bench_options *options, const char *option, const char *entry)
{
    if (options->num_workers == BENCH_MAX_SWEEP) argp_error(state, "%s: more than %d numbers", option, BENCH_MAX_SWEEP);
    options->workers[options->num_workers++] = (int)number(state, option, entry, 1, MAX_THREADS);
}

static void add_threads(struct argp_state *state, struct bench_options *options, char *entry)
{
    add_workers(state, options, "--threads", entry);
}

static void add_sms(struct argp_state *state, struct bench_options *options, char *entry)
{
    add_workers(state, options, "--sms", entry);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Returns the index of `text` among the words divided by '|'. */
static int word(struct argp_state *state, const char *option, const char *text, const char *words)
{
    size_t length = strlen(text);
    int index = 0;
    for (const char *w = words; *w && length; index++) {
        size_t stop = strcspn(w, "|");
        if (stop == length && !strncmp(w, text, length)) return index;
        w += stop + (w[stop] == '|');
    }
    argp_error(state, "%s '%s': one of %s is expected", option, SHOWN(text), words);
    return 0;
}

static void add_dtype(struct argp_state *state, struct bench_options *options, char *entry)
{
    static const expar_dtype dtypes[] = {EXPAR_BF16, EXPAR_F16, EXPAR_F32, EXPAR_F8E4M3};
    if (options->num_dtypes == BENCH_MAX_DTYPES) argp_error(state, "--dtype: more than %d of them", BENCH_MAX_DTYPES);
    options->dtypes[options->num_dtypes++] = dtypes[word(state, "--dtype", entry, "bf16|f16|f32|fp8")];
}

static void add_format(struct argp_state *state, struct bench_options *options, char *entry)
{
    struct ll_options *ll = &options->ll;
    if (ll->num_formats == BENCH_MAX_FORMATS) argp_error(state, "--format: more than %d of them", BENCH_MAX_FORMATS);
    ll->formats[ll->num_formats++] = word(state, "--format", entry, ll_format_names);
}

static void parse_sum(struct argp_state *state, struct bench_options *options, const char *text)
{
    int index = word(state, "--sum", text, "exact|reduced|both");
    options->ll.exact = index != 1;
    options->ll.reduced = index != 0;
}

static void add_pattern(struct argp_state *state, struct bench_options *options, char *entry)
{
    const unsigned bit = 1U << word(state, "--pattern", entry, bench_pattern_words);
    if (bit > BENCH_PERIOD)
        options->all_patterns = true;
    else
        options->patterns |= bit;
}

static void parse_path(struct argp_state *state, struct bench_options *options, const char *text)
{
    if (!strcmp(text, "copy_engine"))
        argp_failure(state, EX_USAGE, 0, "--path copy_engine is not in this version; direct and queue are");
    int index = word(state, "--path", text, "auto|direct|queue|all");
    options->all_paths = index == 3;
    if (index < 3) options->path = (expar_ep_path)index;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && !strcmp(text + length - end_length, end);
}

/* Lets the name of the file decide where no option does: a table in a file of .json would be read by nothing. */
static void choose_format(struct bench_options *options)
{
    if (!options->output || options->given & (bit_of(KEY_JSON) | bit_of(KEY_CSV))) return;
    if (ends_with(options->output, ".json")) options->format = BENCH_JSON;
    if (ends_with(options->output, ".csv")) options->format = BENCH_CSV;
}

static void add_file(struct argp_state *state, struct bench_options *options, const char *file)
{
    if (options->num_files == BENCH_MAX_FILES) argp_error(state, "more than %d files", BENCH_MAX_FILES);
    options->files[options->num_files++] = file;
}

/* Rejects what has no place beside files of results. */
static void check_files(struct argp_state *state, const struct bench_options *options)
{
    const bool measures = options->dispatch || options->combine || options->layout || options->rma.wanted ||
                          options->ll.wanted || options->setup;
    if (!options->report) argp_error(state, "'%s': --report FILE is expected with files", SHOWN(options->files[0]));
    if (measures || options->num_ranks || options->given & ~bit_of(KEY_REPORT))
        argp_error(state,
                   "'%s': nothing is measured with files, so no operation and no option but --report is expected",
                   SHOWN(options->files[0]));
    bench_output_check(state, "--report", options->report);
}

static void parse_operation(struct argp_state *state, struct bench_options *options, const char *text)
{
    if (ends_with(text, ".json")) {
        add_file(state, options, text);
        return;
    }
    int index = word(state, "operation", text, "dispatch|combine|all|layout|rma|ll|setup");
    options->layout |= index == 3;
    options->rma.wanted |= index == 4;
    options->ll.wanted |= index == 5;
    options->setup |= index == 6;
    options->dispatch |= index == 0 || index == 2;
    options->combine |= index == 1 || index == 2;
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

static void check_given(struct argp_state *state, struct bench_options *options)
{
    static const int of_rma[] = {KEY_SIZES, KEY_OPS, KEY_TRANSPORTS}, of_cpu[] = {KEY_THREADS},
                     of_ll[] = {KEY_FORMAT, KEY_SUM, KEY_HOOK};
    static const int of_ep[] = {KEY_TOKENS,  KEY_HIDDEN, KEY_TOPK, KEY_EXPERTS, KEY_DTYPE,   KEY_ROUTING,
                                KEY_THREADS, KEY_SMS,    KEY_PATH, KEY_CACHED,  KEY_PATTERN, KEY_PAIRS};
    static const int of_normal[] = {KEY_PATH, KEY_CACHED}, of_gpu[] = {KEY_SMS}, with_kernels[] = {KEY_STAMPS},
                     drawn[] = {KEY_SEED};
    reject_both(state, options, KEY_JSON, KEY_CSV);
    reject_both(state, options, KEY_THREADS, KEY_SMS);
    bench_output_check(state, "--output", options->output);
    bench_output_check(state, "--report", options->report);
    choose_format(options);
    if (options->rma.wanted)
        reject_given(state, options, of_ep, COUNT(of_ep), "rma has none: it is of dispatch and combine");
    else
        reject_given(state, options, of_rma, COUNT(of_rma), "only with rma");
    if (options->setup) {
        reject_given(state, options, of_ep, COUNT(of_ep), "setup has none: its buffers have no limits");
        reject_given(state, options, drawn, COUNT(drawn), "setup has none: nothing is drawn");
    }
    if (options->ll.wanted)
        reject_given(state, options, of_normal, COUNT(of_normal), "ll has none");
    else
        reject_given(state, options, of_ll, COUNT(of_ll), "only with ll");
    if (options->ll.wanted && !options->cuda)
        reject_given(state, options, of_gpu, COUNT(of_gpu), "ll has none on the CPU, but --threads");
    if (!options->cuda)
        reject_given(state, options, with_kernels, COUNT(with_kernels), "only on GPUs: their kernels read clocks");
    if (options->cuda)
        reject_given(state, options, of_cpu, COUNT(of_cpu), "only on the CPU; --sms says how much of a GPU is used");
}

/* Sets the usual shapes of a decode. On GPUs all of them are measured quickly. */
static void usual_decodes(struct bench_options *options)
{
    options->num_tokens = 0;
    for (int64_t tokens = 1; tokens <= 256; tokens *= 2)
        options->tokens[options->num_tokens++] = tokens;
}

static void check(struct argp_state *state, struct bench_options *options)
{
    static const int of_dispatch[] = {KEY_CACHED}, of_combine[] = {KEY_SUM}, of_pairs[] = {KEY_PAIRS};
    if (options->num_files) {
        check_files(state, options);
        return;
    }
    check_given(state, options);
    if (options->ll.wanted && options->cuda && !(options->given & bit_of(KEY_TOKENS))) usual_decodes(options);
    if (options->setup)
        setup_options_check(state, options);
    else if (options->rma.wanted)
        rma_options_check(state, options);
    else
        normal_options_check(state, options);
    if (options->ll.wanted) ll_options_check(state, options);
    /* Here the operations are known, also if none was given. */
    if (!options->rma.wanted && !options->dispatch)
        reject_given(state, options, of_dispatch, COUNT(of_dispatch), "only with dispatch");
    if (options->ll.wanted && !options->combine)
        reject_given(state, options, of_combine, COUNT(of_combine), "only with combine");
    if (options->cuda && !(options->given & bit_of(KEY_CACHED))) options->cached = BENCH_BOTH;
    if (!options->rma.wanted && !options->setup) bench_patterns_check(state, options);
    if (!bench_patterns_period(options))
        reject_given(state, options, of_pairs, COUNT(of_pairs), "only with --pattern period");
}

/* Parses options about the tokens and rows to measure. */
static error_t parse_subject(int key, char *arg, struct argp_state *state)
{
    struct bench_options *options = state->input;
    switch (key) {
    case KEY_TOKENS:
        options->num_tokens = 0;
        parse_list(state, "--tokens", arg, parse_tokens_entry);
        return 0;
    case KEY_HIDDEN:
        options->hidden = (int)number(state, "--hidden", arg, 1, MAX_HIDDEN);
        return 0;
    case KEY_TOPK:
        options->topk = (int)number(state, "--topk", arg, 1, ROUTING_MAX_TOPK);
        return 0;
    case KEY_EXPERTS:
        options->experts = (int)number(state, "--experts", arg, 1, ROUTING_MAX_EXPERTS);
        return 0;
    case KEY_DTYPE:
        options->num_dtypes = 0;
        parse_list(state, "--dtype", arg, add_dtype);
        return 0;
    case KEY_FORMAT:
        options->ll.num_formats = 0;
        parse_list(state, "--format", arg, add_format);
        return 0;
    case KEY_ROUTING:
        options->routing = arg;
        return 0;
    case KEY_SEED:
        options->seed = (uint64_t)number(state, "--seed", arg, 0, INT64_MAX);
        return 0;
    case ARGP_KEY_ARG:
        parse_operation(state, options, arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Parses options about ranks and repetitions. */
static error_t parse_manner(int key, char *arg, struct argp_state *state)
{
    struct bench_options *options = state->input;
    switch (key) {
    case 'n':
        options->num_ranks = (int)number(state, "-n", arg, 1, MAX_RANKS);
        return 0;
    case KEY_NODES:
        options->nodes = (int)number(state, "--nodes", arg, 1, MAX_RANKS);
        return 0;
    case KEY_DEVICE:
        options->cuda = word(state, "--device", arg, "cpu|cuda") == 1;
        return 0;
    case KEY_GPUS:
        options->num_gpus = (int)number(state, "--gpus", arg, 1, MAX_RANKS);
        return 0;
    case KEY_ITERS:
        options->iters = (int)number(state, "--iters", arg, 1, MAX_ITERS);
        return 0;
    case KEY_WARMUP:
        options->warmup = (int)number(state, "--warmup", arg, 0, MAX_ITERS);
        return 0;
    case KEY_THREADS:
    case KEY_SMS:
        options->num_workers = 0;
        if (key == KEY_SMS)
            parse_list(state, "--sms", arg, add_sms);
        else
            parse_list(state, "--threads", arg, add_threads);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Parses options that choose the calls and their order. */
static error_t parse_calls(int key, char *arg, struct argp_state *state)
{
    struct bench_options *options = state->input;
    switch (key) {
    case KEY_PATH:
        parse_path(state, options, arg);
        return 0;
    case KEY_CACHED:
        options->cached = (enum bench_cached)word(state, "--cached", arg ? arg : "yes", "no|yes|both");
        return 0;
    case KEY_PATTERN:
        options->patterns = 0;
        options->all_patterns = false;
        parse_list(state, "--pattern", arg, add_pattern);
        return 0;
    case KEY_PAIRS:
        options->pairs = (int)number(state, "--pairs", arg, 2, MAX_ITERS);
        return 0;
    case KEY_STAMPS:
        options->unstamped = word(state, "--stamps", arg, "no|yes") == 0;
        return 0;
    case KEY_SUM:
        parse_sum(state, options, arg);
        return 0;
    case KEY_HOOK:
        options->ll.phases = (enum bench_phases)word(state, "--hook", arg ? arg : "yes", "no|yes|both");
        options->ll.decode_phases = options->ll.phases;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Appends a word to the command, in quotes where a shell would need them. */
static void keep_word(struct bench_options *options, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%";
    const size_t used = strlen(options->command), rest = sizeof options->command - used;
    const bool quoted = !*word || word[strspn(word, plain)];
    snprintf(options->command + used, rest, quoted ? " '%s'" : " %s", word);
}

static void keep_command(const struct argp_state *state, struct bench_options *options)
{
    snprintf(options->command, sizeof options->command, "expar bench");
    for (int i = 1; i < state->argc; i++)
        keep_word(options, state->argv[i]);
}

error_t bench_options_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_options *options = state->input;
    error_t error;
    options->given |= bit_of(key);
    switch (key) {
    case KEY_JSON:
        options->format = BENCH_JSON;
        return 0;
    case KEY_CSV:
        options->format = BENCH_CSV;
        return 0;
    case KEY_OUTPUT:
        options->output = arg;
        return 0;
    case KEY_REPORT:
        options->report = arg;
        return 0;
    case KEY_MPI:
        options->mpi = true;
        return 0;
    case KEY_SIZES:
        rma_parse_sizes(state, &options->rma, arg);
        return 0;
    case KEY_OPS:
        options->rma.ops = arg;
        return 0;
    case KEY_TRANSPORTS:
        options->rma.transports = arg;
        return 0;
    case ARGP_KEY_INIT:
        keep_command(state, options);
        return 0;
    case ARGP_KEY_END:
        check(state, options);
        return 0;
    default:
        error = parse_subject(key, arg, state);
        if (error == ARGP_ERR_UNKNOWN) error = parse_manner(key, arg, state);
        return error == ARGP_ERR_UNKNOWN ? parse_calls(key, arg, state) : error;
    }
}
