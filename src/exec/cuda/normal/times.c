/* SPDX-License-Identifier: Apache-2.0 */
/* How the time of a call is spent: clocks that its kernels read at certain moments, for benchmarks.
 *
 * Device memory has [GPU_NOTIFY_MOMENTS] words of notify, followed by [GPU_MOMENTS][blocks][warps] of the dispatch or
 * the combine. The kernels of each call write their words; the host reads them when the call is done. */
#include "exec/cuda/core/stamps.h"
#include "exec/cuda/normal/normal_gpu.h"

#include <assert.h>
#include <stdlib.h>

static_assert(GPU_DISPATCH_WARPS >= GPU_COMBINE_WARPS, "there is room for either's stamps");

/* Returns the bytes of stamps of a call with that many warps on a GPU. */
static size_t stamp_bytes(int32_t warps)
{
    return (GPU_NOTIFY_MOMENTS + GPU_MOMENTS * (size_t)warps) * sizeof(uint64_t);
}

static size_t most_stamp_bytes(const gpu_executor *self)
{
    return stamp_bytes(self->core.most_sms * GPU_DISPATCH_WARPS);
}

uint64_t *gpu_stamps_of_rows(gpu_executor *self, const exec_call *call, int32_t warps)
{
    self->core.stamped_warps = gpu_sms_of(&self->core, call) * warps;
    return self->core.stamps ? self->core.stamps + GPU_NOTIFY_MOMENTS : NULL;
}

static expar_status stamps_forget(const gpu_executor *self)
{
    expar_status status = cuda_enter(self->core.device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8, self->core.stamp_memory->memory, 0, most_stamp_bytes(self));
    cuda_leave();
    return status;
}

static expar_status fetch(const gpu_executor *self, uint64_t *stamps)
{
    expar_status status = cuda_enter(self->core.device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemcpyDtoH, stamps, self->core.stamp_memory->memory, stamp_bytes(self->core.stamped_warps));
    cuda_leave();
    return status;
}

expar_status gpu_time(executor *base, bool on)
{
    gpu_executor *self = gpu_of(base);
    expar_status status = EXPAR_OK;
    self->core.stamps = NULL;
    if (on && !self->core.stamp_memory)
        status =
            gpu_scratch_take(self->core.device, most_stamp_bytes(self), sizeof(uint64_t), &self->core.stamp_memory);
    if (status == EXPAR_OK && on) status = stamps_forget(self);
    if (status == EXPAR_OK && on) self->core.stamps = (uint64_t *)(uintptr_t)self->core.stamp_memory->memory;
    return status;
}

/* Reads the kernel's four spans, and the gap after it. */
static void read_notify(const uint64_t *stamps, uint64_t next_start, executor_times *out)
{
    out->notified = true;
    out->layout_us = gpu_stamps_between(stamps[0], stamps[1]);
    out->headers_us = gpu_stamps_between(stamps[1], stamps[2]);
    out->wait_us = gpu_stamps_between(stamps[2], stamps[3]);
    out->counts_us = gpu_stamps_between(stamps[3], stamps[4]);
    out->gap_us = gpu_stamps_between(stamps[4], next_start);
}

bool gpu_times(executor *base, executor_times *out)
{
    const gpu_executor *self = gpu_of(base);
    uint64_t *stamps =
        self->core.stamps && self->core.stamped_warps ? malloc(stamp_bytes(self->core.stamped_warps)) : NULL;
    bool known = stamps && fetch(self, stamps) == EXPAR_OK;
    if (known) {
        uint64_t *moments = stamps + GPU_NOTIFY_MOMENTS;
        known = gpu_stamps_read(moments, (size_t)self->core.stamped_warps, out);
        if (self->notified == self->core.begun) read_notify(stamps, moments[0], out);
    }
    free(stamps);
    return known;
}
