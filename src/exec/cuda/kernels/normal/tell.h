/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of a routing, written to the caller's memory. Notify does it for fresh dispatches and routes, and
 * ep_tell_counts for dispatches with a handle. */
#ifndef EXEC_CUDA_KERNELS_NORMAL_TELL_H
#define EXEC_CUDA_KERNELS_NORMAL_TELL_H

#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/normal/records.h"

GPU_FUNC int64_t aligned_count(int32_t count, int32_t alignment)
{
    uint32_t unit = alignment > 1 ? (uint32_t)alignment : 1;
    return ((uint32_t)count + unit - 1) / unit * unit;
}

/* Returns the number of rows that have come. */
GPU_FUNC int64_t rows_held(const int32_t *rank_prefix, int32_t ranks, int64_t rows)
{
    int64_t came = rank_prefix[ranks - 1];
    return came < rows ? came : rows;
}

/* Writes the counts of experts. One warp calls it, with an expert in each lane; it sums the rounded counts across
   lanes. */
GPU_FUNC void tell_experts(const gpu_tell_args *a)
{
    int32_t lane = threadIdx.x, locals = a->local_experts;
    int64_t before = 0;
    if (lane == 0 && a->expert_prefix) a->expert_prefix[0] = 0;
    for (int32_t first = 0; first < locals; first += 32) {
        int32_t e = first + lane, count = e < locals ? a->expert_counts[e] : 0;
        int64_t rounded = aligned_count(count, a->alignment), sum = rounded;
        for (int32_t step = 1; step < 32; step *= 2) {
            int64_t below = __shfl_up_sync(GPU_ALL, sum, step);
            if (lane >= step) sum += below;
        }
        if (e < locals && a->tokens_per_expert) a->tokens_per_expert[e] = count;
        if (e < locals && a->expert_prefix) a->expert_prefix[e + 1] = ep_saturate(before + sum);
        if (e < locals && a->expert_ends) a->expert_ends[e] = ep_saturate(before + sum - rounded + count);
        before += __shfl_sync(GPU_ALL, sum, 31);
    }
}

/* The first warp of a block calls it. */
GPU_FUNC void tell_counts(const gpu_tell_args *a)
{
    tell_experts(a);
    for (int32_t r = threadIdx.x; r < a->ranks && a->rank_prefix; r += 32)
        a->rank_prefix[r] = a->routing_prefix[r];
    if (threadIdx.x == 0 && a->num_recv_tokens) *a->num_recv_tokens = rows_held(a->routing_prefix, a->ranks, a->rows);
}

#endif
