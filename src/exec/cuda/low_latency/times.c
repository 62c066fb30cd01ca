/* SPDX-License-Identifier: Apache-2.0 */
/* How the time of a call's last kernel is spent: clocks that its warps read at certain moments, for benchmarks. Device
 * memory has [LL_GPU_MOMENTS][blocks][LL_GPU_BLOCK_WARPS] words. Kernels write them, the host reads them after a
 * call. */
#include "exec/cuda/core/stamps.h"
#include "exec/cuda/low_latency/ll_gpu.h"

#include <stdlib.h>

static size_t moments_bytes(int32_t warps)
{
    return LL_GPU_MOMENTS * (size_t)warps * sizeof(uint64_t);
}

/* Clears all stamps. */
static expar_status moments_forget(const gpu_core *core)
{
    expar_status status = cuda_enter(core->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8, core->stamp_memory->memory, 0, moments_bytes(core->most_sms * LL_GPU_BLOCK_WARPS));
    cuda_leave();
    return status;
}

expar_status ll_gpu_time(executor *base, bool on)
{
    gpu_core *core = &ll_gpu_of(base)->core;
    expar_status status = EXPAR_OK;
    core->stamps = NULL;
    if (on && !core->stamp_memory)
        status = gpu_scratch_take(core->device, moments_bytes(core->most_sms * LL_GPU_BLOCK_WARPS), sizeof(uint64_t),
                                  &core->stamp_memory);
    if (status == EXPAR_OK && on) status = moments_forget(core);
    if (status == EXPAR_OK && on) core->stamps = (uint64_t *)(uintptr_t)core->stamp_memory->memory;
    return status;
}

static expar_status moments_fetch(const gpu_core *core, uint64_t *moments)
{
    expar_status status = cuda_enter(core->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemcpyDtoH, moments, core->stamp_memory->memory, moments_bytes(core->stamped_warps));
    cuda_leave();
    return status;
}

bool ll_gpu_times(executor *base, ll_times *out)
{
    const gpu_core *core = &ll_gpu_of(base)->core;
    uint64_t *moments = core->stamps && core->stamped_warps ? malloc(moments_bytes(core->stamped_warps)) : NULL;
    const bool known = moments && moments_fetch(core, moments) == EXPAR_OK &&
                       ll_stamps_read(moments, (size_t)core->stamped_warps, out);
    free(moments);
    return known;
}
