/* SPDX-License-Identifier: Apache-2.0 */
/* Delays by seed, rank and step: a replayed seed holds the same steps back. */
#include "ep/harness/holdup.h"

#include <sched.h>
#include <time.h>

static _Atomic uint64_t steps_of_all;

void holdups_draw(holdup *holdups, int32_t ranks, int32_t sleeps, random_source *random)
{
    for (int32_t r = 0; r < ranks; r++) {
        holdups[r].seed = random_bits(random);
        holdups[r].sleeps = sleeps;
        atomic_init(&holdups[r].steps, 0);
    }
}

void holdup_step(void *context)
{
    holdup *self = context;
    uint64_t step = atomic_fetch_add_explicit(&self->steps, 1, memory_order_relaxed);
    random_source random = random_start(self->seed + step * 977);
    int64_t choice = random_between(&random, 0, 255);
    atomic_fetch_add_explicit(&steps_of_all, 1, memory_order_relaxed);
    if (choice < 128) return;
    if (choice < 256 - self->sleeps || (self->seed & 3) == 0) {
        sched_yield();
        return;
    }
    long most_ns = choice == 255 ? 1000000 : 40000;
    const struct timespec moment = {0, (long)random_between(&random, 1000, most_ns)};
    nanosleep(&moment, NULL);
}

uint64_t holdup_count(void)
{
    return atomic_load_explicit(&steps_of_all, memory_order_relaxed);
}
