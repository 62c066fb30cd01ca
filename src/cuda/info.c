/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about CUDA on this machine, for tools. */
#include "cuda/parts.h"

#include <expar/info.h>
#include <string.h>

expar_status expar_cuda_get_driver(int32_t *version, int32_t *num_gpus)
{
    int32_t count;
    expar_status status = cuda_device_count(&count);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "expar_cuda_get_driver"));
    if (version) *version = cuda_driver_version();
    if (num_gpus) *num_gpus = count;
    return EXPAR_OK;
}

expar_status expar_cuda_get_compiler(int32_t *version, const char **path)
{
    int32_t found_version;
    const char *found_path;
    expar_status status = cuda_nvrtc_find(&found_path, &found_version);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "expar_cuda_get_compiler"));
    if (version) *version = found_version;
    if (path) *path = found_path;
    return EXPAR_OK;
}

int32_t expar_cuda_ready_kernels(void)
{
    for (size_t i = 0; i < cuda_num_sources; i++)
        if (cuda_sources[i].cubin) return CUDA_READY_ARCH;
    return 0;
}

/* A caller that was built with an older header has a shorter struct. */
static expar_status gpu_fill(expar_cuda_gpu *gpu, const cuda_device *device)
{
    size_t size = gpu->struct_size;
    expar_cuda_gpu facts = {.struct_size = size,
                            .major = device->major,
                            .minor = device->minor,
                            .num_sms = device->num_sms,
                            .memory_bytes = (int64_t)device->memory_bytes,
                            .shareable = device->posix_fd};
    if (size < sizeof facts.struct_size || size > sizeof facts)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "expar_cuda_get_gpu: gpu.struct_size is %zu; expected %zu (EXPAR_CUDA_GPU_INIT)", size,
                         sizeof facts);
    memcpy(facts.name, device->name, sizeof facts.name);
    memcpy(facts.bus_id, device->bus_id, sizeof facts.bus_id);
    memcpy(gpu, &facts, size);
    return EXPAR_OK;
}

expar_status expar_cuda_get_gpu(int32_t index, expar_cuda_gpu *gpu)
{
    cuda_device device;
    if (!gpu) return call_ended(error_set(EXPAR_ERR_NULL, "expar_cuda_get_gpu: gpu is NULL"));
    expar_status status = cuda_device_read(index, &device);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "expar_cuda_get_gpu"));
    return call_ended(gpu_fill(gpu, &device));
}

expar_status expar_cuda_get_link(int32_t from, int32_t to, int32_t *access, int32_t *rank, int32_t *atomics)
{
    cuda_link link;
    expar_status status = cuda_link_between(from, to, &link);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "expar_cuda_get_link"));
    if (access) *access = link.access;
    if (rank) *rank = link.rank;
    if (atomics) *atomics = link.atomics;
    return EXPAR_OK;
}
