/* SPDX-License-Identifier: Apache-2.0 */
/* place: what the benchmark of low-latency mode needs of a device beyond struct bench_device. place_cpu.c is the CPU's,
 * bench/gpu/ll.c that of GPUs. */
#ifndef EXPAR_BENCH_LOW_LATENCY_PLACE_H
#define EXPAR_BENCH_LOW_LATENCY_PLACE_H

#include "bench/frame/measure.h"
#include "bench/frame/results.h"

struct limit_way; /* low_latency/limit.h */

struct ll_place {
    /* Memory of this rank that all ranks reach, zero; bases[r]: that of rank r, as this rank names it. Collective; NULL
       on some rank after saying why not. */
    void *(*share)(const struct bench_world *world, size_t bytes, uint8_t **bases);
    /* Collective, unless not sound. NULL is allowed. */
    void (*unshare)(const struct bench_world *world, void *data, size_t bytes, bool sound);
    /* Memory of this rank, of which little is touched. NULL: there is none; NULL is allowed. */
    void *(*reserve)(const struct bench_world *world, size_t bytes);
    void (*unreserve)(const struct bench_world *world, void *data, size_t bytes);
    /* Ways of the copy roofline, none where calls of so many workers do not compare with them. A way's turns are made
       ready once the lists are whole; run is a contender's. */
    int (*num_ways)(int workers);
    bool (*way_open)(struct limit_way *way);
    bool (*way_run)(void *way);
    void (*way_close)(struct limit_way *way);
    /* The first list once, so many bytes of each of its copies. */
    bool (*way_copy)(struct limit_way *way, size_t bytes);
    /* Round trips of a flag, as in mode.h. */
    void *(*trip_create)(const struct bench_world *world);
    void (*trip_free)(void *trip, bool sound);
    int (*trip_contenders)(void *trip, struct contender *contenders);
    /* The launch's time is in `result` already. */
    void (*trip_times)(const struct contender *contenders, struct bench_result *result);
    /* When the warps of the last turn of a way of the copy roofline came where, which is done; false: not known. NULL:
       there are no kernels. */
    bool (*way_moments)(const struct limit_way *way, struct bench_moments *out);
    /* An empty launch, as a contender with the world; NULL: there are none. */
    bool (*launch)(void *world);
};
extern const struct ll_place ll_cpu;
extern const struct bench_site ll_cpu_site, ll_nodes_site;

#endif
