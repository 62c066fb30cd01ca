/* SPDX-License-Identifier: Apache-2.0 */
/* gpu: the benchmark on GPUs. Its ranks are threads of one process, so that a list of (row, places) may name the memory
 * of any GPU, as the copy roofline needs.
 *
 *   main.c    the ranks: devices, streams, threads
 *   device.c  struct bench_device: memory, and turns timed behind the gate (kernels/gate.cu)
 *   copy.c    the copy limit (kernels/copy_limit.cu)
 *   ll.c      low-latency mode: shared memory, its copy limit, round trips (kernels/ll_limit.cu)
 *   encode.c  the coding of rows that a caller does (kernels/encode.cu)
 *   rma*.c    kernels' operations on symmetric memory (rma.h, kernels/rma.cu)
 *   stamps.c  clocks that the copy limits' kernels write
 *   kernels/forms.h  what kernels are handed
 *
 * Called through bench/bench.h (bench_gpu_main); calls the library's public interface, and what it shows to the tools:
 * cuda/cuda.h, exec/cuda/kernels/core/tools.h and exec/cuda/core/stamps.h for kernels of its own, mem/device.h,
 * ep/normal/tools.h. */
#ifndef EXPAR_BENCH_GPU_GPU_H
#define EXPAR_BENCH_GPU_GPU_H

#include "bench/low_latency/place.h"
#include "bench/normal/mode.h"
#include "cuda/cuda.h"
#include "exec/cuda/core/stamps.h"
#include "mem/device.h"
#include <pthread.h>
#include <stdatomic.h>

/* Shared by the ranks. */
struct gpu_crew {
    const struct bench_options *options;
    mem_pinned words;
    /* In pinned memory. turns[r]: the turn that rank r's host has come to, ~0 when it gave up. It is written by that
       host (release), and read by all ranks' gates (acquire). expired[r]: 1 when rank r's gate met its deadline. It is
       written by the gate, and read by rank r's host after its stream. */
    _Atomic uint64_t *turns;
    _Atomic uint32_t *expired;
};

struct gpu_rank {
    struct gpu_crew *crew;
    struct bench_world world;
    pthread_t thread;
    cuda_device *device;
    cu_stream stream;
    cu_event start, end;
    cuda_program *copy_program, *gate_program, *ll_program, *encode_program;
    cu_function push, pull, gate, encode;     /* encode: of normal mode */
    cu_function ll_turn, ll_trip, ll_nothing; /* where low-latency mode is measured */
    uint64_t turn;
    int code; /* exit code of this rank */
};

/* ---- device.c ---------------------------------------------------------------------------------------------------- */
extern const struct bench_device bench_cuda, bench_cuda_nodes;
/* The time limit of a kernel that waits for another rank. gpu_expired returns the word that a kernel sets when it
   reaches the limit. */
#define GPU_TURN_TIMEOUT_NS UINT64_C(30000000000)
uint32_t *gpu_expired(const struct gpu_rank *rank);
/* Call this when this rank fails. The other ranks' gates then do not wait for it. */
void gpu_give_up(struct gpu_rank *rank);

/* ---- copy.c ------------------------------------------------------------------------------------------------------ */
/* The check of gpu_normal_site. It rejects rows that do not fit its kernels. */
bool gpu_copy_check(const struct bench_world *world, const struct bench_options *options);
expar_status gpu_copy_load(struct gpu_rank *rank);
/* The second one is for ranks of several nodes, whose host carries calls out. */
extern const struct bench_site gpu_normal_site, gpu_normal_nodes_site;

/* ---- encode.c ---------------------------------------------------------------------------------------------------- */
expar_status gpu_encode_load(struct gpu_rank *rank);
/* The function of bench_cuda. */
bool gpu_encode(const struct bench_world *world, const struct bench_coding *coding);

/* ---- stamps.c ---------------------------------------------------------------------------------------------------- */
/* Device memory, [moments][warps], that a kernel writes and the host reads after it; one kernel after another. */
struct kernel_stamps {
    const struct bench_world *world;
    uint64_t *words; /* NULL: none are taken */
    size_t moments, warps;
};
/* Allocates zeroed memory; false after saying why not. */
bool kernel_stamps_open(struct kernel_stamps *stamps, const struct bench_world *world, size_t moments, size_t warps);
/* A struct of zeros is allowed. */
void kernel_stamps_close(struct kernel_stamps *stamps);
/* Return the moments of the last kernel, which is done, with GPU_MOMENTS and with LL_GPU_MOMENTS. False: there are
   none. */
bool kernel_stamps_of_rows(const struct kernel_stamps *stamps, struct bench_moments *out);
bool kernel_stamps_of_turn(const struct kernel_stamps *stamps, struct bench_moments *out);
/* Convert the moments of the library's times. */
struct bench_moments gpu_moments_of_rows(const executor_times *times);
struct bench_moments gpu_moments_of_turn(const ll_times *times);

/* ---- ll.c -------------------------------------------------------------------------------------------------------- */
expar_status gpu_ll_load(struct gpu_rank *rank);
/* On one node, and on several. */
extern const struct ll_place ll_cuda, ll_cuda_nodes;
extern const struct bench_site gpu_ll_site, gpu_ll_nodes_site;

/* ---- rma.c ------------------------------------------------------------------------------------------------------- */
/* Measures kernels' operations on symmetric memory, and prints what it found; returns the exit code. */
int gpu_rma_main(const struct bench_options *options);

#endif
