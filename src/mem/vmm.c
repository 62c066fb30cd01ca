/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory by the driver's virtual memory management, shared by POSIX file descriptors; pinned host memory. */
#include "mem/device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static cu_allocation allocation_on(const cuda_device *device)
{
    return (cu_allocation){.type = CU_ALLOCATION_PINNED,
                           .handle_types = device->posix_fd ? CU_HANDLE_POSIX_FD : 0,
                           .location = {.type = CU_LOCATION_DEVICE, .id = device->handle},
                           .flags.direct_rdma = device->direct_rdma};
}

expar_status mem_chunk_granularity(const cuda_device *device, uint64_t *bytes)
{
    cu_allocation allocation = allocation_on(device);
    size_t found = 0;
    if (!device->vmm)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "GPU %d (%s): its driver has no virtual memory management, which ranks of one process need",
                         device->index, device->name);
    expar_status status = CUDA_CALL(MemGetAllocationGranularity, &found, &allocation, CU_GRANULARITY_RECOMMENDED);
    if (status == EXPAR_OK) *bytes = found;
    return status;
}

/* Says how much memory is free, for the user who must free some. */
expar_status mem_device_full(const cuda_device *device, uint64_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (cuda_enter(device) == EXPAR_OK) {
        cuda_driver()->MemGetInfo(&free_bytes, &total_bytes);
        cuda_leave();
    }
    return error_set(EXPAR_ERR_MEMORY, "GPU %d (%s) has no %llu MiB of memory left: %llu of %llu MiB are free",
                     device->index, device->name, (unsigned long long)((bytes + MIB - 1) / MIB),
                     (unsigned long long)(free_bytes / MIB), (unsigned long long)(total_bytes / MIB));
}

expar_status mem_chunk_create(const cuda_device *device, uint64_t bytes, mem_chunk *out)
{
    cu_allocation allocation = allocation_on(device);
    cu_memory memory;
    expar_status status = CUDA_CALL(MemCreate, &memory, bytes, &allocation, 0);
    /* A driver may announce the flag and reject it. Then the memory serves everything but a NIC. */
    if (status != EXPAR_OK && status != EXPAR_ERR_MEMORY && allocation.flags.direct_rdma) {
        allocation.flags.direct_rdma = 0;
        status = CUDA_CALL(MemCreate, &memory, bytes, &allocation, 0);
    }
    if (status == EXPAR_ERR_MEMORY) return mem_device_full(device, bytes);
    if (status == EXPAR_OK) *out = (mem_chunk){.memory = memory, .bytes = bytes};
    return status;
}

bool mem_chunk_exportable(const cuda_device *device)
{
    uint64_t bytes;
    mem_chunk chunk = {0};
    int fd = -1;
    if (!device->vmm || !device->posix_fd || mem_chunk_granularity(device, &bytes) != EXPAR_OK) return false;
    if (mem_chunk_create(device, bytes, &chunk) != EXPAR_OK) return true; /* out of memory: the answer is not known */
    bool can = mem_chunk_export(&chunk, &fd) == EXPAR_OK;
    if (can) close(fd);
    mem_chunk_release(&chunk);
    return can;
}

expar_status mem_chunk_export(const mem_chunk *chunk, int *fd)
{
    int made = -1;
    expar_status status = CUDA_CALL(MemExportToShareableHandle, &made, chunk->memory, CU_HANDLE_POSIX_FD, 0);
    if (status == EXPAR_OK) *fd = made;
    return status;
}

expar_status mem_chunk_import(int fd, uint64_t bytes, mem_chunk *out)
{
    cu_memory memory;
    /* The driver takes the descriptor itself in place of a pointer to it. */
    expar_status status = CUDA_CALL(MemImportFromShareableHandle, &memory, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD);
    close(fd);
    if (status == EXPAR_OK) *out = (mem_chunk){.memory = memory, .bytes = bytes};
    return status;
}

/* The device has been entered. */
static expar_status find_mapping(cu_address at, cu_address *base, uint64_t *bytes)
{
    size_t found = 0;
    const cu_result result = cuda_driver()->MemGetAddressRange(base, &found, at);
    *bytes = found;
    if (result == CU_OK) return EXPAR_OK;
    return error_set(EXPAR_ERR_ADDRESS, "%#llx is not allocated on a GPU", at);
}

expar_status mem_chunk_find(const cuda_device *device, cu_address at, cu_address *base, mem_chunk *out)
{
    cu_memory memory;
    uint64_t bytes = 0;
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = find_mapping(at, base, &bytes);
    if (status == EXPAR_OK && cuda_driver()->MemRetainAllocationHandle(&memory, (void *)(uintptr_t)*base) != CU_OK)
        status = error_set(EXPAR_ERR_ADDRESS, "%#llx is not memory of cuMemCreate that cuMemMap has mapped", at);
    cuda_leave();
    if (status == EXPAR_OK) *out = (mem_chunk){.memory = memory, .bytes = bytes};
    return status;
}

void mem_chunk_release(mem_chunk *chunk)
{
    if (chunk->bytes && CUDA_CALL(MemRelease, chunk->memory) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    *chunk = (mem_chunk){0};
}

expar_status mem_range_reserve(uint64_t bytes, cu_address *out)
{
    expar_status status = CUDA_CALL(MemAddressReserve, out, bytes, 0, 0, 0);
    if (status == EXPAR_OK) return EXPAR_OK;
    return error_prefix(status, "cannot reserve %llu MiB of device addresses", (unsigned long long)(bytes / MIB));
}

void mem_range_free(cu_address base, uint64_t bytes)
{
    if (CUDA_CALL(MemAddressFree, base, bytes) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
}

expar_status mem_chunk_map(const mem_chunk *chunk, cu_address at, const int32_t *devices, int32_t num_devices)
{
    cu_access *access = calloc((size_t)num_devices, sizeof *access);
    if (!access) return error_set(EXPAR_ERR_MEMORY, "no memory");
    for (int32_t i = 0; i < num_devices; i++)
        access[i] =
            (cu_access){.location = {.type = CU_LOCATION_DEVICE, .id = devices[i]}, .flags = CU_ACCESS_READ_WRITE};
    expar_status status = CUDA_CALL(MemMap, at, chunk->bytes, 0, chunk->memory, 0);
    if (status == EXPAR_OK) {
        status = CUDA_CALL(MemSetAccess, at, chunk->bytes, access, (size_t)num_devices);
        if (status != EXPAR_OK) cuda_driver()->MemUnmap(at, chunk->bytes);
    }
    free(access);
    return status;
}

void mem_chunk_unmap(cu_address at, uint64_t bytes)
{
    if (CUDA_CALL(MemUnmap, at, bytes) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
}

expar_status mem_pinned_create(size_t bytes, mem_pinned *out)
{
    mem_pinned made = {.bytes = bytes};
    expar_status status = CUDA_CALL(MemHostAlloc, &made.host, bytes, CU_HOST_PORTABLE | CU_HOST_MAPPED);
    if (status != EXPAR_OK) return error_prefix(status, "%zu bytes of pinned host memory", bytes);
    status = CUDA_CALL(MemHostGetDevicePointer, &made.device, made.host, 0);
    if (status != EXPAR_OK) {
        cuda_driver()->MemFreeHost(made.host);
        return status;
    }
    memset(made.host, 0, bytes);
    *out = made;
    return EXPAR_OK;
}

void mem_pinned_free(mem_pinned *pinned)
{
    if (pinned->host && CUDA_CALL(MemFreeHost, pinned->host) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    *pinned = (mem_pinned){0};
}

static expar_status register_in_context(void *host, uint64_t bytes)
{
    cu_address seen = 0;
    expar_status status = CUDA_CALL(MemHostRegister, host, bytes, CU_HOST_PORTABLE | CU_HOST_MAPPED);
    if (status != EXPAR_OK) return error_prefix(status, "%llu bytes of pinned memory", (unsigned long long)bytes);
    status = CUDA_CALL(MemHostGetDevicePointer, &seen, host, 0);
    if (status == EXPAR_OK && seen != (cu_address)(uintptr_t)host)
        status = error_set(EXPAR_ERR_UNSUPPORTED, "the driver gives registered host memory another address on the GPU");
    if (status != EXPAR_OK) cuda_driver()->MemHostUnregister(host);
    return status;
}

expar_status mem_host_register(const cuda_device *device, void *host, uint64_t bytes)
{
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = register_in_context(host, bytes);
    cuda_leave();
    return status;
}

void mem_host_unregister(const cuda_device *device, void *host)
{
    if (cuda_enter(device) != EXPAR_OK) return;
    if (CUDA_CALL(MemHostUnregister, host) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    cuda_leave();
}

static expar_status map_in_context(void *pages, uint64_t bytes, cu_address *out)
{
    const unsigned int flags = CU_HOST_PORTABLE | CU_HOST_MAPPED | CU_HOST_IOMEMORY;
    expar_status status = CUDA_CALL(MemHostRegister, pages, bytes, flags);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemHostGetDevicePointer, out, pages, 0);
    if (status != EXPAR_OK) cuda_driver()->MemHostUnregister(pages);
    return status;
}

expar_status mem_registers_map(const cuda_device *device, void *pages, uint64_t bytes, cu_address *out)
{
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = map_in_context(pages, bytes, out);
    cuda_leave();
    return status;
}

void mem_registers_unmap(const cuda_device *device, void *pages)
{
    mem_host_unregister(device, pages);
}

/* ---- from the host, in the order of a stream of its own ---------------------------------------------------------- */

/* Other streams do not wait for this one, and it does not wait for them. source 0: writes zeros. */
static expar_status run_apart(cu_address dest, cu_address source, uint64_t bytes)
{
    cu_stream stream = NULL;
    expar_status status = CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    if (status != EXPAR_OK) return status;
    status =
        source ? CUDA_CALL(MemcpyAsync, dest, source, bytes, stream) : CUDA_CALL(MemsetD8Async, dest, 0, bytes, stream);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamSynchronize, stream);
    cuda_driver()->StreamDestroy(stream);
    return status;
}

static expar_status run_on(const cuda_device *device, cu_address dest, cu_address source, uint64_t bytes)
{
    if (bytes == 0) return EXPAR_OK;
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = run_apart(dest, source, bytes);
    cuda_leave();
    return status;
}

expar_status mem_device_clear(const cuda_device *device, cu_address at, uint64_t bytes)
{
    return run_on(device, at, 0, bytes);
}

expar_status mem_device_copy(const cuda_device *device, cu_address dest, cu_address source, uint64_t bytes)
{
    return run_on(device, dest, source, bytes);
}
