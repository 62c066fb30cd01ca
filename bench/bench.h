/* SPDX-License-Identifier: Apache-2.0 */
/* bench: measures dispatch and combine against what the machine can do at best, and verifies every byte of their
 * output.
 *
 * Called by `expar bench` and by expar-bench-mpi; calls the public interface of the library only (gpu_*.c besides: its
 * CUDA layer). On the way of a run:
 *
 *   bench_options.c   options and their checks            routing.c, npy.c  who goes where
 *   bench_run.c       the cases, one after another        problem.c         what follows from the routing, by own code
 *   bench_session.c   memory and objects of one case      pattern.c         contents of rows, and sums of them
 *   bench_dispatch.c, bench_combine.c  the operations     bench_verify.c    outputs against what they must be
 *   bench_measure.c   turns, times of all ranks           stats.c           median, minimum, 99th percentile
 *   bench_report.c, bench_json.c, machine.c  table, CSV, JSON
 *   mpi_*.c           the baseline over MPI, in its own program
 *   rma.h, rma_*.c  operations on symmetric memory, by themselves
 *   device_cpu.c, copy_limit.c  tensors, clock and copies on the CPU
 *   gpu_*.c, kernels/           the same on GPUs
 *
 * An iteration's time is last end − first start over all ranks: on CLOCK_MONOTONIC behind a barrier, on GPUs by events
 * behind a gate that opens for all streams at once. All contenders (expar, copies, baseline) take turns within each
 * iteration, so that a noisy moment hits all alike. */
#ifndef EXPAR_BENCH_BENCH_H
#define EXPAR_BENCH_BENCH_H

#include "problem.h"
#include <argp.h>
#include <expar/expar.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_MAX_SWEEP 64

#define BENCH_MAX_DTYPES 4

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
    bool layout;                     /* what a fresh dispatch takes beyond a cached one */
    bool cuda;                       /* on GPUs, else on the CPU */
    int num_ranks;                   /* 0 until checked: 8, or as many as there are GPUs */
    int num_gpus;                    /* ranks share out so many; 0: none, or until checked all */
    int64_t tokens[BENCH_MAX_SWEEP]; /* of each rank, one measurement each */
    int num_tokens;
    int hidden, topk, experts; /* topk, experts 0: not given */
    expar_dtype dtypes[BENCH_MAX_DTYPES];
    int num_dtypes;
    const char *routing; /* a generator's name, or a .npy file */
    int iters, warmup;
    int workers[BENCH_MAX_SWEEP]; /* threads or SMs of a rank; 0: as the library chooses */
    int num_workers;
    expar_path path;
    bool all_paths; /* direct and queue, a result each; `path` is ignored */
    enum bench_cached cached;
    bool has_cached; /* it was given */
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
    const struct bench_device *device;
    expar_device place; /* of this rank's tensors */
    void *stream;       /* the CUstream of its calls; NULL on the CPU */
    void *gpu;          /* of bench_cuda: this rank's struct gpu_rank */
};

/* Measures all that the options ask for and prints it from rank 0. Returns the exit code: 0 only when all went well and
   every output was right. Collective. */
int bench_run(const struct bench_world *world, const struct bench_options *options);

/* ---- results ---------------------------------------------------------------------------------------------------- */

/* Summary of the iterations of one contender, in microseconds. */
struct bench_times {
    double median_us, min_us, p99_us;
};

/* Ways to copy, each a contender: memcpy and non-temporal stores, or push and pull. */
#define BENCH_MAX_COPIES 2

/* Where the time of a call goes, by clocks read in its kernels (executor_times), in microseconds: the spans of notify
   and the gap behind it, which only a fresh dispatch has, and those of the dispatch or combine. */
enum bench_span_name {
    BENCH_LAYOUT,
    BENCH_HELLOS,
    BENCH_WAIT,
    BENCH_COUNTS,
    BENCH_GAP,
    BENCH_OPEN,
    BENCH_ROWS,
    BENCH_CLOSE,
    BENCH_SPANS
};
struct bench_breakdown {
    bool notified; /* else the first five are 0 */
    double us[BENCH_SPANS];
};
/* Words for them: "layout", … */
extern const char *const bench_span_names[BENCH_SPANS];
/* The first that a call with this breakdown has. */
static inline int bench_first_span(const struct bench_breakdown *b)
{
    return b->notified ? BENCH_LAYOUT : BENCH_OPEN;
}

struct bench_result {
    const char *op, *path;
    bool cached;
    expar_dtype dtype;
    int workers; /* threads or SMs */
    int64_t tokens;
    struct bench_times expar, copies[BENCH_MAX_COPIES], mpi;
    int num_copies; /* 0: nothing to compare with */
    bool has_mpi, verified, has_breakdown;
    struct bench_breakdown breakdown;
    /* Mean over ranks of the bytes of rows that go into a rank's output. Dispatch: the rows received. Combine: the rows
       that are summed, which are the same ones on their way back. */
    double bytes;
};

struct bench_results {
    struct bench_result *items;
    int count, room;
};
/* A new one at the end, zero. NULL: no memory. Those given before stay valid until the next call only. */
struct bench_result *bench_results_add(struct bench_results *results);

/* ---- bench_session.c -------------------------------------------------------------------------------------------- */

/* The memory and objects of one shape, shared by its cases. Tensors lie where world->device has them. */
struct bench_session {
    const struct bench_world *world;
    const struct bench_options *options;
    struct problem *problem;
    int workers; /* threads or SMs of a rank */
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
                        const struct bench_options *options, const struct problem_shape *shape, int workers);
/* After a failure (not sound) nothing collective is tried any more. */
bool bench_session_close(struct bench_session *session, bool sound);
expar_tensor bench_tensor(const struct bench_world *world, const void *data, expar_dtype dtype, int64_t rows,
                          int64_t columns);
/* Of a dispatch of this session's x that computes its routing. */
expar_dispatch_args bench_dispatch_args(const struct bench_session *session, expar_path path);
/* Says a failure of the library on stderr. */
bool bench_good(const struct bench_world *world, expar_status status);
bool bench_complain(const struct bench_world *world, const char *what);

/* Rows of this rank's tokens, and the experts' outputs for the rows that it received, by their names (problem.h). */
bool bench_fill_x(const struct bench_session *session, uint64_t salt);
bool bench_fill_rows(const struct bench_session *session, uint64_t salt);
/* Two fillings that differ everywhere. */
uint64_t bench_first_salt(const struct bench_session *session);
uint64_t bench_measured_salt(const struct bench_session *session);

/* Each appends its results; collective. False after saying why they cannot be had. */
bool bench_case_dispatch(struct bench_session *session, expar_path path, struct bench_results *results);
bool bench_case_combine(struct bench_session *session, expar_path path, struct bench_results *results);

/* ---- bench_measure.c -------------------------------------------------------------------------------------------- */

/* One of those who take turns. */
struct contender {
    /* On the CPU, not timed: what it works on is in the caches. NULL: nothing to do. */
    bool (*before)(void *context);
    bool (*run)(void *context); /* timed */
    /* Not timed; check: one turn behind the timed ones. NULL: nothing to do. */
    bool (*after)(void *context, bool check);
    void (*note)(void *context); /* behind the last timed turn, ahead of `after`. NULL: nothing to do */
    void *context;
    bool untimed;             /* this rank's clock does not count; rank 0's always must */
    struct bench_times times; /* out, the same on all ranks */
    double *series_us;        /* out, [iters] in their order, the same on all ranks; NULL: not wanted */
};

/* Start and end of one iteration on one rank, on a clock that all ranks share; INT64_MAX and INT64_MIN where they do
   not count. */
struct bench_span {
    int64_t start_ns, end_ns;
};

/* Runs warmup + iters turns of all contenders. False when one of them failed on this rank or the ranks could not be
 * brought together. Collective. */
bool bench_measure(const struct bench_world *world, const struct bench_options *options, const char *label,
                   struct contender *contenders, int count);
/* The same for a session (bench_session.c). */
bool bench_session_measure(const struct bench_session *session, const char *op, struct contender *contenders,
                           int count);
/* Where the time of this rank's last call went; false: not known (bench_session.c). */
bool bench_session_breakdown(const struct bench_session *session, struct bench_breakdown *out);
/* Of `count` ≥ 1 times, which are sorted. */
struct bench_times bench_summary(double *times_us, int count);

/* ---- device_cpu.c, gpu_*.c --------------------------------------------------------------------------------- */

/* Where tensors live, how a turn is timed, and what copies there are. */
struct bench_device {
    const char *name;                     /* "cpu", "cuda" */
    const char *workers;                  /* "threads", "sms" */
    const char *copies[BENCH_MAX_COPIES]; /* members of the JSON */
    int held_outputs;                     /* of dispatch, that a session keeps while others come */
    /* Threads or SMs of a rank when none are given. */
    int (*default_workers)(const struct bench_world *world);
    /* Memory of the device for one rank; NULL: no memory. */
    void *(*alloc)(const struct bench_world *world, size_t bytes);
    void (*free)(const struct bench_world *world, void *data);
    /* The bytes of a tensor for the host to read; NULL: they cannot be had. */
    const void *(*view)(const struct bench_world *world, const void *data, size_t bytes);
    void (*unview)(const struct bench_world *world, const void *view);
    /* Where the host writes the bytes of a tensor, and carrying them there, which also ends the draft. */
    void *(*draft)(const struct bench_world *world, void *data, size_t bytes);
    bool (*commit)(const struct bench_world *world, void *data, void *draft, size_t bytes);
    /* Behind everything else of a session: symmetric rows, copies. Collective. */
    bool (*open)(struct bench_session *session);
    void (*close)(struct bench_session *session, bool sound);
    /* Appends the copies of an operation to `contenders`; their number. */
    int (*add_copies)(struct bench_session *session, bool combine, struct contender *contenders);
    /* Brings the ranks together, runs, and takes the time until what was run is done. */
    bool (*turn)(const struct bench_world *world, struct contender *contender, struct bench_span *span);
    /* Where the time of this rank's last call on the session's buffer went; false: that is not known. NULL: never. */
    bool (*breakdown)(const struct bench_session *session, struct bench_breakdown *out);
};
extern const struct bench_device bench_cpu;

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

/* ---- bench_report.c, bench_json.c --------------------------------------------------------------------------- */

/* Prints as the options say. False: memory was lacking, and stderr says so. */
bool bench_report(const struct bench_world *world, const struct bench_options *options,
                  const struct bench_results *results);
void bench_report_json(const struct bench_world *world, const struct bench_options *options,
                       const struct bench_results *results);
/* What follows from the times. A limit of 0: there is none. */
double bench_copy_limit_us(const struct bench_result *result);
double bench_fraction_of_copy_limit(const struct bench_result *result);
double bench_gbps(const struct bench_result *result); /* 10^9 bytes a second */
double bench_speedup(const struct bench_result *result);

#endif
