/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a call goes: clocks that each block of a dispatch or combine reads on its way, for benchmarks.
 *
 * Kernels write [4][blocks] words of pinned memory, a row for each moment; only the last block writes the last one. */
#include "exec/cuda/gpu.h"

#include <string.h>

#define MOMENTS 4

static size_t stamp_bytes(const gpu_executor *self)
{
    return MOMENTS * (size_t)self->num_sms * sizeof(uint64_t);
}

expar_status executor_cuda_stamps(executor *base, bool on)
{
    gpu_executor *self = gpu_of(base);
    if (on && !self->stamp_memory) {
        expar_status status = gpu_scratch_take(self->device, EP_ALIGN_BYTES, stamp_bytes(self), &self->stamp_memory);
        if (status != EXPAR_OK) return status;
    }
    if (on) memset(self->stamp_memory->pinned.host, 0, stamp_bytes(self));
    self->stamps = on ? (uint64_t *)(uintptr_t)self->stamp_memory->pinned.device : NULL;
    return EXPAR_OK;
}

static uint64_t latest(const uint64_t *stamps, int32_t count)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < count; i++)
        most = stamps[i] > most ? stamps[i] : most;
    return most;
}

static uint64_t earliest(const uint64_t *stamps, int32_t count)
{
    uint64_t least = UINT64_MAX;
    for (int32_t i = 0; i < count; i++)
        least = stamps[i] < least ? stamps[i] : least;
    return least;
}

static double microseconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1000.0 : 0.0;
}

bool executor_cuda_times(executor *base, executor_times *out)
{
    const gpu_executor *self = gpu_of(base);
    if (!self->stamps) return false;
    const uint64_t *stamps = self->stamp_memory->pinned.host;
    int32_t blocks = self->num_sms;
    uint64_t start = earliest(stamps, blocks), open = latest(stamps + blocks, blocks);
    uint64_t rows = latest(stamps + 2 * blocks, blocks), end = latest(stamps + 3 * blocks, blocks);
    if (!start || !end) return false;
    *out = (executor_times){
        .open_us = microseconds(start, open), .rows_us = microseconds(open, rows), .close_us = microseconds(rows, end)};
    return true;
}
