/* SPDX-License-Identifier: Apache-2.0 */
/* Finds where the caller's memory lies, and allocates memory for outputs by the caller's functions. */
#include "mem/place.h"

/* The alignment of the pool's blocks. */
#define ALIGNMENT 128u

/* It checks as far as a driver that is loaded in this process knows the address. */
expar_status mem_check_place(expar_device device, const char *name, const char *member, const void *data)
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

bool mem_is_far(const void *data)
{
    return data && cuda_place_of(data).kind == CUDA_PLACE_DEVICE;
}

static expar_status check_given(expar_device device, const void *data, uint64_t bytes)
{
    if (!data) return error_set(EXPAR_ERR_MEMORY, "config.alloc gave NULL for %llu bytes", (unsigned long long)bytes);
    if ((uintptr_t)data % ALIGNMENT)
        return error_set(EXPAR_ERR_ALIGNMENT, "config.alloc gave %p for %llu bytes; expected a multiple of %u", data,
                         (unsigned long long)bytes, ALIGNMENT);
    return mem_check_place(device, "what config.alloc gave", "", data);
}

expar_status mem_allocate(expar_device device, const mem_allocator *from, uint64_t bytes, void *stream, void **out)
{
    void *data = from->alloc(from->context, (size_t)bytes, ALIGNMENT, stream);
    expar_status status = check_given(device, data, bytes);
    if (status == EXPAR_OK)
        *out = data;
    else if (data)
        from->free(from->context, data, (size_t)bytes, stream);
    return status;
}
