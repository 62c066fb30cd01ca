/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a call goes: clocks that its kernels read on their way, for benchmarks.
 *
 * Device memory has [GPU_NOTIFY_MOMENTS] words of notify and, behind them, [GPU_MOMENTS][blocks] of the dispatch or the
 * combine. Kernels write them, each call those of its kernels; the host reads them when the call is done. */
#include "exec/cuda/gpu.h"

#include <stdlib.h>

static size_t stamp_bytes(const gpu_executor *self)
{
    return (GPU_NOTIFY_MOMENTS + GPU_MOMENTS * (size_t)self->most_sms) * sizeof(uint64_t);
}

uint64_t *gpu_stamps_of_rows(gpu_executor *self, const exec_call *call)
{
    self->stamped_sms = gpu_sms_of(self, call);
    return self->stamps ? self->stamps + GPU_NOTIFY_MOMENTS : NULL;
}

static expar_status stamps_forget(const gpu_executor *self)
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

expar_status gpu_time(executor *base, bool on)
{
    gpu_executor *self = gpu_of(base);
    expar_status status = EXPAR_OK;
    self->stamps = NULL;
    if (on && !self->stamp_memory)
        status = gpu_scratch_take(self->device, stamp_bytes(self), sizeof(uint64_t), &self->stamp_memory);
    if (status == EXPAR_OK && on) status = stamps_forget(self);
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

/* The kernel's four spans, and the gap behind it. */
static void read_notify(const uint64_t *stamps, uint64_t next_start, executor_times *out)
{
    out->notified = true;
    out->layout_us = microseconds(stamps[0], stamps[1]);
    out->hellos_us = microseconds(stamps[1], stamps[2]);
    out->wait_us = microseconds(stamps[2], stamps[3]);
    out->counts_us = microseconds(stamps[3], stamps[4]);
    out->gap_us = microseconds(stamps[4], next_start);
}

bool gpu_times(executor *base, executor_times *out)
{
    const gpu_executor *self = gpu_of(base);
    int32_t blocks = self->stamped_sms;
    uint64_t *stamps = self->stamps ? malloc(stamp_bytes(self)) : NULL;
    if (!stamps || fetch(self, stamps) != EXPAR_OK) {
        free(stamps);
        return false;
    }
    const uint64_t *moments = stamps + GPU_NOTIFY_MOMENTS;
    uint64_t start = earliest(moments, blocks), open = latest(moments + blocks, blocks);
    uint64_t rows = latest(moments + 2 * blocks, blocks), end = latest(moments + 3 * blocks, blocks);
    *out = (executor_times){
        .open_us = microseconds(start, open), .rows_us = microseconds(open, rows), .close_us = microseconds(rows, end)};
    if (self->notified) read_notify(stamps, start, out);
    free(stamps);
    return start && end;
}
