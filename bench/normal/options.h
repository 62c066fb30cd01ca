/* SPDX-License-Identifier: Apache-2.0 */
/* options: what can be refused of dispatch and combine before ranks are there. */
#ifndef EXPAR_BENCH_NORMAL_OPTIONS_H
#define EXPAR_BENCH_NORMAL_OPTIONS_H

#include "bench/frame/options.h"
#include <argp.h>

/* For bench/options.c: refuses what is wrong, as argp does, and fills in what was not given. */
void ep_options_check(struct argp_state *state, struct bench_options *options);

#endif
