/* SPDX-License-Identifier: Apache-2.0 */
/* bench: measures dispatch and combine against what the machine can do at best, and verifies every byte of their
 * output.
 *
 * Called by `expar bench` and by expar-bench-mpi; calls the public interface of the library only. On the way of a run:
 *
 *   bench_options.c  options and their checks             routing.c, npy.c  who goes where
 *   bench_run.c      the cases, one after another         problem.c         what follows from the routing, by own code
 *   bench_case.c     one operation: its contenders        pattern.c         contents of rows, and sums of them
 *   bench_measure.c  barrier, clock, interleaving         bench_verify.c    outputs against what they must be
 *   copy_limit.c     the least that must be moved         stats.c           median, minimum, 99th percentile
 *   bench_report.c   JSON, CSV, table                     mpi_*.c           the baseline over MPI, in its own program
 *
 * An iteration's time is last end − first start over all ranks on CLOCK_MONOTONIC; a barrier stands before each. All
 * contenders (expar, copies, baseline) take turns within each iteration, so that a noisy moment hits all alike. */
#ifndef EXPAR_BENCH_BENCH_H
#define EXPAR_BENCH_BENCH_H

#include "problem.h"
#include <argp.h>
#include <expar/expar.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_MAX_SWEEP 64

enum bench_format { BENCH_TABLE, BENCH_JSON, BENCH_CSV };
enum bench_cached { BENCH_UNCACHED, BENCH_CACHED, BENCH_BOTH };

#define BENCH_MAX_SIZES 32
/* What `expar bench rma` measures. */
struct rma_options {
    bool wanted;
    size_t sizes_bytes[BENCH_MAX_SIZES];
    int num_sizes;
    const char *ops;        /* names divided by commas; NULL: all */
    const char *transports; /* the same; NULL: those that this machine has */
};

struct bench_options {
    bool dispatch, combine;
    int num_ranks;
    int64_t tokens[BENCH_MAX_SWEEP]; /* of each rank, one measurement each */
    int num_tokens;
    int hidden, topk, experts; /* topk, experts 0: not given */
    expar_dtype dtype;
    const char *routing; /* a generator's name, or a .npy file */
    int iters, warmup;
    int threads; /* 0: as the library chooses */
    expar_path path;
    bool all_paths; /* direct and queue, a result each; `path` is ignored */
    enum bench_cached cached;
    uint64_t seed;
    enum bench_format format;
    bool mpi;
    int nodes; /* that the ranks play */
    struct rma_options rma;
};

/* ---- bench_options.c -------------------------------------------------------------------------------------------- */

extern const struct argp_option bench_option_table[];
void bench_options_init(struct bench_options *options);
/* argp's parser; input is a struct bench_options. Checks all that can be checked before ranks are there. */
error_t bench_options_parse(int key, char *arg, struct argp_state *state);

/* ---- bench_run.c ------------------------------------------------------------------------------------------------ */

/* What users would write instead. All ranks call each function together. */
struct bench_baseline {
    void *(*open)(const struct problem *problem, const void *x, const float *weights); /* NULL: no memory */
    bool (*dispatch)(void *self);
    const void *(*received)(const void *self); /* [R][H], of the last dispatch */
    bool (*combine)(void *self, const void *rows, void *y);
    void (*close)(void *self);
};

struct bench_world {
    expar_group *group;
    int rank, size;
    const struct bench_baseline *baseline; /* NULL: none */
};

/* Measures all that the options ask for and prints it from rank 0. Returns the exit code: 0 only when all went well and
   every output was right. Collective. */
int bench_run(const struct bench_world *world, const struct bench_options *options);

/* ---- bench_case.c ----------------------------------------------------------------------------------------------- */

/* Summary of the iterations of one contender, in microseconds. */
struct bench_times {
    double median_us, min_us, p99_us;
};

struct bench_result {
    const char *op, *path;
    bool cached;
    int64_t tokens;
    struct bench_times expar, copy, nt_copy, mpi; /* copy: by memcpy, nt_copy: by non-temporal stores */
    bool has_mpi, verified;
    /* Mean over ranks of the bytes of rows that go into a rank's output. Dispatch: the rows received. Combine: the rows
       that are summed, which are the same ones on their way back. */
    double bytes;
};

/* The memory and objects of one token count, shared by its cases. */
struct bench_session {
    const struct bench_world *world;
    const struct bench_options *options;
    struct problem *problem;
    int threads;
    expar_ep *ep;
    void *x;             /* [T][H] private */
    void *y;             /* [T][H] private */
    float *weights;      /* [T][K] */
    unsigned char *rows; /* [largest R][H] symmetric: target of the copies, input of combine */
    struct copy_limit *push, *pull;
    void *baseline; /* of world->baseline */
};

/* Each measures one result; collective. False after saying why it cannot be had. */
bool bench_case_dispatch(struct bench_session *session, expar_path path, bool cached, struct bench_result *result);
bool bench_case_combine(struct bench_session *session, expar_path path, struct bench_result *result);

/* ---- bench_measure.c -------------------------------------------------------------------------------------------- */

/* One of those who take turns. */
struct contender {
    bool (*before)(void *context);           /* not timed: what it works on is in the caches. NULL: nothing to do */
    bool (*run)(void *context);              /* timed */
    bool (*after)(void *context, bool last); /* not timed; last: of the last iteration. NULL: nothing to do */
    void *context;
    bool untimed;             /* this rank's clock does not count; rank 0's always must */
    struct bench_times times; /* out, the same on all ranks */
};

/* Runs warmup + iters turns of all contenders. False when one of them failed on this rank or a barrier failed.
 * Collective. */
bool bench_measure(const struct bench_world *world, const struct bench_options *options, const char *label,
                   struct contender *contenders, int count);

/* True when `mine` is true on all ranks. Collective; false too when the group failed. */
bool bench_all_true(const struct bench_world *world, bool mine);
/* Mean of a number over all ranks. */
bool bench_mean(const struct bench_world *world, double mine, double *mean);

/* ---- bench_verify.c --------------------------------------------------------------------------------------------- */

/* Each compares a whole output of this rank with what follows from the routing, and says on stderr which token is
 * wrong. */
bool verify_rows(const struct problem *problem, uint64_t salt, const void *rows);
bool verify_dispatch(const struct problem *problem, uint64_t salt, const expar_dispatch_result *result, bool cached);
bool verify_combine(const struct problem *problem, uint64_t salt, const void *y);

/* ---- copy_limit.c ----------------------------------------------------------------------------------------------- */

/* The copy limit: the least that an operation must move, by bare copies with the same number of threads.
 *
 * Dispatch (push): each row of x is copied to its place on each rank that must have it, token by token.
 * Combine (pull): each row that belongs to a token is read where its holder keeps it, and one row is written for the
 * token: by memcpy all of a token's rows go into its row of y, one over the other, which stays in the cache meanwhile;
 * the non-temporal way copies all but the last into a scratch row in the cache, and the last one to y. */
struct copy_limit;
struct copy_limit *copy_limit_push(const struct bench_session *session); /* NULL: no memory, or no such pointer */
struct copy_limit *copy_limit_pull(const struct bench_session *session);
bool copy_limit_memcpy(void *limit); /* contender's run */
bool copy_limit_nontemporal(void *limit);
void copy_limit_free(struct copy_limit *limit);

/* ---- bench_report.c --------------------------------------------------------------------------------------------- */

/* Prints as the options say. */
void bench_report(const struct bench_options *options, int num_ranks, int threads, const struct bench_result *results,
                  int count);

#endif
