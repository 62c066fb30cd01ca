/* SPDX-License-Identifier: Apache-2.0 */
/* On the CPU epochs are counted in the buffer, on a GPU in device memory also, by the kernels. */
#include "ep/harness/epochs.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"

static bool on_gpu(const expar_ep *ep)
{
    return ep->base.device.type == EXPAR_CUDA;
}

static cu_address device_epoch(const expar_ep *ep)
{
    return (cu_address)(uintptr_t)&gpu_of(ep->base.exec)->core.place.state->epoch;
}

static bool set_on_device(const expar_ep *ep, uint32_t epoch)
{
    if (!CHECK_OK(cuda_enter(device_heap_device(gpu_of(ep->base.exec)->core.heap)))) return false;
    bool set = CHECK_OK(CUDA_CALL(MemcpyHtoD, device_epoch(ep), &epoch, sizeof epoch));
    cuda_leave();
    return set;
}

bool epochs_begin_after(expar_ep *ep, uint32_t epoch)
{
    ep->base.calls = epoch;
    bool set = !on_gpu(ep) || set_on_device(ep, epoch);
    return CHECK_OK(expar_barrier_all(ep->base.group)) && set;
}

uint32_t epochs_last(const expar_ep *ep)
{
    uint32_t epoch = (uint32_t)ep->base.calls;
    if (!on_gpu(ep) || !CHECK_OK(cuda_enter(device_heap_device(gpu_of(ep->base.exec)->core.heap)))) return epoch;
    CHECK_OK(CUDA_CALL(MemcpyDtoH, &epoch, device_epoch(ep), sizeof epoch));
    cuda_leave();
    return epoch;
}
