/* SPDX-License-Identifier: Apache-2.0 */
/* bench: measures dispatch and combine, in normal and in low-latency mode, and operations on symmetric memory. It
 * compares them with the best that the machine can do, and verifies every byte of their output.
 *
 * Called by `expar bench` and by expar-bench-mpi (this header). It calls the public interface of the library only, and
 * bench/gpu also the parts of the library's CUDA layer, device memory and ep that are for tools. From below:
 *
 *   frame/         what both modes have alike: sessions, turns and loops with their times, routings, reports
 *   normal/        dispatch and combine: calls, verification, copy limit, what is printed
 *   low_latency/   the same in low-latency mode: formats, sums and hooks, round trips of a flag
 *   rma/           operations on symmetric memory, by several ways that take turns
 *   setup/         groups, and buffers without limits, that are made and ended
 *   gpu/           normal/ and low_latency/ on GPUs: ranks that are threads, tensors, gate, copy limits; kernels/
 *   mpi/           the baseline over MPI, and its program
 *   cpu.c          the CPU as a device: tensors, turns
 *   options.c      options and their checks; option_table.c has their table
 *
 * An iteration's time is last end − first start over all ranks: on CLOCK_MONOTONIC after a barrier, on GPUs by events
 * after a gate that opens for all streams at once. All contenders (expar, copies, baseline) take turns within each
 * iteration, so that a noisy moment hits all alike. */
#ifndef EXPAR_BENCH_BENCH_H
#define EXPAR_BENCH_BENCH_H

#include "bench/frame/device.h"
#include "bench/frame/options.h"
#include "bench/low_latency/mode.h"
#include "bench/normal/mode.h"
#include <argp.h>

/* ---- options.c --------------------------------------------------------------------------------------------------- */

extern const struct argp_option bench_option_table[];
void bench_options_init(struct bench_options *options);
/* argp's parser; input is a struct bench_options. Checks all that can be checked before ranks are there. */
error_t bench_options_parse(int key, char *arg, struct argp_state *state);

/* ---- frame/run.c, rma/run.c, setup/run.c, gpu/main.c ------------------------------------------------------------- */

/* Each measures all that the options ask for and prints it from rank 0. Returns the exit code: 0 only when all went
   well and every output was right. */

/* Dispatch and combine, in the mode that is asked for. Collective. */
static inline int bench_run(const struct bench_world *world, const struct bench_options *options)
{
    return bench_run_mode(world, options, options->ll.wanted ? &ll_mode : &normal_mode);
}
/* Operations on symmetric memory, in groups that it forms from the environment, one a transport. Collective. */
int rma_run(const struct bench_options *options);
/* setup_run measures the time until ranks have a group and a buffer. The other function rejects wrong options of it.
   Collective. */
int setup_run(const struct bench_world *world, const struct bench_options *options);
void setup_options_check(struct argp_state *state, struct bench_options *options);
/* Both modes on options->num_ranks threads that share out options->num_gpus GPUs. */
int bench_gpu_main(const struct bench_options *options);

#endif
