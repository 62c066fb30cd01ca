/* SPDX-License-Identifier: Apache-2.0 */
/* Options of low-latency mode that are rejected before ranks are there. */
#include "bench/low_latency/mode.h"
#include <sysexits.h>

#define MOST_TOKENS 65535 /* of a rank's buffer */
#define GROUP       128   /* elements that share a scale */

static void check_shape(struct argp_state *state, const struct bench_options *options)
{
    if (options->topk > LL_MOST_ROWS)
        argp_failure(state, EX_USAGE, 0, "--topk %d: ll takes at most %d", options->topk, LL_MOST_ROWS);
    for (int i = 0; i < options->num_tokens; i++)
        if (options->tokens[i] > MOST_TOKENS)
            argp_failure(state, EX_USAGE, 0, "--tokens %lld: ll takes at most %d", (long long)options->tokens[i],
                         MOST_TOKENS);
    for (int i = 0; i < options->num_dtypes; i++)
        if (options->dtypes[i] == EXPAR_F8E4M3)
            argp_failure(state, EX_USAGE, 0, "--dtype fp8: ll takes bf16, f16 or f32 rows; --format fp8 codes them");
}

static void check_formats(struct argp_state *state, const struct bench_options *options)
{
    const struct ll_options *ll = &options->ll;
    bool any = ll->num_formats == 0;
    for (int i = 0; i < ll->num_formats; i++) {
        const struct ll_format *format = &ll_formats[ll->formats[i]];
        any |= (options->dispatch && format->dispatched) || (options->combine && format->combined);
        if (!format->plain && options->hidden % GROUP)
            argp_failure(state, EX_USAGE, 0, "--hidden %d: --format %s codes groups of %d", options->hidden,
                         format->name, GROUP);
        if (format->wire == EXPAR_LL_FORMAT_LOGFMT && options->combine && !ll->exact)
            argp_failure(state, EX_USAGE, 0, "--format logfmt: of exact sums only");
    }
    if (!any)
        argp_failure(state, EX_USAGE, 0, "--format %s: %s", ll_formats[ll->formats[0]].name,
                     options->dispatch ? "is not dispatched" : "is not combined");
}

void ll_options_check(struct argp_state *state, const struct bench_options *options)
{
    if (options->layout) argp_failure(state, EX_USAGE, 0, "layout: ll has none");
    check_shape(state, options);
    check_formats(state, options);
}
