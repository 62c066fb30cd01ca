/* SPDX-License-Identifier: Apache-2.0 */
/* options: what can be refused of low-latency mode before ranks are there, behind what dispatch and combine refuse. */
#ifndef EXPAR_BENCH_LOW_LATENCY_OPTIONS_H
#define EXPAR_BENCH_LOW_LATENCY_OPTIONS_H

#include "bench/frame/options.h"
#include <argp.h>

/* For bench/options.c: refuses what is wrong, as argp does, and fills in what was not given. */
void ll_options_check(struct argp_state *state, struct bench_options *options);

#endif
