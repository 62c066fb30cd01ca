/* SPDX-License-Identifier: Apache-2.0 */
/* printed: `expar bench --json` for tests, as users run it. */
#ifndef TESTS_BENCH_FRAME_PRINTED_H
#define TESTS_BENCH_FRAME_PRINTED_H

#include <jansson.h>
#include <stdint.h>

/* Arguments of a case that is soon done. */
#define SMALL " --hidden 64 --topk 4 --experts 8 --iters 3 --warmup 1 "

/* Returns the program's output with these arguments; it must succeed. The caller drops it (json_decref). */
json_t *results_of(const char *arguments);
const json_t *results_list(const json_t *json);
/* Members that must be there. */
const char *results_text(const json_t *object, const char *name);
double results_real(const json_t *object, const char *name);
/* Sums up a member, "bytes" or "messages", of the links of a class; NULL: of all. */
int64_t results_links(const json_t *result, const char *class, const char *name);
/* Members of a result of --pattern period make sense. */
void results_assert_period(const json_t *result);
/* Times, fractions and the result of verification make sense. */
void results_assert_sound(const json_t *result);

#endif
