/* SPDX-License-Identifier: Apache-2.0 */
/* low_latency: the benchmark of low-latency dispatch and combine. On the way of a run:
 *
 *   run.c        the cases, one after another        layout.c    where rows stand, by own code
 *   session.c    memory and objects of one case      format.c    payload formats, from their definitions
 *   dispatch.c, combine.c  the operations            verify.c    outputs against what they must be
 *   decode.c     calls back to back
 *   far.c        what goes to other nodes
 *   limit*.c, sum.c  the copy limit                  trip.c      round trips of a flag on the CPU
 *   place.h, place_cpu.c  what a device does; GPUs: bench/gpu/ll.c
 *   report.c, json.c  table, CSV, JSON               options.c   what can be refused
 *
 * Called through bench/bench.h and by bench/mpi; calls the public interface of the library and bench/frame.
 * What its problem calls a received row is a message here: one for each (token, rank). */
#ifndef EXPAR_BENCH_LOW_LATENCY_SESSION_H
#define EXPAR_BENCH_LOW_LATENCY_SESSION_H

#include "bench/frame/problem.h"
#include "bench/low_latency/format.h"
#include "bench/low_latency/late.h"
#include "bench/low_latency/place.h"
#include "bench/low_latency/results.h"

/* Where rows stand in dispatch's layout [L][N*B][H], for all ranks. B is T, but at least 1. */
struct ll_layout {
    int64_t rows_per_expert; /* N*B */
    int local_experts;       /* L */
    int32_t *row;            /* [N][T][K] number of the slot's row among those of its expert; -1: the slot has none */
    int32_t *counts;         /* [E] rows of each expert */
    int64_t num_rows;        /* of this rank's experts */
};

/* What users would write instead. All ranks call each function together. */
struct ll_baseline {
    /* rows: [L][N*B][H] in dispatch's layout, what combines read. NULL: no memory. */
    void *(*open)(const struct problem *problem, const struct ll_layout *layout, const void *x, const void *rows,
                  const float *weights);
    bool (*dispatch)(void *self);
    const void *(*received)(const void *self); /* [L][N*B][H], of the last dispatch */
    const int32_t *(*counts)(const void *self);
    const int32_t *(*src_info)(const void *self);
    bool (*combine_exact)(void *self, void *y);
    bool (*combine_reduced)(void *self, void *y);
    void (*settle)(void *self); /* not timed: until the last call has ended on all ranks, behind each */
    void (*close)(void *self);
};

/* The memory and objects of one shape and format, shared by its cases. */
struct ll_session {
    const struct bench_world *world;
    const struct bench_options *options;
    const struct ll_format *format;
    int workers; /* threads of a rank; on GPUs SMs of a call */
    struct problem *problem;
    struct ll_layout *layout;
    expar_ll *ll;
    void *x;        /* [T][H] */
    void *y;        /* [T][H] */
    int32_t *idx;   /* [T][K] */
    float *weights; /* [T][K] */
    void *rows;     /* [L][N*B][H] what a combine reads; only rows that are there are ever touched */
    size_t rows_bytes;
    void *trip;     /* of the device's ll_place; NULL: one rank alone */
    void *baseline; /* of world->ll_baseline; NULL: none, or not of this format */
};

struct ll_case_shape {
    struct problem_shape problem;
    const struct ll_format *format;
    int workers; /* 0: as the device chooses */
};

bool ll_session_open(struct ll_session *session, const struct bench_world *world, const struct bench_options *options,
                     const struct ll_case_shape *shape);
/* After a failure (not sound) nothing collective is tried any more. */
bool ll_session_close(struct ll_session *session, bool sound);
/* Of a dispatch of this session's x, without weights. */
expar_ll_dispatch_args ll_dispatch_args_of(const struct ll_session *session);
/* Arguments of an exact combine of this session's rows to its y; the handle is missing. */
expar_ll_combine_args ll_combine_args_of(const struct ll_session *session);

/* Two fillings that differ everywhere: verified first, and measured. */
uint64_t ll_first_salt(const struct ll_session *session);
uint64_t ll_measured_salt(const struct ll_session *session);
/* Rows of this rank's tokens, and its experts' outputs; y that no call has written. False after saying why not. */
bool ll_fill_x(const struct ll_session *session, uint64_t salt);
bool ll_fill_rows(const struct ll_session *session, uint64_t salt);
bool ll_spoil_y(const struct ll_session *session);
/* A matrix where the data lies. */
expar_tensor ll_tensor(const struct ll_session *session, void *data, expar_dtype dtype, int64_t rows, int64_t columns);
/* bench_measure with a label for this session and operation. All contenders are settled: calls take less than a rank
   needs to wake up. */
bool ll_session_measure(const struct ll_session *session, const char *op, struct contender *contenders, int count);

/* Each appends its results; collective. False after saying why they cannot be had. */
bool ll_case_dispatch(struct ll_session *session, struct ll_results *results);
bool ll_case_combine(struct ll_session *session, struct ll_results *results);
/* Measures all patterns that are loops (decode.c). The kernels of GPUs read no clocks from then on. */
bool ll_case_loops(struct ll_session *session, struct ll_results *results);

/* ---- layout.c ---------------------------------------------------------------------------------------------------- */

struct ll_layout *ll_layout_create(const struct problem *problem); /* NULL: no memory */
void ll_layout_free(struct ll_layout *layout);
/* The slot's row among all of its expert's rank, [L][N*B]; -1: the slot has none. */
int64_t ll_layout_row(const struct problem *problem, const struct ll_layout *layout, int source, int64_t token, int k);
/* The rank of the slot's expert; -1: the slot has none. */
int ll_layout_rank(const struct problem *problem, int source, int64_t token, int k);

/* ---- far.c; across nodes, else 0 --------------------------------------------------------------------------------- */

/* Messages of this rank's dispatch to a rank of another node; rows of its combine that go back there. */
int64_t ll_far_messages(const struct ll_session *session, int rank);
int64_t ll_far_rows_back(const struct ll_session *session, int rank, bool reduced);
/* Of one of these, as it travels. */
size_t ll_far_row_bytes(const struct ll_session *session);
/* What this rank's call sends between the two. */
void ll_traffic_begin(const struct ll_session *session, struct ll_traffic *traffic);
void ll_traffic_end(const struct ll_session *session, struct ll_traffic *traffic);
/* That it sent as many rows as the routing demands. */
bool ll_traffic_verify_dispatch(const struct ll_session *session, const struct ll_traffic *traffic);
bool ll_traffic_verify_combine(const struct ll_session *session, bool reduced, const struct ll_traffic *traffic);
/* Collective. */
bool ll_traffic_mean(const struct bench_world *world, const struct ll_traffic *mine, struct ll_traffic *mean);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Of the host; zero, and none of it there before it is touched; NULL: no memory. */
void *ll_reserve(size_t bytes);
void ll_unreserve(void *data, size_t bytes);

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/* Each compares with what follows from the routing, and says on stderr what is wrong. */

/* Rows of this rank's experts, as they are or in a format. scales: words with these strides of experts, rows and
   words; NULL where the format has none. */
struct ll_rows {
    const void *rows;
    const uint32_t *scales;
    int64_t scale_strides[3];
    const int32_t *counts;   /* [L] */
    const int32_t *src_info; /* [L][N*B] */
};
bool ll_verify_rows(const struct ll_session *session, uint64_t salt, const struct ll_rows *rows);
/* The host's view of rows where the data lies, as many as the layout says; counts NULL: none are looked at. False after
   saying why it cannot be had, when there is nothing to end. */
bool ll_look(const struct ll_session *session, const struct ll_rows *rows, struct ll_rows *seen);
void ll_unlook(const struct ll_session *session, struct ll_rows *seen);
bool ll_verify_dispatch(const struct ll_session *session, uint64_t salt, const expar_ll_dispatch_result *result);
/* y of this rank, [T][H]: bytes, but behind LogFMT (coded) within the error that the format allows. */
bool ll_verify_combine(const struct ll_session *session, uint64_t salt, bool reduced, bool coded, const void *y);
/* A count of the library's. */
bool ll_verify_count(const struct ll_session *session, const char *what, uint64_t count, uint64_t expected);

/* ---- limit.c ----------------------------------------------------------------------------------------------------- */

/* Across nodes: bare puts of the rows that go there, by all ranks at once (frame/network.h). Else the copy limit:
 * what a program of bare copies takes that moves the same bytes as the calls do, by one thread a rank,
 * or a kernel of as many SMs, without flags.
 *
 * Dispatch: each message (header, payload, scales) once to its slot at each other rank; from the slots here each
 * payload to the rows of its experts, scales and token numbers beside them; this rank's own rows straight from x.
 * Payloads are coded beforehand.
 * Combine, exact: each row to its place at its token's rank, this rank's own excepted; then each token's weighted sum.
 * Reduced: the weighted sum of a token's rows here into its place at the token's rank; then the sum of the places. */
struct ll_limit;
/* By memcpy; messages by memcpy and rows by non-temporal stores; both by non-temporal stores. Combine: the second is
   none, reduced has the first alone. */
enum { LL_LIMIT_MEMCPY, LL_LIMIT_ROWS_STREAMED, LL_LIMIT_STREAMED, LL_MAX_COPIES };
/* Collective. NULL after saying why not. */
struct ll_limit *ll_limit_dispatch(const struct ll_session *session);
struct ll_limit *ll_limit_combine(const struct ll_session *session, bool reduced);
/* Appends contenders; their number: 0 where calls have so many workers that these do not compare. */
int ll_limit_contenders(struct ll_limit *limit, struct contender *contenders);
/* Whether the last turn has put everything where it belongs. */
bool ll_limit_verify(struct ll_limit *limit, uint64_t salt);
/* Coded payloads follow x. */
bool ll_limit_refill(struct ll_limit *limit);
/* Collective, unless not sound. */
void ll_limit_free(struct ll_limit *limit, bool sound);

/* ---- sum.c ------------------------------------------------------------------------------------------------------- */

/* out[j] = Σ weights[i] · rows[i][j] in FP32, i ascending, product and sum each rounded, then rounded to the type.
   weights NULL: all 1. The baseline uses it, too. */
void ll_sum_rows(expar_dtype dtype, const void *const *rows, const float *weights, int count, int hidden, void *out);

/* ---- trip.c ------------------------------------------------------------------------------------------------------ */

/* A word of 8 bytes that goes from rank 0 to rank 1 and back, by the library's signals and by bare stores and loads;
   across nodes to the first rank of the next one, by signals alone. */
void *ll_trip_create(const struct bench_world *world); /* collective; NULL after saying why not */
void ll_trip_free(void *trip, bool sound);
/* Appends a contender for each of both. */
int ll_trip_contenders(void *trip, struct contender *contenders);
/* Of one round trip, from those contenders. */
void ll_trip_times(const struct contender *contenders, struct ll_result *result);

#endif
