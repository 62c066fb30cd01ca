/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `expar bench rma`: sizes, operations, transports. */
#include "base/shown.h"
#include "bench/normal/mode.h"
#include "bench/rma/rma.h"
#include "text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((int64_t)64 << 20)

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Parses a number, followed by K or M for 2^10 or 2^20. */
static int64_t size_of(struct argp_state *state, const char *text)
{
    int64_t bytes = 1, unit = 1;
    size_t length = strlen(text);
    char digits[32];
    if (length > 1 && (text[length - 1] == 'K' || text[length - 1] == 'M'))
        unit = text[--length] == 'K' ? 1 << 10 : 1 << 20;
    snprintf(digits, sizeof digits, "%.*s", (int)length, text);
    if (length >= sizeof digits || !text_to_int(digits, 1, MAX_BYTES / unit, &bytes))
        argp_error(state, "--sizes '%s': bytes from 1 to 64M are expected", SHOWN(text));
    return bytes * unit;
}

static void add_size(struct argp_state *state, struct rma_options *options, int64_t bytes)
{
    if (options->num_sizes == BENCH_MAX_SIZES) argp_error(state, "--sizes: more than %d sizes", BENCH_MAX_SIZES);
    options->sizes_bytes[options->num_sizes++] = (size_t)bytes;
}

/* Adds a size, or A..B: A, the powers of two between, and B. */
static void add_entry(struct argp_state *state, struct rma_options *options, char *entry)
{
    char *dots = strstr(entry, "..");
    if (dots) *dots = '\0';
    int64_t low = size_of(state, entry), high = dots ? size_of(state, dots + 2) : low, power = 1;
    if (high < low) argp_error(state, "--sizes: a range goes from the smaller to the larger one");
    add_size(state, options, low);
    for (; power < high; power *= 2)
        if (power > low) add_size(state, options, power);
    if (high > low) add_size(state, options, high);
}

void rma_parse_sizes(struct argp_state *state, struct rma_options *options, const char *text)
{
    char copy[512], *rest = copy, *entry;
    if (strlen(text) >= sizeof copy) argp_error(state, "--sizes: the list is too long");
    strncpy(copy, text, sizeof copy - 1);
    copy[sizeof copy - 1] = '\0';
    options->num_sizes = 0;
    while ((entry = strsep(&rest, ",")))
        add_entry(state, options, entry);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

bool rma_list_has(const char *list, const char *name)
{
    size_t length = strlen(name);
    while (*list) {
        size_t stop = strcspn(list, ",");
        if (stop == length && !strncmp(list, name, length)) return true;
        list += stop + (list[stop] == ',');
    }
    return false;
}

bool rma_wants(const struct rma_options *options, const struct rma_kind *kind)
{
    if (!options->ops) return true;
    return rma_list_has(options->ops, kind->name) || (kind->group && rma_list_has(options->ops, kind->group));
}

/* Writes all words for operations, with commas between them: names, and before the first of a group the group's
   name. */
static const char *op_words(char *text, size_t bytes)
{
    size_t used = 0;
    const char *group = NULL;
    text[0] = '\0';
    for (int i = 0; i < rma_num_kinds; i++) {
        const struct rma_kind *kind = &rma_kinds[i];
        bool opens = kind->group && (!group || strcmp(group, kind->group) != 0);
        if (opens && used < bytes) used += (size_t)snprintf(text + used, bytes - used, "%s,", kind->group);
        bool again = i > 0 && strcmp(kind[-1].name, kind->name) == 0; /* by another measure */
        if (!again && used < bytes) used += (size_t)snprintf(text + used, bytes - used, "%s,", kind->name);
        group = kind->group;
    }
    text[strlen(text) - 1] = '\0';
    return text;
}

/* Checks a list. known: its possible words, with commas. */
static void check_list(struct argp_state *state, const char *option, const char *list, const char *known)
{
    char name[64];
    if (list && !*list) argp_error(state, "%s '': expected one or more of %s", option, known);
    for (const char *at = list; at && *at;) {
        size_t stop = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)stop, at);
        if (stop >= sizeof name || !rma_list_has(known, name))
            argp_error(state, "%s: '%s' is not known; expected one or more of %s", option, SHOWN(name), known);
        at += stop + (at[stop] == ',');
    }
}

void rma_options_check(struct argp_state *state, struct bench_options *options)
{
    char ops[256];
    if (!options->num_ranks) options->num_ranks = 2;
    if (options->dispatch || options->combine || options->layout)
        argp_error(state, "rma is measured by itself: its results are of another kind");
    if (options->mpi) argp_error(state, "--mpi is for dispatch, combine and ll");
    if (options->num_gpus && !options->cuda) argp_error(state, "--gpus: only with --device cuda");
    if (options->cuda && options->report)
        argp_error(state, "--report: rma on GPUs has none; expected --json, --csv or --output");
    if (options->cuda) normal_gpus_check(state, options);
    if (options->num_ranks < 2) argp_error(state, "-n %d: rma needs 2 ranks or more", options->num_ranks);
    if (options->num_ranks % options->nodes)
        argp_error(state, "--nodes %d does not divide -n %d", options->nodes, options->num_ranks);
    check_list(state, "--ops", options->rma.ops,
               options->cuda ? "put,get,put_signal,stream_put,commands" : op_words(ops, sizeof ops));
    check_list(state, "--transports", options->rma.transports,
               options->cuda ? "mapped,gda,proxy" : "p2p,fabric,gda,auto");
    if (options->nodes > 1 && options->rma.transports && rma_list_has(options->rma.transports, "mapped"))
        argp_error(state, "--transports mapped: it reaches ranks of one node; --nodes %d needs gda or proxy",
                   options->nodes);
    if (options->nodes > 1 && options->rma.transports && rma_list_has(options->rma.transports, "p2p"))
        argp_error(state, "--transports p2p: it reaches ranks of one node; --nodes %d needs fabric, gda or auto",
                   options->nodes);
}
