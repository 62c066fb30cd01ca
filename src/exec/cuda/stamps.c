/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a call goes: clocks that each block of a dispatch or combine reads on its way, for benchmarks.
 *
 * Kernels write [4][blocks] words of device memory, a row for each moment; only the last block writes the last one. */
#include "exec/cuda/gpu.h"

#include <stdlib.h>

#define MOMENTS 4

static size_t stamp_bytes(const gpu_executor *self)
{
    return MOMENTS * (size_t)self->num_sms * sizeof(uint64_t);
}

static expar_status forget(const gpu_executor *self)
{
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8, self->stamp_memory->memory, 0, stamp_bytes(self));
    cuda_leave();
    return status;
}

static expar_status fetch(const gpu_executor *self, uint64_t *stamps)
{
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemcpyDtoH, stamps, self->stamp_memory->memory, stamp_bytes(self));
    cuda_leave();
    return status;
}

expar_status executor_cuda_stamps(executor *base, bool on)
{
    gpu_executor *self = gpu_of(base);
    expar_status status = EXPAR_OK;
    self->stamps = NULL;
    if (on && !self->stamp_memory)
        status = gpu_scratch_take(self->device, stamp_bytes(self), sizeof(uint64_t), &self->stamp_memory);
    if (status == EXPAR_OK && on) status = forget(self);
    if (status == EXPAR_OK && on) self->stamps = (uint64_t *)(uintptr_t)self->stamp_memory->memory;
    return status;
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
    int32_t blocks = self->num_sms;
    uint64_t *stamps = self->stamps ? malloc(stamp_bytes(self)) : NULL;
    if (!stamps || fetch(self, stamps) != EXPAR_OK) {
        free(stamps);
        return false;
    }
    uint64_t start = earliest(stamps, blocks), open = latest(stamps + blocks, blocks);
    uint64_t rows = latest(stamps + 2 * blocks, blocks), end = latest(stamps + 3 * blocks, blocks);
    free(stamps);
    if (!start || !end) return false;
    *out = (executor_times){
        .open_us = microseconds(start, open), .rows_us = microseconds(open, rows), .close_us = microseconds(rows, end)};
    return true;
}
