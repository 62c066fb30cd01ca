/* SPDX-License-Identifier: Apache-2.0 */
/* Moments of a kernel at which its warps read the GPU's clock, for benchmarks. The times are nanoseconds, in device
 * memory of [moments][blocks][warps of a block] words. Lane 0 of each warp writes the warp's words (stamp_warp in
 * device.h, ll_stamp_time), by plain stores. The host reads them after the kernel has ended (exec/cuda/core/stamps.h).
 * The benchmark's kernels write them in the same way. Compiles as C17, under NVRTC and under nvcc. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_MOMENTS_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_MOMENTS_H

/* The five moments of notify, which has words of its own. Block 0 writes its start. The last block writes the other
   four: the layout is complete, this rank's headers are sent, all headers are here, its end. */
#define GPU_NOTIFY_MOMENTS 5

/* Dispatch and combine, each warp: its start, advertisements known, its rows sent. The last block's warps write their
   end. */
enum { GPU_STARTED, GPU_OPENED, GPU_SENT, GPU_ENDED, GPU_MOMENTS };

/* Low-latency mode, each warp. STARTED: its start. SENT: its part of the last row that it sends is stored, before the
   block's flag. SEEN: it has seen the last flag that it awaits. DONE: its work is done. ENDED: the end, for warps of
   the last block. 0: it has not reached the moment. */
enum { LL_GPU_STARTED, LL_GPU_SENT, LL_GPU_SEEN, LL_GPU_DONE, LL_GPU_ENDED, LL_GPU_MOMENTS };

#endif
