/* SPDX-License-Identifier: Apache-2.0 */
/* Combines the stamps of all warps. A warp that has not reached a moment has 0 there, which sorts before all others. */
#include "exec/cuda/core/stamps.h"

#include <stdlib.h>

static int earlier_first(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts the stamps of a moment by time. Returns the number of warps that have reached it; their stamps stand last. */
static size_t sort_moment(uint64_t *moment, size_t warps)
{
    size_t none = 0;
    qsort(moment, warps, sizeof *moment, earlier_first);
    while (none < warps && moment[none] == 0)
        none++;
    return warps - none;
}

double gpu_stamps_between(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1000.0 : 0.0;
}

bool gpu_stamps_read(uint64_t *stamps, size_t warps, executor_times *out)
{
    const size_t last = warps - 1;
    size_t come[GPU_MOMENTS];
    for (size_t m = 0; m < GPU_MOMENTS; m++)
        come[m] = sort_moment(stamps + m * warps, warps);
    const uint64_t start = stamps[0], *sent = stamps + GPU_SENT * warps;
    *out = (executor_times){.open_us = gpu_stamps_between(start, stamps[GPU_OPENED * warps + last]),
                            .sent_middle_us = gpu_stamps_between(start, sent[last - warps / 2]),
                            .sent_us = gpu_stamps_between(start, sent[last]),
                            .ended_us = gpu_stamps_between(start, stamps[GPU_ENDED * warps + last])};
    return come[GPU_STARTED] == warps && come[GPU_ENDED] > 0;
}

bool ll_stamps_read(uint64_t *stamps, size_t warps, ll_times *out)
{
    const size_t last = warps - 1;
    size_t come[LL_GPU_MOMENTS];
    for (size_t m = 0; m < LL_GPU_MOMENTS; m++)
        come[m] = sort_moment(stamps + m * warps, warps);
    const uint64_t start = stamps[0], *sent = stamps + LL_GPU_SENT * warps;
    *out = (ll_times){.started_us = gpu_stamps_between(start, stamps[last]),
                      .sent_middle_us = gpu_stamps_between(start, sent[last - come[LL_GPU_SENT] / 2]),
                      .sent_us = gpu_stamps_between(start, sent[last]),
                      .seen_us = gpu_stamps_between(start, stamps[LL_GPU_SEEN * warps + last]),
                      .done_us = gpu_stamps_between(start, stamps[LL_GPU_DONE * warps + last]),
                      .ended_us = gpu_stamps_between(start, stamps[LL_GPU_ENDED * warps + last])};
    return come[LL_GPU_STARTED] == warps && come[LL_GPU_ENDED] > 0;
}
