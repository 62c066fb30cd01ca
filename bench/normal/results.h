/* SPDX-License-Identifier: Apache-2.0 */
/* results: what was measured of dispatch and combine, and how it is printed (report.c, json.c). */
#ifndef EXPAR_BENCH_NORMAL_RESULTS_H
#define EXPAR_BENCH_NORMAL_RESULTS_H

#include "bench/frame/loop.h"

/* Where the time of a call goes, by clocks read in its kernels on all ranks, in microseconds (late.c): the spans of
   notify and the gap behind it, which only a fresh dispatch has, and those of the dispatch or combine. The copy limit
   has the same spans, but nothing to open. */
enum bench_span_name {
    BENCH_LAYOUT,
    BENCH_HELLOS,
    BENCH_WAIT,
    BENCH_COUNTS,
    BENCH_GAP,
    BENCH_OPEN,
    BENCH_ROWS,
    BENCH_WARPS,
    BENCH_RANKS,
    BENCH_CLOSE,
    BENCH_SPANS
};
struct bench_breakdown {
    bool known;             /* on all ranks and of all measured calls; else all is 0 */
    bool notified;          /* else the first five are 0 */
    double kernel_us;       /* of the dispatch or combine: from a rank's first warp to the end of the last rank */
    double us[BENCH_SPANS]; /* from open on they make up the kernel's time. Medians over the calls, each by itself */
    int late_rank;          /* whose last warp was the last one in most calls */
};
/* Words for them: "layout", … */
extern const char *const bench_span_names[BENCH_SPANS];
/* The first that a call with this breakdown has. */
static inline int bench_first_span(const struct bench_breakdown *b)
{
    return b->notified ? BENCH_LAYOUT : BENCH_OPEN;
}

/* What a call of a rank moves across nodes and inside its own, mean over ranks where that is said. */
struct bench_traffic {
    bool counted;           /* there are several nodes */
    struct bench_sent sent; /* as counted where the library calls its provider */
    double inside_rows;     /* that it receives from other ranks of its node, by the routing */
};

/* Statistics of a buffer (expar_ep_get_stats): counts are sums over all ranks, bytes are those of the rank that has
   most. */
struct bench_buffer {
    uint64_t growths, direct_calls, queue_calls, other_blocks;
    uint64_t used_high_bytes, reserved_high_bytes;
};

struct bench_result {
    const char *op, *path;             /* op: "dispatch", "combine", "layout", "layer" */
    enum bench_pattern pattern;        /* 0 counts as isolated */
    struct bench_loop_times loop;      /* of loops; `expar` is its share then */
    struct bench_buffer before, after; /* of loops: after the warm-up, and after the last measured loop */
    bool cached;
    expar_dtype dtype;
    int workers; /* threads or SMs */
    int64_t tokens;
    struct bench_times expar, copies[BENCH_MAX_COPIES], mpi;
    int num_copies; /* 0: nothing to compare with. Across nodes they are bare puts */
    bool has_mpi, verified;
    struct bench_traffic traffic;
    size_t row_bytes;
    struct bench_breakdown breakdown, limit; /* on GPUs: of the call, and of the copy that is the limit */
    /* Mean over ranks of the bytes of rows that go into a rank's output. Dispatch: the rows received. Combine: the rows
       that are summed, which are the same ones on their way back. */
    double bytes;
};

static inline enum bench_pattern bench_pattern_of(const struct bench_result *result)
{
    return result->pattern ? result->pattern : BENCH_ISOLATED;
}
static inline bool bench_is_loop(const struct bench_result *result)
{
    return bench_pattern_of(result) != BENCH_ISOLATED;
}

struct bench_results {
    struct bench_result *items;
    int count, room;
};
/* A new one at the end, zero. NULL: no memory. Those given before stay valid until the next call only. */
struct bench_result *bench_results_add(struct bench_results *results);

/* ---- report.c, json.c -------------------------------------------------------------------------------------------- */

/* Prints as the options say. False: memory was lacking, and stderr says so. */
bool bench_report(const struct bench_world *world, const struct bench_options *options,
                  const struct bench_results *results);
void bench_report_json(const struct bench_world *world, const struct bench_options *options,
                       const struct bench_results *results);
/* What follows from the times. Of the copies, one at least, the one that takes least. */
int bench_least_copy(const struct bench_result *result);
/* The copy limit; across nodes the network limit. 0: there is none. */
double bench_limit_us(const struct bench_result *result);
double bench_fraction_of_limit(const struct bench_result *result);
double bench_gbps(const struct bench_result *result); /* 10^9 bytes a second */
double bench_speedup(const struct bench_result *result);

#endif
