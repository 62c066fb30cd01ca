/* SPDX-License-Identifier: Apache-2.0 */
/* stamps: what the warps of a kernel have written of their way (kernels/core/moments.h), as the host has fetched it,
 * made times of: those of this rank's GPU, counted from its first warp's start.
 *
 * Called by the executors behind a call that is stamped (times.c, low_latency/times.c), and by the benchmark behind
 * kernels of its own, so that both are told alike. */
#ifndef EXPAR_EXEC_CUDA_CORE_STAMPS_H
#define EXPAR_EXEC_CUDA_CORE_STAMPS_H

#include "exec/cuda/kernels/core/moments.h"
#include "exec/low_latency.h"
#include "exec/normal.h"

/* stamps: [GPU_MOMENTS][warps], warps > 0, and each moment's are put in the order of time. out is notified by nothing.
   False: no warp has come to the end, or some warp has written no start. */
bool gpu_stamps_read(uint64_t *stamps, size_t warps, executor_times *out);

/* The same of [LL_GPU_MOMENTS][warps]; at moments between start and end warps may be missing. */
bool ll_stamps_read(uint64_t *stamps, size_t warps, ll_times *out);

/* From one moment to another, in microseconds; 0 where the second is not behind the first. */
double gpu_stamps_between(uint64_t from, uint64_t to);

#endif
