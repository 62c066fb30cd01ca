/* SPDX-License-Identifier: Apache-2.0 */
/* output: where results go. They are printed on stdout, or into a file that is replaced as a whole. */
#ifndef EXPAR_BENCH_FRAME_OUTPUT_H
#define EXPAR_BENCH_FRAME_OUTPUT_H

#include "bench/frame/options.h"
#include <argp.h>
#include <jansson.h>

/* Rejects a file that cannot be made, before anything is measured. NULL is allowed. */
void bench_output_check(struct argp_state *state, const char *option, const char *file);

/* One kind of results. */
struct bench_printer {
    json_t *(*object)(const void *results); /* all of them as JSON; NULL: memory ran out */
    bool (*print)(const void *results);     /* as CSV, or as tables, as the options say */
    const void *results;
};
/* Prints as the options say, and writes the report. False after saying on stderr what could not be written. */
bool bench_output(const struct bench_options *options, const struct bench_printer *printer);

/* Writes the report of options->files. Returns the exit code. */
int bench_output_files(const struct bench_options *options);

#endif
