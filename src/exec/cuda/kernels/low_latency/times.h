/* SPDX-License-Identifier: Apache-2.0 */
/* How long a call takes: stamps of warps, for benchmarks, and how long a receive has waited for each rank. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_TIMES_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_TIMES_H

#include "exec/cuda/kernels/low_latency/call.h"

/* ---- stamps ------------------------------------------------------------------------------------------------------ */

/* Stores the warp's stamp. */
GPU_FUNC void ll_stamp_time(const ll_gpu_call *c, int32_t which)
{
    if (!c->stamps || threadIdx.x % 32) return;
    c->stamps[(which * gridDim.x + blockIdx.x) * LL_BLOCK_WARPS + threadIdx.x / 32] = clock_now();
}
GPU_FUNC void ll_stamp_start(const ll_gpu_call *c)
{
    if (!c->stamps || threadIdx.x % 32) return;
    for (int32_t which = LL_GPU_SENT; which < LL_GPU_MOMENTS; which++)
        c->stamps[(which * gridDim.x + blockIdx.x) * LL_BLOCK_WARPS + threadIdx.x / 32] = 0;
    ll_stamp_time(c, LL_GPU_STARTED);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Clears the times that a block's receive has waited for each rank. The wait for a rank's data comes after the wait for
   its header. */
GPU_FUNC void ll_clear_waits(const ll_gpu_call *c, const ll_shared *s)
{
    for (int32_t r = threadIdx.x; c->wait_ns && r < LL_RANKS(c); r += blockDim.x)
        s->waits[r] = 0;
    __syncthreads();
}
GPU_FUNC uint64_t ll_wait_begin(const ll_gpu_call *c)
{
    return c->wait_ns ? clock_now() : 0;
}
/* `before` is how long the block had waited for the rank when this wait began. Several threads that began with the same
   value may call it. */
GPU_FUNC void ll_wait_end(const ll_gpu_call *c, const ll_shared *s, int32_t source, uint64_t before, uint64_t since_ns)
{
    if (c->wait_ns && source != c->place.rank) atomicMax(&s->waits[source], before + (clock_now() - since_ns));
}

/* All threads of a block that has received call it. */
GPU_FUNC void ll_keep_waits(const ll_gpu_call *c, const ll_shared *s)
{
    if (!c->wait_ns) return;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x)
        atomicMax((unsigned long long *)&c->waits[r], s->waits[r]);
}

/* The last block calls it. */
GPU_FUNC void ll_tell_waits(const ll_gpu_call *c)
{
    for (int32_t r = threadIdx.x; c->wait_ns && r < LL_RANKS(c); r += blockDim.x) {
        c->wait_ns[r] += (int64_t)c->waits[r];
        c->waits[r] = 0;
    }
}

#endif
