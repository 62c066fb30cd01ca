/* SPDX-License-Identifier: Apache-2.0 */
/* results: the measurements of dispatch and combine, in either mode. */
#ifndef EXPAR_BENCH_FRAME_RESULTS_H
#define EXPAR_BENCH_FRAME_RESULTS_H

#include "bench/frame/late.h"
#include "bench/frame/links.h"
#include "bench/frame/loop.h"
#include "bench/frame/period.h"

/* Statistics of a buffer (expar_ep_get_stats): counts are sums over all ranks, bytes are those of the rank that has
   most. */
struct bench_buffer {
    uint64_t growths, direct_calls, queue_calls, other_blocks;
    uint64_t used_high_bytes, reserved_high_bytes;
};

struct bench_result {
    const char *op; /* "dispatch", "combine", "layout", "layer", "pair" */
    expar_dtype dtype;
    int workers; /* threads or SMs */
    int64_t tokens;
    size_t row_bytes;
    enum bench_pattern pattern;   /* 0 counts as isolated */
    struct bench_loop_times loop; /* of loops; `expar` is its share then */
    struct bench_times expar, copies[BENCH_MAX_COPIES], mpi;
    int num_copies; /* 0: nothing to compare with. Across nodes they are bare puts */
    bool has_mpi, verified;
    struct bench_traffic traffic;            /* mean over ranks */
    struct bench_breakdown breakdown, limit; /* on GPUs: of the call, and of the copies that the limit is */
    /* Mean over ranks of the bytes of rows that go into a rank's output. Dispatch: the rows received, or the experts'.
       Combine: the rows that are summed, which are the same ones on their way back, or the rows sent back. */
    double bytes;
    struct bench_links links;   /* on rank 0 */
    struct bench_period period; /* of pairs */

    /* Normal mode alone. */
    const char *path;
    bool cached;
    struct bench_buffer before, after; /* of loops: after the warm-up, and after the last measured loop */

    /* Low latency alone. */
    const char *sum;   /* "exact", "reduced"; NULL: a dispatch */
    const char *phase; /* "call": both in one; "send", "receive": apart, with a hook; "hooks": a pair by two hooks */
    const char *format;
    double messages; /* of a call and rank, mean over ranks */
    bool has_trip, has_raw_trip;
    double trip_us, raw_trip_us; /* of a flag between two ranks, by the library and bare: medians */
    double launch_us;            /* on GPUs, an empty launch: median. 0: there are none */
};

static inline bool bench_is_loop(const struct bench_result *result)
{
    return result->pattern && result->pattern != BENCH_ISOLATED;
}

/* How often each expert was chosen. */
struct bench_load {
    int64_t tokens;   /* of a rank */
    int64_t *choices; /* [experts]; NULL: not known */
};

struct bench_results {
    struct bench_result *items;
    int count, spare;
    struct bench_load load; /* on rank 0, of the session with the most tokens */
};
/* A new one at the end, zero. NULL: no memory. Those given before stay valid until the next call only. */
struct bench_result *bench_results_add(struct bench_results *results);
void bench_results_free(struct bench_results *results);

#endif
