/* SPDX-License-Identifier: Apache-2.0 */
/* Which executor a device has: the only place where it matters. */
#include "cuda/cuda.h"
#include "exec/cpu/create.h"
#include "exec/cpu/low_latency/create.h"
#include "exec/cuda/create.h"
#include "exec/cuda/low_latency/create.h"

const executor_kind *executor_kind_of(expar_device_type type)
{
    return type == EXPAR_CPU ? &executor_cpu : type == EXPAR_CUDA ? &executor_cuda : NULL;
}

ll_create_fn ll_create_of(expar_device_type type)
{
    return type == EXPAR_CPU ? ll_executor_cpu_create : type == EXPAR_CUDA ? ll_executor_cuda_create : NULL;
}

/* As far as a driver that is loaded in this process knows the address. */
expar_status exec_check_place(expar_device device, const char *name, const char *member, const void *data)
{
    cuda_place place = cuda_place_of(data);
    if (device.type == EXPAR_CPU && place.kind == CUDA_PLACE_DEVICE)
        return error_set(EXPAR_ERR_DEVICE, "%s%s %p is memory of GPU %d; expected host memory", name, member, data,
                         place.device);
    if (device.type == EXPAR_CUDA && data && place.kind == CUDA_PLACE_HOST)
        return error_set(EXPAR_ERR_DEVICE, "%s%s %p is host memory; expected memory of GPU %d", name, member, data,
                         device.index);
    if (device.type == EXPAR_CUDA && place.kind == CUDA_PLACE_DEVICE && place.device != device.index)
        return error_set(EXPAR_ERR_DEVICE, "%s%s %p is memory of GPU %d; expected GPU %d", name, member, data,
                         place.device, device.index);
    return EXPAR_OK;
}

bool exec_is_far(const void *data)
{
    return data && cuda_place_of(data).kind == CUDA_PLACE_DEVICE;
}
