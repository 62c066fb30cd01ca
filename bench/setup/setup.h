/* SPDX-License-Identifier: Apache-2.0 */
/* setup: measures the time until ranks have a group, and a buffer without limits.
 *
 * Called through bench/bench.h (setup_run, setup_options_check); calls the public interface of the library only.
 *
 *   run.c      makes, uses once, and destroys the objects, in turns
 *   report.c   JSON, CSV, table */
#ifndef EXPAR_BENCH_SETUP_SETUP_H
#define EXPAR_BENCH_SETUP_SETUP_H

#include "bench/frame/measure.h"

struct setup_result {
    const char *what;
    struct bench_times times;
    bool verified; /* the objects worked on all ranks */
};

/* Prints the results. False: memory ran out. */
bool setup_report(const struct bench_world *world, const struct bench_options *options,
                  const struct setup_result *results, int count);

#endif
