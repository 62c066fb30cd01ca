/* SPDX-License-Identifier: Apache-2.0 */
/* capture: what the benchmark on GPUs prints, in this process. */
#ifndef TESTS_BENCH_GPU_CAPTURE_H
#define TESTS_BENCH_GPU_CAPTURE_H

#include "bench/bench.h"
#include <jansson.h>

/* Runs with stream `fd` kept in a file; what it held is the caller's to free. */
char *capture(int fd, const struct bench_options *options, int *code);
/* The JSON of a run that must succeed; the caller drops it. */
json_t *capture_json(const struct bench_options *options);

#endif
