/* SPDX-License-Identifier: Apache-2.0 */
/* The layout that a caller asks for by itself: counts of tokens for each rank, node and expert, and who goes where.
 *
 * ep_count: each lane takes a token. For each rank and node the warp counts its ballot at once. Experts are counted in
 * shared memory first. It reads topk_idx once for the experts and again, from the cache, for each 32 ranks and nodes.
 * It writes a byte for each token and rank, and adds to the counts, which are zero before, by atomics. Indices outside
 * [-1, E) count as -1. No thread waits.
 *
 * Registers: under 64; shared memory: [E] counters, dynamic. */
#include "exec/cuda/kernels/normal/slots.h"

GPU_FUNC void count_experts(const gpu_count_args *a, int64_t token, int32_t *counts)
{
    for (int32_t first = 0; first < a->topk; first += GPU_LANE_SLOTS) {
        int64_t experts[GPU_LANE_SLOTS];
        load_slots(&a->route, a->topk, token, first, experts);
#pragma unroll
        for (int32_t i = 0; i < GPU_LANE_SLOTS; i++)
            if (experts[i] >= 0 && experts[i] < a->experts) atomicAdd(&counts[experts[i]], 1);
    }
}

/* A warp calls it, with a token in each lane; `here`: there is such a token. counts: [number] or NULL. in_team:
   [T][number] or NULL. */
GPU_FUNC void count_teams(const gpu_count_args *a, int64_t token, bool here, int32_t number, int32_t *counts,
                          uint8_t *in_team)
{
    const gpu_teams teams = {a->topk, a->experts, a->experts / number};
    int32_t lane = threadIdx.x % 32;
    if (!counts && !in_team) return;
    for (int32_t word = 0; word * 32 < number; word++) {
        uint32_t bits = here ? teams_of(&a->route, &teams, token, word) : 0;
        for (int32_t i = 0; i < 32 && word * 32 + i < number; i++) {
            uint32_t mask = __ballot_sync(GPU_ALL, bits >> i & 1);
            if (counts && lane == i && mask) atomicAdd(&counts[word * 32 + i], __popc(mask));
            if (in_team && here) in_team[token * number + word * 32 + i] = bits >> i & 1;
        }
    }
}

GPU_KERNEL(256) ep_count(GPU_ARGS gpu_count_args a)
{
    GPU_LAUNCH_SHARED(int32_t, block_counts);
    int32_t *counts = a.shared_counts ? block_counts : a.tokens_per_expert;
    block_counts_open(block_counts, a.shared_counts ? a.experts : 0);
    int64_t stride = (int64_t)gridDim.x * blockDim.x, warp = threadIdx.x / 32 * 32;
    for (int64_t first = (int64_t)blockIdx.x * blockDim.x + warp; first < a.tokens; first += stride) {
        int64_t token = first + threadIdx.x % 32;
        bool here = token < a.tokens;
        if (here && a.tokens_per_expert) count_experts(&a, token, counts);
        count_teams(&a, token, here, a.ranks, a.tokens_per_rank, a.token_in_rank);
        count_teams(&a, token, here, a.nodes, a.tokens_per_node, NULL);
    }
    block_counts_close(block_counts, a.shared_counts ? a.experts : 0, a.tokens_per_expert);
}
