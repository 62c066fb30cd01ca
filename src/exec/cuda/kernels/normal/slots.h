/* SPDX-License-Identifier: Apache-2.0 */
/* A token's slots, as the layout kernels look at them. layout.cu and counts.cu use it. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_SLOTS_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_SLOTS_H

#include "exec/cuda/kernels/normal/records.h"

/* The slots of a token that a lane loads at once. A loop that looks at each slot before it loads the next would wait
   for memory once for each slot. */
#define GPU_LANE_SLOTS 8

/* How a token's experts are counted. */
typedef struct gpu_teams {
    int32_t topk, experts;
    int32_t size; /* experts of a team: those of a rank, or of a node */
} gpu_teams;

/* Loads slots first … first + GPU_LANE_SLOTS - 1; -1 beyond the last. */
GPU_FUNC void load_slots(const gpu_route *route, int32_t topk, int64_t token, int32_t first,
                         int64_t experts[GPU_LANE_SLOTS])
{
#pragma unroll
    for (int32_t i = 0; i < GPU_LANE_SLOTS; i++)
        experts[i] = first + i < topk ? expert_at(route, token, first + i) : -1;
}

/* Returns the token's teams among 32 · word … 32 · word + 31. */
GPU_FUNC uint32_t teams_of(const gpu_route *route, const gpu_teams *teams, int64_t token, int32_t word)
{
    uint32_t bits = 0;
    for (int32_t first = 0; first < teams->topk; first += GPU_LANE_SLOTS) {
        int64_t experts[GPU_LANE_SLOTS];
        load_slots(route, teams->topk, token, first, experts);
#pragma unroll
        for (int32_t i = 0; i < GPU_LANE_SLOTS; i++) {
            if (experts[i] < 0 || experts[i] >= teams->experts) continue;
            int32_t team = (int32_t)experts[i] / teams->size;
            if (team / 32 == word) bits |= 1u << (team % 32);
        }
    }
    return bits;
}

/* ---- counts of a block ------------------------------------------------------------------------------------------- */

/* All threads call it: sets counters in shared memory to zero. */
GPU_FUNC void block_counts_open(int32_t *counts, int32_t number)
{
    for (int32_t i = threadIdx.x; i < number; i += blockDim.x)
        counts[i] = 0;
    __syncthreads();
}

/* All threads call it after they have counted: adds the counters to those of the grid. */
GPU_FUNC void block_counts_close(const int32_t *counts, int32_t number, int32_t *sums)
{
    __syncthreads();
    for (int32_t i = threadIdx.x; i < number; i += blockDim.x)
        if (counts[i]) atomicAdd(&sums[i], counts[i]);
}

#endif
