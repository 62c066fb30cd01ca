/* SPDX-License-Identifier: Apache-2.0 */
/* Options of dispatch and combine that are rejected before ranks are there, and numbers that follow from the options.
   */
#include "base/shown.h"
#include "bench/frame/patterns.h"
#include "bench/frame/routing.h"
#include "bench/normal/mode.h"
#include "text.h"
#include <expar/info.h>
#include <sysexits.h>

static void check_routing(struct argp_state *state, struct bench_options *options)
{
    const char *name = options->routing;
    if (!routing_is_file(name) && !routing_is_known(name))
        argp_error(state,
                   "--routing '%s': uniform, zipf[:ALPHA], incast[:HOT,FRACTION], skew:RATIO, grouped, onehot or a "
                   "file ending in .npy is expected",
                   SHOWN(name));
    if (!routing_is_file(name) && !options->topk) options->topk = 8;
    if (!routing_is_file(name) && !options->experts)
        options->experts = (63 / options->num_ranks + 1) * options->num_ranks; /* 64, or the next multiple of N */
    struct routing_shape shape = {.num_ranks = options->num_ranks, .topk = options->topk, .experts = options->experts};
    char error[512];
    if (!routing_check(name, &shape, error, sizeof error)) argp_failure(state, EX_USAGE, 0, "%s", text_harmless(error));
    options->topk = shape.topk;
    options->experts = shape.experts;
}

void normal_gpus_check(struct argp_state *state, struct bench_options *options)
{
    int32_t gpus = 0;
    if (expar_cuda_get_driver(NULL, &gpus) != EXPAR_OK)
        argp_failure(state, 1, 0, "--device cuda: %s", expar_last_error());
    if (options->num_gpus > gpus)
        argp_failure(state, EX_USAGE, 0, "--gpus %d: there are %d GPUs", options->num_gpus, (int)gpus);
    if (!options->num_gpus) options->num_gpus = gpus;
    if (!options->num_ranks) options->num_ranks = options->num_gpus;
    if (options->num_gpus > options->num_ranks) options->num_gpus = options->num_ranks;
}

/* Checks the numbers of ranks and of GPUs. */
static void check_ranks(struct argp_state *state, struct bench_options *options)
{
    if (!options->cuda) {
        if (options->num_gpus)
            argp_failure(state, EX_USAGE, 0, "--gpus %d: only with --device cuda", options->num_gpus);
        if (!options->num_ranks) options->num_ranks = 8;
        return;
    }
    if (options->mpi) argp_failure(state, EX_USAGE, 0, "--mpi: the baseline runs on the CPU only");
    normal_gpus_check(state, options);
}

static void check_rows(struct argp_state *state, const struct bench_options *options)
{
    bool combines = !options->combine;
    for (int i = 0; i < options->num_dtypes; i++) {
        size_t bytes = expar_dtype_bytes(options->dtypes[i]), row_bytes = (size_t)options->hidden * bytes;
        combines |= bytes > 1;
        if (row_bytes % 16)
            argp_failure(state, EX_USAGE, 0, "--hidden %d: a row has %zu bytes, no multiple of 16", options->hidden,
                         row_bytes);
    }
    for (int i = 0; i < options->num_dtypes && bench_patterns_period(options); i++)
        if (options->dtypes[i] == EXPAR_F8E4M3 && options->hidden % 128)
            argp_failure(
                state, EX_USAGE, 0,
                "--hidden %d: with --pattern period callers code fp8 rows, by 128 elements; a multiple of 128 is "
                "expected",
                options->hidden);
    if (!combines && !options->dispatch && !options->layout)
        argp_failure(state, EX_USAGE, 0, "combine adds bf16, f16 or f32 rows, not fp8");
}

void normal_options_check(struct argp_state *state, struct bench_options *options)
{
    if (!options->dispatch && !options->combine && !options->layout) options->dispatch = options->combine = true;
    if (options->mpi && !options->dispatch && !options->combine)
        argp_failure(state, EX_USAGE, 0, "--mpi: the baseline is of dispatch and combine, not of layout");
    check_ranks(state, options);
    if (options->num_ranks % options->nodes)
        argp_failure(state, EX_USAGE, 0, "--nodes %d does not divide -n %d", options->nodes, options->num_ranks);
    check_routing(state, options);
    if (options->experts % options->num_ranks)
        argp_failure(state, EX_USAGE, 0, "--experts %d is no multiple of -n %d", options->experts, options->num_ranks);
    check_rows(state, options);
}
