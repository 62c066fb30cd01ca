/* SPDX-License-Identifier: Apache-2.0 */
/* Random delays for litmus tests: between two steps a rank goes on, yields, or sleeps for some microseconds, rarely for
 * a millisecond. One rank in four never sleeps: it runs ahead of the others. */
#ifndef TESTS_EP_HARNESS_HOLDUP_H
#define TESTS_EP_HARNESS_HOLDUP_H

#include "oracle/random.h"
#include <stdatomic.h>
#include <stdint.h>

/* One rank's delays. */
typedef struct holdup {
    uint64_t seed;
    int32_t sleeps;         /* of 256 steps, so many on average */
    _Atomic uint64_t steps; /* counted by all threads of the rank; order does not matter */
} holdup;

/* For so many ranks. */
void holdups_draw(holdup *holdups, int32_t ranks, int32_t sleeps, random_source *random);
/* A step of the rank whose holdup the context is. Any thread. */
void holdup_step(void *context);
/* Steps of all ranks of this process so far: a test sees by it that its hook is called. */
uint64_t holdup_count(void);

#endif
