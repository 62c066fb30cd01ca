/* SPDX-License-Identifier: Apache-2.0 */
/* place: what the benchmark of low-latency mode needs of a device beyond struct bench_device. place_cpu.c is the CPU's,
 * bench/gpu/ll.c that of GPUs. */
#ifndef EXPAR_BENCH_LOW_LATENCY_PLACE_H
#define EXPAR_BENCH_LOW_LATENCY_PLACE_H

#include "bench/frame/measure.h"
#include "bench/frame/results.h"

struct limit_way; /* low_latency/limit.h */

struct ll_place {
    /* Allocates zeroed memory of this rank that all ranks reach. bases[r]: the address of rank r's memory on this rank.
       Collective; NULL on some rank after saying why not. */
    void *(*share)(const struct bench_world *world, size_t bytes, uint8_t **bases);
    /* Collective, unless not sound. NULL is allowed. */
    void (*unshare)(const struct bench_world *world, void *data, size_t bytes, bool sound);
    /* Reserves memory of this rank, of which little is touched; NULL: no memory. Releasing NULL is allowed. */
    void *(*reserve)(const struct bench_world *world, size_t bytes);
    void (*unreserve)(const struct bench_world *world, void *data, size_t bytes);
    /* The number of ways of the copy roofline; 0 if they do not compare with calls of so many workers. A way's turns
       are prepared once the lists are complete; run is a contender's. */
    int (*num_ways)(int workers);
    bool (*way_open)(struct limit_way *way);
    bool (*way_run)(void *way);
    void (*way_close)(struct limit_way *way);
    /* Copies the first list once, `bytes` bytes of each of its copies. */
    bool (*way_copy)(struct limit_way *way, size_t bytes);
    /* Round trips of a flag, as in mode.h. */
    void *(*trip_create)(const struct bench_world *world);
    void (*trip_free)(void *trip, bool sound);
    int (*trip_contenders)(void *trip, struct contender *contenders);
    /* The launch's time is in `result` already. */
    void (*trip_times)(const struct contender *contenders, struct bench_result *result);
    /* Returns the moments of the warps in a way's last turn, which is done; false: they are not known. NULL: there are
       no kernels. */
    bool (*way_moments)(const struct limit_way *way, struct bench_moments *out);
    /* An empty launch, as a contender with the world; NULL: there are none. */
    bool (*launch)(void *world);
};
extern const struct ll_place ll_cpu;
extern const struct bench_site ll_cpu_site, ll_nodes_site;

#endif
