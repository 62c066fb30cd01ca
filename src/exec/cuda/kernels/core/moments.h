/* SPDX-License-Identifier: Apache-2.0 */
/* Moments of a kernel at which its warps read the GPU's clock, for benchmarks: nanoseconds, in device memory of
 * [moments][blocks][warps of a block] words. Each word is written by lane 0 of its warp alone (stamp_warp in device.h,
 * ll_stamp_time), by plain stores, and read by the host once the kernel has ended (exec/cuda/core/stamps.h). The
 * benchmark's kernels write them like the library's. Compiles as C17, under NVRTC and under nvcc. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_MOMENTS_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_MOMENTS_H

/* Notify, which has words of its own: block 0 its start; the last block when all is laid out, this rank's hellos are on
   their way, all hellos are here, at its end. */
#define GPU_NOTIFY_MOMENTS 5

/* Dispatch and combine, each warp: start, offers known, its rows on their way; the last block's warps their end. */
enum { GPU_STARTED, GPU_OPENED, GPU_SENT, GPU_ENDED, GPU_MOMENTS };

/* Low-latency mode, each warp: at its start; when its part of the last row it sends is stored, ahead of the block's
   flag; when it has seen the last flag it waits for; when it is through with its work; those of the last block at its
   end. 0: it has not come there. */
enum { LL_GPU_STARTED, LL_GPU_SENT, LL_GPU_SEEN, LL_GPU_DONE, LL_GPU_ENDED, LL_GPU_MOMENTS };

#endif
