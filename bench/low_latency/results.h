/* SPDX-License-Identifier: Apache-2.0 */
/* results: what was measured of low-latency mode, and how it is printed (report.c, json.c). */
#ifndef EXPAR_BENCH_LOW_LATENCY_RESULTS_H
#define EXPAR_BENCH_LOW_LATENCY_RESULTS_H

#include "bench/frame/loop.h"

#define LL_MOST_COPIES 3
#define LL_MOST_ROWS   32 /* of a sum: the largest K */

/* When the warps of a call's kernel came where on one rank, in microseconds from its first warp's start: as the
   library's ll_times. */
struct ll_moments {
    double started_us, sent_middle_us, sent_us, seen_us, done_us, ended_us;
};

/* Where the time of a call's kernels goes (late.c), medians over the measured calls, each by itself; or that of the
   copy limit's kernel, which waits for nothing on the wire and has nothing to close. */
enum ll_span_name { LL_SEND, LL_WARPS, LL_RANKS, LL_WIRE, LL_PLACE, LL_CLOSE, LL_SPANS };
extern const char *const ll_span_names[LL_SPANS];
struct ll_breakdown {
    bool known;          /* on all ranks and of all measured calls; else there is none */
    double kernel_us;    /* from the first warp's start to the end, of the rank that takes longest */
    double start_us;     /* until the last warp has started; among the spans */
    double us[LL_SPANS]; /* those of a call make up its time */
    int late_rank;       /* that was the last to send in most calls; -1: nobody sends */
};

/* What a call of a rank sends to other nodes, as counted where the library calls its provider. */
struct ll_traffic {
    bool counted; /* there are several, and it was one call */
    struct bench_sent sent;
};

struct ll_result {
    const char *op;    /* "dispatch", "combine", "pair" */
    const char *sum;   /* "exact", "reduced"; NULL: a dispatch */
    const char *phase; /* "call": both in one; "send", "receive": apart, with a hook; "hooks": a pair by two hooks */
    enum bench_pattern pattern;   /* 0 counts as isolated */
    struct bench_loop_times loop; /* of loops; `expar` is its share then */
    const char *format;
    expar_dtype dtype; /* of x */
    int64_t tokens;
    int workers; /* threads of a rank; on GPUs SMs of a call */
    struct bench_times expar, copies[LL_MOST_COPIES], mpi;
    int num_copies; /* 0: nothing to compare with */
    bool has_mpi, has_trip, has_raw_trip, verified;
    struct ll_traffic traffic;            /* mean over ranks */
    struct ll_breakdown breakdown, limit; /* on GPUs: of the call, and of the copies that the limit is */
    double trip_us, raw_trip_us;          /* of a flag between two ranks, by the library and bare: medians */
    double launch_us;                     /* on GPUs, an empty launch: median. 0: there are none */
    double messages;                      /* of a call and rank, mean over ranks, as the library counts them */
    double bytes; /* mean over ranks: dispatch: of the experts' rows; combine: of the rows sent back */
};

static inline enum bench_pattern ll_pattern_of(const struct ll_result *result)
{
    return result->pattern ? result->pattern : BENCH_ISOLATED;
}
static inline bool ll_is_loop(const struct ll_result *result)
{
    return ll_pattern_of(result) != BENCH_ISOLATED;
}

struct ll_results {
    struct ll_result *items;
    int count, room;
};
/* A new one at the end, zero. NULL: no memory. */
struct ll_result *ll_results_add(struct ll_results *results);

/* ---- report.c, json.c -------------------------------------------------------------------------------------------- */

/* Prints as the options say. False: memory was lacking, and stderr says so. */
bool ll_report(const struct bench_world *world, const struct bench_options *options, const struct ll_results *results);
void ll_report_json(const struct bench_world *world, const struct bench_options *options,
                    const struct ll_results *results);
/* What follows from the times. Of the copies, one at least, those that take least. */
int ll_least_copy(const struct ll_result *result);
/* The copy limit; across nodes the network limit. 0: there is none. */
double ll_limit_us(const struct ll_result *result);
double ll_fraction_of_limit(const struct ll_result *result);
double ll_gbps(const struct ll_result *result);
double ll_speedup(const struct ll_result *result);
/* The copy limit's: more is not to be had by copies. */
double ll_copy_speedup(const struct ll_result *result);

#endif
