/* SPDX-License-Identifier: Apache-2.0 */
/* Round trips of a flag between ranks 0 and 1, or, where there are several nodes, the first ranks of two: the cost of
 * an agreement between two ranks. A turn is many of them, after one barrier; the other ranks have nothing to do
 * meanwhile. Bare stores and loads stay inside a node. */
#include "bench/low_latency/mode.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define TRIPS 64   /* in a turn */
#define SPINS 2000 /* before a bare wait yields, where each rank can have a core */

struct ll_trip {
    const struct bench_world *world;
    uint64_t *signal; /* [2] in symmetric memory: the library's, and the bare one */
    int other;        /* than rank 0 */
    /* Written by the other one of the two (release), read by the owner (acquire): how many round trips have begun. It
       carries no data, so nothing else has to be ordered. */
    _Atomic uint64_t *own, *peers; /* peers NULL: on another node */
    uint64_t trips, raw_trips;
    unsigned spins;
};

void *ll_trip_create(const struct bench_world *world)
{
    struct ll_trip *trip = calloc(1, sizeof *trip);
    void *words = NULL;
    const size_t bytes = 2 * 64; /* a line each */
    bool good = trip && bench_good(world, expar_calloc(world->group, 1, bytes, &words));
    if (good) {
        const int other = world->nodes > 1 ? world->each : 1, peer = world->rank == 0 ? other : 0;
        *trip = (struct ll_trip){.world = world, .signal = words, .other = other};
        trip->spins = world->size > sysconf(_SC_NPROCESSORS_ONLN) ? 0 : SPINS;
        trip->own = (_Atomic uint64_t *)(trip->signal + 8);
        trip->peers = expar_ptr(world->group, trip->signal + 8, peer);
        good = trip->peers || world->nodes > 1 || bench_complain(world, "no pointer to the other rank's memory");
    }
    if (bench_all_true(world, good)) return trip;
    free(trip);
    return NULL;
}

void ll_trip_free(void *self, bool sound)
{
    struct ll_trip *trip = self;
    if (!trip) return;
    if (sound) bench_good(trip->world, expar_free(trip->world->group, trip->signal));
    free(trip);
}

static bool takes_part(const struct ll_trip *trip)
{
    return trip->world->rank == 0 || trip->world->rank == trip->other;
}

static bool send_signal(struct ll_trip *trip, uint64_t value)
{
    expar_group *group = trip->world->group;
    return bench_good(trip->world, expar_put_signal(group, trip->signal + 1, trip->signal + 1, 0, trip->signal, value,
                                                    EXPAR_SIGNAL_SET, trip->world->rank == 0 ? trip->other : 0));
}

static bool await_signal(struct ll_trip *trip, uint64_t value)
{
    expar_group *group = trip->world->group;
    return bench_good(trip->world, expar_signal_wait_until(group, trip->signal, EXPAR_CMP_GE, value, NULL));
}

static bool trip_run(void *context)
{
    struct ll_trip *trip = context;
    if (!takes_part(trip)) return true;
    for (int i = 0; i < TRIPS; i++) {
        const uint64_t value = ++trip->trips;
        if (trip->world->rank == 0 && (!send_signal(trip, value) || !await_signal(trip, value))) return false;
        if (trip->world->rank != 0 && (!await_signal(trip, value) || !send_signal(trip, value))) return false;
    }
    return true;
}

static void await_word(const struct ll_trip *trip, uint64_t value)
{
    for (unsigned turn = 0; atomic_load_explicit(trip->own, memory_order_acquire) < value; turn++) {
        if (turn >= trip->spins) sched_yield();
#if __has_builtin(__builtin_ia32_pause)
        __builtin_ia32_pause();
#endif
    }
}

static bool trip_run_raw(void *context)
{
    struct ll_trip *trip = context;
    for (int i = 0; i < TRIPS && takes_part(trip); i++) {
        const uint64_t value = ++trip->raw_trips;
        if (trip->world->rank != 0) await_word(trip, value);
        atomic_store_explicit(trip->peers, value, memory_order_release);
        if (trip->world->rank == 0) await_word(trip, value);
    }
    return true;
}

/* Appends the contenders. A turn's time goes from rank 0's start to its end. */
int ll_trip_contenders(void *trip, struct contender *contenders)
{
    const struct ll_trip *self = trip;
    const bool untimed = self->world->rank != 0;
    contenders[0] = (struct contender){.run = trip_run, .context = trip, .untimed = untimed};
    if (self->world->nodes > 1) return 1;
    contenders[1] = (struct contender){.run = trip_run_raw, .context = trip, .untimed = untimed};
    return 2;
}

void ll_trip_times(const struct contender *contenders, struct bench_result *result)
{
    const struct ll_trip *trip = contenders[0].context;
    result->has_trip = true;
    result->trip_us = contenders[0].times.median_us / TRIPS;
    result->has_raw_trip = trip->world->nodes == 1;
    if (result->has_raw_trip) result->raw_trip_us = contenders[1].times.median_us / TRIPS;
}
