/* SPDX-License-Identifier: Apache-2.0 */
/* low_latency: the benchmark of low-latency dispatch and combine, as a mode of bench/frame. On the way of a run:
 *
 *   mode.c      the table: tensors and buffer of a session, cases    layout.c   where rows stand, by own code
 *   calls.c     dispatches, combines, pairs                          format.c   payload formats, by their definitions
 *   verify.c    outputs against what they must be                    far.c      what goes to other nodes
 *   limit*.c, sum.c  the copy limit                                  trip.c     round trips of a flag on the CPU
 *   late.c      who is late on GPUs                                  report.c   what is printed
 *   links.c     what goes over each link                             options.c  what can be refused
 *   place.h, place_cpu.c  what a device does; GPUs: bench/gpu/ll.c
 *
 * Called through bench/bench.h and by bench/mpi; calls the public interface of the library. What the frame's problem
 * calls a received row is a message here: one for each (token, rank). */
#ifndef EXPAR_BENCH_LOW_LATENCY_MODE_H
#define EXPAR_BENCH_LOW_LATENCY_MODE_H

#include "bench/frame/report.h"
#include "bench/frame/session.h"
#include "bench/low_latency/format.h"
#include "bench/low_latency/place.h"
#include <argp.h>

extern const struct bench_mode ll_mode;
extern const struct bench_report ll_report;
/* Checks options for bench/options.c. It rejects what is wrong in this mode alone, as argp does. */
void ll_options_check(struct argp_state *state, const struct bench_options *options);
/* ll_list_rows lists the formats that are asked for, or the plain ones of the dtypes. The others are functions of
   sites. */
int ll_list_rows(const struct bench_options *options, struct bench_rows *rows);
bool ll_site_open(struct bench_session *session);
void ll_site_close(struct bench_session *session, bool sound);
/* Fills the rows of this rank's experts by their names; false after saying why not. */
bool ll_fill_rows(const struct bench_session *session, uint64_t salt);

/* The places of rows in dispatch's layout [L][N*B][H], for all ranks. B is T, but at least 1. */
struct ll_layout {
    int64_t rows_per_expert; /* N*B */
    int local_experts;       /* L */
    int32_t *row;            /* [N][T][K] index of the slot's row among those of its expert; -1: the slot has none */
    int32_t *counts;         /* [E] rows of each expert */
    int64_t num_rows;        /* of this rank's experts */
};

/* ---- calls.c ----------------------------------------------------------------------------------------------------- */

struct ll_case {
    struct bench_call frame;
    expar_ll_dispatch_args dispatch_args;
    expar_ll_dispatch_result result; /* of the last dispatch, until it is released */
    expar_ll_combine_args combine_args;
    expar_ll_combine_result sum; /* of the last combine, the same */
    expar_ll_handle *handle;     /* of combines without dispatches */
};
/* Functions for bench_mode. */
bool ll_open(struct bench_call *call);
void ll_close(struct bench_call *call);
bool ll_fill(const struct bench_call *call, uint64_t salt);
bool ll_dispatch(void *call);
bool ll_combine(void *call);
bool ll_receive(void *call);
bool ll_in_loop(struct bench_call *call, expar_event **event);
bool ll_ended(struct bench_call *call, int turn);
bool ll_verify(const struct bench_call *call, uint64_t salt);
bool ll_verify_baseline(const struct bench_call *call, uint64_t salt);
void ll_release(struct bench_call *call);
bool ll_counts_right(const struct bench_contest *contests, int count);
void ll_flows(const struct bench_call *call, struct bench_flow *flow); /* links.c */
void ll_amounts(const struct bench_call *call, double *messages, double *bytes);
bool ll_describe(const struct bench_call *call, struct bench_result *result);

/* ---- layout.c ---------------------------------------------------------------------------------------------------- */

struct ll_layout *ll_layout_create(const struct problem *problem); /* NULL: no memory */
void ll_layout_free(struct ll_layout *layout);
/* Returns the slot's row among all rows of its expert's rank, [L][N*B]; -1: the slot has none. */
int64_t ll_layout_row(const struct problem *problem, const struct ll_layout *layout, int source, int64_t token, int k);
/* Returns the rank of the slot's expert; -1: the slot has none. */
int ll_layout_rank(const struct problem *problem, int source, int64_t token, int k);

/* Returns the bytes of a dispatched row with its scales. */
size_t ll_wire_bytes(const struct bench_session *session);

/* ---- far.c; across nodes, else 0 --------------------------------------------------------------------------------- */

/* Return the messages of this rank's dispatch to a rank of another node, and the rows of its combine that go back
   there. */
int64_t ll_far_messages(const struct bench_session *session, int rank);
int64_t ll_far_rows_back(const struct bench_session *session, int rank, bool reduced);
/* Checks that a call has sent these numbers there; says what is wrong. */
bool ll_sent_right(const struct bench_call *call);
/* Returns the messages that the session's buffer has sent. */
struct bench_traffic ll_traffic(const struct bench_session *session);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Reserves host memory of zeros, of which pages are allocated when they are touched. NULL: no memory. */
void *ll_reserve(size_t bytes);
void ll_unreserve(void *data, size_t bytes);

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/* Each function compares outputs with what follows from the routing, and says on stderr what is wrong. */

/* Rows of this rank's experts, as they are or in a format. scales: words with these strides of experts, rows and
   words; NULL where the format has none. */
struct ll_rows {
    const void *rows;
    const uint32_t *scales;
    int64_t scale_strides[3];
    const int32_t *counts;   /* [L] */
    const int32_t *src_info; /* [L][N*B] */
};
bool ll_verify_rows(const struct bench_session *session, uint64_t salt, const struct ll_rows *rows);
/* ll_look gives the host a view of the rows that the layout names. With counts NULL, it gives none. False after saying
   why not; then there is nothing to end. */
bool ll_look(const struct bench_session *session, const struct ll_rows *rows, struct ll_rows *seen);
void ll_unlook(const struct bench_session *session, struct ll_rows *seen);
bool ll_verify_dispatch(const struct bench_session *session, uint64_t salt, const expar_ll_dispatch_result *result);
/* Verifies this rank's y [T][H]. Bytes must be equal; after LogFMT (coded), the error must be within the format's
   bound. */
bool ll_verify_combine(const struct bench_session *session, uint64_t salt, bool reduced, bool coded, const void *y);
/* Verifies a count of the library. */
bool ll_verify_count(const struct bench_session *session, const char *what, uint64_t count, uint64_t expected);

/* ---- limit.c ----------------------------------------------------------------------------------------------------- */

/* Across nodes: bare puts of the rows that go there, by all ranks at once (frame/network.h). Else the copy roofline:
 * the time of a program of bare copies that moves the same bytes as the calls do. It uses one thread a rank, or a
 * kernel of as many SMs, without flags.
 *
 * Dispatch: each message (header, payload, scales) once to its slot at each other rank. From the slots here each
 * payload goes to the rows of its experts, scales and token numbers beside them. This rank's own rows come straight
 * from x. Payloads are coded beforehand. Combine, exact: each row to its place at its token's rank, this rank's own
 * excepted; then each token's weighted sum. Reduced: the weighted sum of a token's rows here into its place at the
 * token's rank; then the sum of the places. */
struct ll_limit;
/* The ways: by memcpy; messages by memcpy and rows by non-temporal stores; both by non-temporal stores. An exact
   combine lacks the second, a reduced one has the first only. */
enum { LL_LIMIT_MEMCPY, LL_LIMIT_ROWS_STREAMED, LL_LIMIT_STREAMED, LL_COPIES };
/* Collective. NULL after saying why not. */
struct ll_limit *ll_limit_create(const struct bench_session *session, const struct bench_kind *kind);
/* Appends contenders, and returns their number. It is 0 if they do not compare with calls of so many workers. */
int ll_limit_contenders(struct ll_limit *limit, struct contender *contenders);
/* Verifies that the last turn put everything in its place. */
bool ll_limit_verify(struct ll_limit *limit, uint64_t salt);
/* Encodes the payloads again after x has changed. */
bool ll_limit_refill(struct ll_limit *limit);
/* Collective, unless not sound. */
void ll_limit_free(struct ll_limit *limit, bool sound);

/* ---- sum.c ------------------------------------------------------------------------------------------------------- */

/* out[j] = Σ weights[i] · rows[i][j] in FP32, i ascending, product and sum each rounded, then rounded to the type.
   weights NULL: all 1. The baseline uses it, too. */
void ll_sum_rows(expar_dtype dtype, const void *const *rows, const float *weights, int count, int hidden, void *out);

/* ---- trip.c ------------------------------------------------------------------------------------------------------ */

/* Round trips of an 8-byte word from rank 0 to rank 1 and back, by the library's signals and by bare stores and loads.
   Across nodes it goes to the first rank of the next node, by signals only. */
void *ll_trip_create(const struct bench_world *world); /* collective; NULL after saying why not */
void ll_trip_free(void *trip, bool sound);
/* Appends a contender for each of the two ways. */
int ll_trip_contenders(void *trip, struct contender *contenders);
/* Computes the time of one round trip from those contenders. */
void ll_trip_times(const struct contender *contenders, struct bench_result *result);

#endif
