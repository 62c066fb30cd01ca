/* SPDX-License-Identifier: Apache-2.0 */
/* normal: the benchmark of dispatch and combine, as a mode of bench/frame. On the way of a run:
 *
 *   mode.c     the table: tensors and buffer of a session, cases    late.c         where a call's time goes on GPUs
 *   calls.c    dispatches, combines, layers                         copy_limit.c   copies on the CPU
 *   coded.c    pairs whose rows the caller codes
 *   verify.c   outputs against what they must be                    nodes.c        limit and traffic across nodes
 *   links.c    what goes over each link                             options.c      what can be refused
 *   report.c   what is printed
 *
 * Called through bench/bench.h, and by bench/gpu and bench/mpi; calls the public interface of the library. */
#ifndef EXPAR_BENCH_NORMAL_MODE_H
#define EXPAR_BENCH_NORMAL_MODE_H

#include "bench/frame/session.h"
#include <argp.h>

extern const struct bench_mode normal_mode;
extern const struct bench_report normal_report;
/* Checks options for bench/options.c. It rejects what is wrong in both modes, as argp does, and sets what was not
   given. */
void normal_options_check(struct argp_state *state, struct bench_options *options);
/* Checks the number of GPUs, and fills in those of GPUs and ranks that were not given. */
void normal_gpus_check(struct argp_state *state, struct bench_options *options);

/* ---- calls.c ----------------------------------------------------------------------------------------------------- */

/* Memory of the device for pairs whose rows the caller codes. */
struct normal_coded {
    void *tokens;  /* [T][H] BF16: the caller's */
    void *x;       /* [T][H] e4m3: coded in each pair */
    float *scales; /* [T][H / 128] likewise */
    void *rows;    /* [R][H] BF16: outputs of the experts */
    void *y;       /* [T][H] BF16: their sums */
};

struct normal_call {
    struct bench_call frame;
    expar_ep_path path;
    expar_ep_dispatch_args dispatch_args;
    expar_ep_dispatch_result result; /* of the last dispatch, until it is released; then zero */
    expar_ep_combine_args combine_args;
    expar_ep_combine_result combined;
    expar_ep_handle *handle; /* of all calls; NULL: dispatches are fresh */
    void *rows;              /* [R][H] what combines read; in loops the caller's own memory */
    bool direct;             /* all isolated dispatches went directly */
    bool is_coded;           /* the caller codes the rows of its pairs */
    struct normal_coded coded;
    expar_ep_stats before, after;
};
/* Returns the arguments of a dispatch of this session's x that computes its routing. */
expar_ep_dispatch_args normal_dispatch_args(const struct bench_session *session, expar_ep_path path);
/* Functions for bench_mode. */
bool normal_open(struct bench_call *call);
void normal_close(struct bench_call *call);
bool normal_fill(const struct bench_call *call, uint64_t salt);
bool normal_dispatch(void *call);
bool normal_combine(void *call);
bool normal_in_loop(struct bench_call *call, expar_event **event);
bool normal_ended(struct bench_call *call, int turn);
bool normal_verify(const struct bench_call *call, uint64_t salt);
bool normal_verify_baseline(const struct bench_call *call, uint64_t salt);
void normal_release(struct bench_call *call);
void normal_flows(const struct bench_call *call, struct bench_flow *flow); /* links.c */
void normal_amounts(const struct bench_call *call, double *messages, double *bytes);
bool normal_describe(const struct bench_call *call, struct bench_result *result);

/* ---- coded.c ----------------------------------------------------------------------------------------------------- */

/* True when a session measures pairs of FP8 rows; the bytes are those that they take on a rank in addition. */
bool coded_is_wanted(const struct bench_session *session);
uint64_t coded_bytes(const struct bench_session *session);
bool coded_open(struct normal_call *self);
void coded_close(struct normal_call *self);
/* Fills tokens and rows by the salt, and spoils y. */
bool coded_fill(const struct normal_call *self, uint64_t salt);
void coded_set_args(struct normal_call *self);
/* Codes the tokens. A pair begins with it. */
bool coded_encode(const struct normal_call *self);
/* Compares rows and scales with the tokens' codes, by their definition. */
bool coded_verify_rows(const struct problem *problem, uint64_t salt, const void *rows, const float *scales);
/* Verifies rows and sums of the last pair. */
bool coded_verify(const struct normal_call *self, uint64_t salt);

/* ---- nodes.c, copy_limit.c --------------------------------------------------------------------------------------- */

extern const struct bench_site normal_nodes_site, normal_cpu_site;
/* The functions of a site across nodes, on any device. */
bool nodes_open(struct bench_session *session);
void nodes_close(struct bench_session *session, bool sound);
int nodes_add_limits(struct bench_session *session, bool combine, struct contender *contenders);
struct bench_traffic nodes_traffic(const struct bench_session *session);
#define NODES_SITE .open = nodes_open, .close = nodes_close, .add_copies = nodes_add_limits, .traffic = nodes_traffic
/* Verifies that a call between nodes has sent as many rows as the routing demands; says what is wrong. */
bool nodes_sent_right(const struct bench_call *call);
/* Verifies that bare puts have arrived completely. */
bool nodes_limit_verify(const struct bench_session *session, bool combine);

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/* Each compares a whole output of this rank with what follows from the routing, and says on stderr which token is
 * wrong. */
bool verify_rows(const struct problem *problem, uint64_t salt, const void *rows);
bool verify_dispatch(const struct problem *problem, uint64_t salt, const expar_ep_dispatch_result *result, bool cached);
/* The rows that a combine adds: those that ranks filled by name, or the tokens' own, which a dispatch brought and each
   holder returned as they were. */
enum verify_rows_of { VERIFY_FILLED, VERIFY_RETURNED };
/* each: the number of ranks whose rows are summed and rounded first. If it is all ranks, there is one sum. */
bool verify_combine(const struct problem *problem, uint64_t salt, enum verify_rows_of rows_of, int each, const void *y);

#endif
