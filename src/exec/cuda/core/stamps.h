/* SPDX-License-Identifier: Apache-2.0 */
/* stamps: computes times from the stamps that the warps of a kernel have written (kernels/core/moments.h), once the
 * host has fetched them. Times are those of this rank's GPU, counted from the start of its first warp.
 *
 * Executors call it after a stamped call (times.c, low_latency/times.c). The benchmark calls it after kernels of its
 * own, so that both report alike. */
#ifndef EXPAR_EXEC_CUDA_CORE_STAMPS_H
#define EXPAR_EXEC_CUDA_CORE_STAMPS_H

#include "exec/cuda/kernels/core/moments.h"
#include "exec/low_latency.h"
#include "exec/normal.h"

/* stamps: [GPU_MOMENTS][warps], warps > 0; the stamps of each moment are sorted by time. out->notified is not set.
   False: no warp has reached the end, or some warp has written no start. */
bool gpu_stamps_read(uint64_t *stamps, size_t warps, executor_times *out);

/* Likewise for [LL_GPU_MOMENTS][warps]. Warps may lack the moments between start and end. */
bool ll_stamps_read(uint64_t *stamps, size_t warps, ll_times *out);

/* Microseconds from one moment to another; 0 if the second is not later than the first. */
double gpu_stamps_between(uint64_t from, uint64_t to);

#endif
