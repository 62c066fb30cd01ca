/* SPDX-License-Identifier: Apache-2.0 */
/* patterns: how the measured calls follow each other (--pattern).
 *
 *   isolated  one call at a time: all ranks begin it together, and it ends before the next one begins
 *   steady    calls of one kind back to back, with outputs that are released at once and rows of the caller's own
 *   layer     a dispatch with a handle, work on its rows, and the combine of these rows, back to back
 *   decode    a low-latency dispatch and its combine, back to back
 *   period    a dispatch and its combine, back to back, with a moment noted at each (frame/period.h)
 *
 * All but isolated are what an engine gets. They are measured by loops (frame/loop.h), and period by chains. "all" is
 * all of a mode but period. */
#ifndef EXPAR_BENCH_FRAME_PATTERNS_H
#define EXPAR_BENCH_FRAME_PATTERNS_H

#include "bench/frame/options.h"
#include <argp.h>
#include <jansson.h>

/* Words of the option, divided by '|'. A word has the index of its bit in enum bench_pattern; the last one is "all". */
extern const char bench_pattern_words[];
/* Returns the word of one pattern. */
const char *bench_pattern_name(enum bench_pattern pattern);
/* Replaces "all" by the patterns of the mode, and rejects those that the mode does not have. bench/options.c calls
   it. */
void bench_patterns_check(struct argp_state *state, struct bench_options *options);
/* True when loops are measured: reports have columns for them then. */
bool bench_patterns_loop(const struct bench_options *options);
/* True when chains of pairs are measured. */
bool bench_patterns_period(const struct bench_options *options);
/* Returns the patterns that are measured: one word, or a list. */
json_t *bench_patterns_json(const struct bench_options *options);

#endif
