/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers for tests: our own generator, so that a printed seed gives the same test on every machine.
 *
 * EXPAR_TEST_SEED replays a run, EXPAR_TEST_ROUNDS sets how many rounds the randomised tests take. */
#ifndef TESTS_ORACLE_RANDOM_H
#define TESTS_ORACLE_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct random_source {
    uint64_t state;
} random_source;

random_source random_start(uint64_t seed);
uint64_t random_bits(random_source *source);
/* low … high, both included. */
int64_t random_between(random_source *source, int64_t low, int64_t high);
/* True once in `chances`. */
bool random_once_in(random_source *source, int64_t chances);
/* [0, 1) */
double random_unit(random_source *source);

/* EXPAR_TEST_SEED, else a new one; printed with the name of the test either way. */
uint64_t random_test_seed(const char *test);
/* EXPAR_TEST_ROUNDS, else `fallback`. */
int64_t random_test_rounds(int64_t fallback);
/* The count that was given as `what`. Ends the program when it is no count: no round at all would pass. */
int64_t random_count(const char *what, const char *text);

#endif
