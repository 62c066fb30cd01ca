/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of `expar bench rma --device cuda` share.
 *
 *   rma.c         the ways, one after another: ranks, memory, kernels
 *   rma_cases.c   one operation, beside a bare kernel
 *   rma_rates.c   commands and requests of one word: how many in a second, and how long one takes
 *   rma_report.c  JSON, CSV, tables
 *
 * Ranks are threads, rank r on GPU r mod G. Operations go from rank 0 to the last rank. */
#ifndef EXPAR_BENCH_GPU_RMA_H
#define EXPAR_BENCH_GPU_RMA_H

#include "bench/bench.h"
#include "bench/frame/measure.h"
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels/rma_forms.h"
#include <expar/info.h>

enum { RMA_GPU_RESULTS = 10 * RMA_GPU_OPS * BENCH_MAX_SIZES, RMA_GPU_RATES = 4 };
/* Words of one thread that are timed; and where kernels leave their spans, in words of pinned memory. */
enum { RMA_GPU_SAMPLES = 1000, RMA_GPU_SPANS_AT = 8 };
typedef enum rma_gpu_way { RMA_GPU_MAPPED = 0, RMA_GPU_GDA, RMA_GPU_PROXY, RMA_GPU_WAYS } rma_gpu_way;
extern const char *const rma_gpu_way_names[];

/* One operation by one way and scope, with one size. */
typedef struct rma_gpu_result {
    const char *op, *way, *memory, *scope, *baseline; /* baseline NULL: there is none */
    size_t bytes;
    struct bench_times times, bare; /* of one operation; a put_signal is half of a round trip */
    bool verified;
} rma_gpu_result;

/* Words that kernels put, each by a command to a ring or a request in a queue. */
typedef struct rma_gpu_rate {
    const char *way;
    int rings;                                 /* of commands; 0: requests */
    double commands_per_s, completed_per_s;    /* that threads issue, and that complete, with many on their way */
    double requests, request_bytes, doorbells; /* of one word */
    struct bench_times times;                  /* of one word alone: from its issue until the thread sees its end */
    double mean_us, device_us;                 /* the device's part: from the doorbell to the completion */
    bool verified;
} rma_gpu_rate;

/* All results. Rank 0 writes them, the main thread reads them after the ranks have ended. */
typedef struct rma_gpu_results {
    rma_gpu_result list[RMA_GPU_RESULTS];
    int count;
    rma_gpu_rate rates[RMA_GPU_RATES];
    int num_rates;
} rma_gpu_results;

/* The ranks of one group, by one way. */
typedef struct rma_ranks {
    const struct bench_options *options;
    rma_gpu_results *results;
    rma_gpu_way way;
    int rings;       /* of each rank */
    bool rates_only; /* operations were measured before */
    size_t largest;
    pthread_barrier_t meet;
    /* A rank has failed. Any rank sets it, and one rank copies it to is_over between the two barriers of a meeting.
       All read that one after the second barrier. */
    _Atomic bool failed;
    bool is_over;
} rma_ranks;

typedef struct rma_rank {
    rma_ranks *all;
    expar_group *group;
    pthread_t thread;
    int32_t rank, size;
    cuda_device *device;
    cuda_program *program;
    cu_function function, post;
    cu_stream stream;
    cu_event start, end;
    mem_pinned words;
    unsigned char *memory;  /* dest, source, and a signal */
    unsigned char *samples; /* memory of the GPU, in which kernels count cycles */
    double *us, *bare_us;   /* [iters] */
    rma_gpu_call call;
} rma_rank;

/* ---- rma.c ------------------------------------------------------------------------------------------------------- */

/* Prints a failure of the library, and marks it. Returns whether there was none. */
bool rma_gpu_good(rma_rank *r, expar_status status);
/* Returns whether all ranks have come without a failure. */
bool rma_gpu_meet(rma_rank *r);
/* Runs the kernel on this rank with the call, and waits for it. */
bool rma_gpu_launch(rma_rank *r, uint32_t blocks, uint32_t threads);

/* ---- rma_cases.c, rma_rates.c: all ranks call them together ------------------------------------------------------ */

bool rma_gpu_measure_cases(rma_rank *r);
bool rma_gpu_measure_rate(rma_rank *r);

/* ---- rma_report.c ------------------------------------------------------------------------------------------------ */

/* Prints as the options say. False after saying what could not be written. */
bool rma_gpu_report(const struct bench_options *options, const rma_gpu_results *results);

#endif
