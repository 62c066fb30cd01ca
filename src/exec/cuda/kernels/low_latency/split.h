/* SPDX-License-Identifier: Apache-2.0 */
/* Divides rows, messages or tokens among the blocks of a kernel and the warps of a block. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_SPLIT_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_SPLIT_H

#include "exec/cuda/kernels/low_latency/call.h"

/* Threads that work on one row together: those of several blocks, of one block, or of a part of its warps. */
typedef struct ll_team {
    int32_t at, threads; /* this thread's number, and the number of threads */
} ll_team;

/* Rows, messages or tokens: this thread's team has every stride-th from the first on. */
typedef struct ll_split {
    int32_t first, stride;
    int32_t part, parts; /* blocks that share each of them */
    ll_team team;
    int32_t group, groups; /* teams of the block */
} ll_split;

/* Chooses as many teams for each block, up to most_groups, as give each team one item at most. If items are few,
   up to most_parts blocks share each item. Items begin at block first_block. */
GPU_FUNC ll_split ll_split_of(int32_t items, int32_t first_block, int32_t most_parts, int32_t most_groups)
{
    const int32_t blocks = (int32_t)gridDim.x, from = first_block < blocks ? first_block : 0;
    const int32_t block = (int32_t)blockIdx.x - from + ((int32_t)blockIdx.x < from ? blocks : 0);
    int32_t parts = 0, groups = 0; /* exponents of two */
    while (2 << parts <= most_parts && (int64_t)items << (parts + 1) <= blocks)
        parts++;
    while (2 << groups <= most_groups && items > blocks << groups)
        groups++;
    const int32_t threads = LL_GPU_THREADS >> groups;
    ll_split split;
    split.parts = 1 << parts;
    split.part = block & (split.parts - 1);
    split.groups = 1 << groups;
    split.group = (int32_t)threadIdx.x >> (LL_GPU_LOG_THREADS - groups);
    split.stride = blocks >> parts << groups;
    split.first = (block >> parts << groups) + split.group;
    if (split.first >= split.stride) split.first = items; /* a block that is left over has no item */
    split.team.at = split.part * threads + ((int32_t)threadIdx.x & (threads - 1));
    split.team.threads = threads << parts;
    return split;
}

/* Threads of a block that store a row meet here before its flag is stored. */
GPU_FUNC void ll_meet_group(const ll_split *split)
{
    if (split->groups == 1)
        __syncthreads();
    else
        meet_at(1 + split->group, LL_GPU_THREADS / split->groups);
}
GPU_FUNC int32_t ll_thread_of_group(const ll_split *split)
{
    return (int32_t)threadIdx.x % (LL_GPU_THREADS / split->groups);
}
/* Returns whether this thread waits for its team's data. For ranks that are not mapped one warp does. */
GPU_FUNC bool ll_leads(const ll_split *split)
{
    return !LL_FAR || ll_thread_of_group(split) < 32;
}
/* For kernels in which one warp of a team waits. The team's warps in this block meet, and learn whether that one has
   given up at this item, a number from 0 on. So all of them go on, or none. All that the waiting warp has acquired is
   visible to the others. */
GPU_FUNC bool ll_group_goes_on(const ll_shared *s, const ll_split *split, int32_t item, bool left)
{
    if (left) s->left[split->group] = item + 1;
    ll_meet_group(split);
    return s->left[split->group] != item + 1;
}
GPU_FUNC ll_team ll_group_of(const ll_split *split)
{
    const ll_team group = {ll_thread_of_group(split), LL_GPU_THREADS / split->groups};
    return group;
}

#endif
