/* SPDX-License-Identifier: Apache-2.0 */
/* place: what the benchmark of low-latency mode needs of a device beyond struct bench_device. place_cpu.c is the CPU's,
 * bench/gpu/ll.c that of GPUs. */
#ifndef EXPAR_BENCH_LOW_LATENCY_PLACE_H
#define EXPAR_BENCH_LOW_LATENCY_PLACE_H

#include "bench/frame/measure.h"
#include "bench/low_latency/results.h"

struct limit_way;  /* low_latency/limit.h */
struct ll_session; /* low_latency/session.h */

struct ll_place {
    /* Memory of this rank that all ranks reach, zero; bases[r]: that of rank r, as this rank names it. Collective; NULL
       on some rank after saying why not. */
    void *(*share)(const struct bench_world *world, size_t bytes, uint8_t **bases);
    /* Collective, unless not sound. NULL is allowed. */
    void (*unshare)(const struct bench_world *world, void *data, size_t bytes, bool sound);
    /* Memory of this rank, of which little is touched. NULL: there is none; NULL is allowed. */
    void *(*reserve)(const struct bench_world *world, size_t bytes);
    void (*unreserve)(const struct bench_world *world, void *data, size_t bytes);
    /* Threads of a rank, or SMs of a call, where none are given. */
    int (*default_workers)(const struct bench_world *world);
    /* Ways of the copy limit, none where calls of so many workers do not compare with them; a way's turns are made
       ready once the lists are whole; run is a contender's. */
    int (*num_ways)(int workers);
    bool (*way_open)(struct limit_way *way);
    bool (*way_run)(void *way);
    void (*way_close)(struct limit_way *way);
    /* The first list once, so many bytes of each of its copies. */
    bool (*way_copy)(struct limit_way *way, size_t bytes);
    /* Round trips of a flag, as in session.h. */
    void *(*trip_create)(const struct bench_world *world);
    void (*trip_free)(void *trip, bool sound);
    int (*trip_contenders)(void *trip, struct contender *contenders);
    /* The launch's time is in `result` already. */
    void (*trip_times)(const struct contender *contenders, struct ll_result *result);
    /* Sets whether the kernels of the session's buffer read clocks from now on, on this rank; false after saying why
       that cannot be. The moments of the last one that did, which is done; false: there are none. NULL: there are no
       kernels. */
    bool (*clocks)(const struct ll_session *session, bool wanted);
    bool (*moments)(const struct ll_session *session, struct ll_moments *out);
    /* The same of the last turn of a way of the copy limit; NULL: as above. */
    bool (*way_moments)(const struct limit_way *way, struct ll_moments *out);
    /* An empty launch, as a contender with the world; NULL: there are none. */
    bool (*launch)(void *world);
};
extern const struct ll_place ll_cpu;

#endif
