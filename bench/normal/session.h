/* SPDX-License-Identifier: Apache-2.0 */
/* normal: the benchmark of dispatch and combine. On the way of a run:
 *
 *   run.c        the cases, one after another        dispatch.c, combine.c  the operations
 *   session.c    memory and objects of one case      look.c            outputs as the host reads them
 *   steady.c     calls back to back                  verify.c          outputs against what they must be
 *   report.c, json.c  table, CSV, JSON
 *   options.c    what can be refused                 device_cpu.c, copy_limit.c  tensors and copies on the CPU
 *   nodes.c      across nodes: network limit, what was sent
 *   late.c       where the time of calls on GPUs goes
 *
 * Called through bench/bench.h, and by bench/gpu and bench/mpi; calls the public interface of the library. */
#ifndef EXPAR_BENCH_NORMAL_SESSION_H
#define EXPAR_BENCH_NORMAL_SESSION_H

#include "bench/frame/late.h"
#include "bench/frame/problem.h"
#include "bench/normal/results.h"

/* What users would write instead. All ranks call each function together. */
struct bench_baseline {
    void *(*open)(const struct problem *problem, const void *x, const float *weights); /* NULL: no memory */
    bool (*dispatch)(void *self);
    const void *(*received)(const void *self); /* [R][H], of the last dispatch */
    bool (*combine)(void *self, const void *rows, void *y);
    void (*settle)(void *self); /* not timed: until the last call has ended on all ranks, behind each */
    void (*close)(void *self);
};

/* The memory and objects of one shape, shared by its cases. Tensors lie where world->device has them. */
struct bench_session {
    const struct bench_world *world;
    const struct bench_options *options;
    struct problem *problem;
    int workers;       /* threads or SMs of a rank */
    int given_workers; /* the same, if they were asked for; else 0 */
    expar_ep *ep;
    void *x;        /* [T][H] */
    void *y;        /* [T][H] */
    int32_t *idx;   /* [T][K] */
    float *weights; /* [T][K] */
    float *scales;  /* [T][S] of 8-bit rows, else NULL */
    /* [largest R][H] in symmetric memory. pushed: target of pushing copies; rows: input of combine. The CPU has one for
       both, since its copies of a combine only read. */
    unsigned char *pushed, *rows;
    void *copies;   /* of world->device */
    void *baseline; /* of world->baseline */
};

bool bench_session_open(struct bench_session *session, const struct bench_world *world,
                        const struct bench_options *options, const struct problem_shape *shape, int given_workers);
/* After a failure (not sound) nothing collective is tried any more. */
bool bench_session_close(struct bench_session *session, bool sound);
expar_tensor bench_tensor(const struct bench_world *world, const void *data, expar_dtype dtype, int64_t rows,
                          int64_t columns);
/* Of a dispatch of this session's x that computes its routing. */
expar_dispatch_args bench_dispatch_args(const struct bench_session *session, expar_path path);

/* Rows of this rank's tokens, and the experts' outputs for the rows that it received, by their names (problem.h). */
bool bench_fill_x(const struct bench_session *session, uint64_t salt);
bool bench_fill_rows(const struct bench_session *session, uint64_t salt);
/* Writes the same rows elsewhere in the device's memory, where all that this rank receives has room. */
bool bench_fill_rows_at(const struct bench_session *session, uint64_t salt, void *rows);
/* Fills y with bytes that no call writes. */
bool bench_spoil_y(const struct bench_session *session);
/* Two fillings that differ everywhere. */
uint64_t bench_first_salt(const struct bench_session *session);
uint64_t bench_measured_salt(const struct bench_session *session);

/* Each appends its results; collective. False after saying why they cannot be had. */
bool bench_case_dispatch(struct bench_session *session, expar_path path, struct bench_results *results);
bool bench_case_combine(struct bench_session *session, expar_path path, struct bench_results *results);
/* True when the options ask for dispatches with a handle (cached), or without one. */
bool bench_wants_dispatch(const struct bench_session *session, bool cached);
/* Measures all patterns that are loops (steady.c). The kernels of GPUs read no clocks from then on. The library chooses
   the path of rows, unless `path` is the queue. */
bool bench_case_loops(struct bench_session *session, expar_path path, struct bench_results *results);

/* bench_measure with a label for this session and operation. */
bool bench_session_measure(const struct bench_session *session, const char *op, struct contender *contenders,
                           int count);
/* late.c: the moments of this rank's measured calls (struct bench_moments), taken behind each of them; their breakdown,
   and that of the copy that the limit is, once the copies' times are in the result: both collective. False after saying
   why not. */
bool bench_session_moments(const struct bench_session *session, struct bench_late *late);
void bench_session_note(const struct bench_session *session, struct bench_late *late);
bool bench_session_late(const struct bench_session *session, const struct bench_late *late,
                        struct bench_breakdown *out);
bool bench_session_limit_late(const struct bench_session *session, const struct contender *copies,
                              struct bench_result *result);

/* ---- nodes.c; nothing where all ranks are on one node ------------------------------------------------------------ */

/* What this rank's call sends between the two. */
void bench_traffic_begin(const struct bench_session *session, struct bench_traffic *traffic);
void bench_traffic_end(const struct bench_session *session, struct bench_traffic *traffic);
/* That it sent as many rows as the routing demands, and that bare puts came whole; says what is wrong. */
bool bench_traffic_verify(const struct bench_session *session, bool combine, const struct bench_traffic *traffic);
/* Collective. */
bool bench_traffic_mean(const struct bench_world *world, const struct bench_traffic *mine, struct bench_traffic *mean);

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/* Each compares a whole output of this rank with what follows from the routing, and says on stderr which token is
 * wrong. */
bool verify_rows(const struct problem *problem, uint64_t salt, const void *rows);
bool verify_dispatch(const struct problem *problem, uint64_t salt, const expar_dispatch_result *result, bool cached);
/* The rows that a combine adds: those that ranks filled by bench_fill_rows, or the tokens' own, which a dispatch
   brought and each holder returned as they were. */
enum verify_rows_of { VERIFY_FILLED, VERIFY_RETURNED };
/* each: ranks whose rows are summed and rounded before their sums are; all of them: in one sum. */
bool verify_combine(const struct problem *problem, uint64_t salt, enum verify_rows_of rows_of, int each, const void *y);

/* ---- look.c ------------------------------------------------------------------------------------------------------ */

/* Compare outputs that lie in the device's memory: a dispatch's result, and the session's y. */
bool bench_look_dispatch(const struct bench_session *session, uint64_t salt, const expar_dispatch_result *result,
                         bool cached);
bool bench_look_sums(const struct bench_session *session, uint64_t salt, enum verify_rows_of rows_of, int each);

#endif
