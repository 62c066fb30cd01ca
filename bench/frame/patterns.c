/* SPDX-License-Identifier: Apache-2.0 */
/* Names of patterns, and the rejection of those that do not fit the other options. */
#include "bench/frame/patterns.h"
#include "bench/frame/json.h"

#define NUM_PATTERNS 5

const char bench_pattern_words[] = "isolated|steady|layer|decode|period|all";

static const char *const names[NUM_PATTERNS] = {"isolated", "steady", "layer", "decode", "period"};

const char *bench_pattern_name(enum bench_pattern pattern)
{
    int index = 0;
    while (1U << index != (unsigned)pattern)
        index++;
    return names[index];
}

/* Rejects each pattern of `wrong` that was asked for. */
static void reject(struct argp_state *state, const struct bench_options *options, unsigned wrong, const char *expected)
{
    for (int i = 0; i < NUM_PATTERNS; i++)
        if (options->patterns & wrong & 1U << i) argp_error(state, "--pattern '%s': %s", names[i], expected);
}

static bool adds_rows(const struct bench_options *options)
{
    for (int i = 0; i < options->num_dtypes; i++)
        if (expar_dtype_bytes(options->dtypes[i]) > 1) return true;
    return false;
}

void bench_patterns_check(struct argp_state *state, struct bench_options *options)
{
    const bool ll = options->ll.wanted;
    const unsigned of_all = BENCH_ISOLATED | BENCH_STEADY | (ll ? BENCH_DECODE : BENCH_LAYER);
    const unsigned of_mode = of_all | BENCH_PERIOD, loops = ~(unsigned)BENCH_ISOLATED;
    const unsigned pairs = BENCH_LAYER | BENCH_DECODE | BENCH_PERIOD;
    const bool both = options->dispatch && options->combine;
    if (options->all_patterns) options->patterns = both && adds_rows(options) ? of_all : of_all & ~pairs;
    reject(state, options, ~of_mode,
           ll ? "with ll one of isolated|steady|decode|period|all is expected"
              : "without ll one of isolated|steady|layer|period|all is expected");
    if (!both) reject(state, options, pairs, "both operations are expected, dispatch and combine");
    const unsigned added = ll ? pairs : pairs & ~(unsigned)BENCH_PERIOD; /* callers code rows of a period as fp8 */
    if (!adds_rows(options)) reject(state, options, added, "a dtype that combine adds is expected, not fp8");
    if (options->mpi) reject(state, options, loops, "with --mpi isolated is expected, as the baseline's calls are");
    if (options->layout && !(options->patterns & BENCH_ISOLATED))
        reject(state, options, loops, "isolated is expected beside it for layout, a difference of isolated calls");
}

bool bench_patterns_loop(const struct bench_options *options)
{
    return (options->patterns & ~(unsigned)BENCH_ISOLATED) != 0;
}

bool bench_patterns_period(const struct bench_options *options)
{
    return (options->patterns & BENCH_PERIOD) != 0;
}

json_t *bench_patterns_json(const struct bench_options *options)
{
    json_t *list = json_array();
    for (int i = 0; i < NUM_PATTERNS; i++)
        if (options->patterns & 1U << i) json_array_append_new(list, json_string(names[i]));
    return bench_json_one_or_list(list);
}
