/* SPDX-License-Identifier: Apache-2.0 */
/* Litmus: the protocol of units, read words and halves is right by its order alone.
 *
 * Each rank is held back at random between any two steps: not at all, for a yield, for some microseconds, rarely for a
 * millisecond. Meanwhile random scripts run whose ranks are refused, differ, and make third calls. Every result must be
 * the oracle's. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/script.h"
#include "oracle/unit.h"
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define OPS_PER_SCRIPT 24
#define ROUNDS         1200
#define MAX_RANKS      8

/* One rank's delays. */
typedef struct holdup {
    uint64_t seed;
    _Atomic uint64_t steps; /* counted by all threads of the rank; order does not matter */
} holdup;

static _Atomic uint64_t delays; /* of all ranks: that the hook is there */

static void hold_back(void *context)
{
    holdup *self = context;
    uint64_t step = atomic_fetch_add_explicit(&self->steps, 1, memory_order_relaxed);
    random_source random = random_start(self->seed + step * 977);
    int64_t choice = random_between(&random, 0, 255);
    atomic_fetch_add_explicit(&delays, 1, memory_order_relaxed);
    if (choice < 128) return;
    if (choice < 244 || (self->seed & 3) == 0) { /* one rank in four never sleeps: it runs ahead of the others */
        sched_yield();
        return;
    }
    long most_ns = choice == 255 ? 1000000 : 40000;
    const struct timespec moment = {0, (long)random_between(&random, 1000, most_ns)};
    nanosleep(&moment, NULL);
}

static void install(void *context, expar_ll *ll, int32_t rank)
{
    hold_install(ll, hold_back, (holdup *)context + rank);
}

static bool play_script(uint64_t seed)
{
    const lowlat_script_plan plan = {.kind = RANKS_THREADS, .num_ops = OPS_PER_SCRIPT, .with_trouble = true};
    random_source random = random_start(~seed);
    holdup holdups[MAX_RANKS];
    for (int32_t r = 0; r < MAX_RANKS; r++) {
        holdups[r].seed = random_bits(&random);
        atomic_init(&holdups[r].steps, 0);
    }
    lowlat_script *s = lowlat_script_make(seed, &plan);
    s->prepare = install;
    s->prepare_context = holdups;
    bool passed = ranks_run(&s->ranks, lowlat_script_play, s);
    if (!passed) lowlat_script_print(s);
    lowlat_script_free(s);
    return passed;
}

/* A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 plays it alone. */
static void test_delays_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("low-latency litmus");
    int64_t rounds = random_test_rounds(ROUNDS);
    for (int64_t done = 0; done < rounds; done += OPS_PER_SCRIPT)
        assert_true(play_script(seed++));
    assert_true(atomic_load(&delays) > 0);
}

int main(void)
{
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delays_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
