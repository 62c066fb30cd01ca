/* SPDX-License-Identifier: Apache-2.0 */
/* mem, device part (vmm.c, ipc.c): memory of GPUs that other GPUs and other processes can map, and pinned host words.
 *
 * Called by shmem (device_heap.c), exec/cuda and the benchmark on GPUs; calls cuda and base. Physical memory and
 * addresses are separate here. A chunk is physical memory on one GPU, made or imported. A range is addresses, at which
 * chunks are mapped. */
#ifndef EXPAR_MEM_DEVICE_H
#define EXPAR_MEM_DEVICE_H

#include "cuda/cuda.h"

/* Physical memory on one GPU. Lives as long as some process holds or maps it. */
typedef struct mem_chunk {
    cu_memory memory; /* 0: none */
    uint64_t bytes;
} mem_chunk;

/* Gives the granularity, a power of two: sizes and addresses of chunks on this device are multiples of it. */
expar_status mem_chunk_granularity(const cuda_device *device, uint64_t *bytes);
/* Sets EXPAR_ERR_MEMORY, with a text that says how much the GPU has free. */
expar_status mem_device_full(const cuda_device *device, uint64_t bytes);
/* Returns whether the driver gives descriptors for chunks; it tries with a small one, because containers may forbid
   it. */
bool mem_chunk_exportable(const cuda_device *device);
/* EXPAR_ERR_MEMORY says how much the GPU has free. */
expar_status mem_chunk_create(const cuda_device *device, uint64_t bytes, mem_chunk *out);
/* Makes a descriptor for other processes; the caller closes it. */
expar_status mem_chunk_export(const mem_chunk *chunk, int *fd);
/* Makes a chunk from a peer's descriptor, which is closed in any case. */
expar_status mem_chunk_import(int fd, uint64_t bytes, mem_chunk *out);
/* Finds the chunk that other code of this process has mapped at the address, and takes a reference. *base is where its
   mapping begins. The chunk has the size of the mapping. EXPAR_ERR_ADDRESS: no chunk is mapped there. */
expar_status mem_chunk_find(const cuda_device *device, cu_address at, cu_address *base, mem_chunk *out);
/* Drops the reference; mappings stay. An empty chunk is allowed. */
void mem_chunk_release(mem_chunk *chunk);

/* Reserves a range of device addresses without memory. */
expar_status mem_range_reserve(uint64_t bytes, cu_address *out);
void mem_range_free(cu_address base, uint64_t bytes);
/* Maps the chunk there, for loads and stores by all `devices` (indices in this process). */
expar_status mem_chunk_map(const mem_chunk *chunk, cu_address at, const int32_t *devices, int32_t num_devices);
void mem_chunk_unmap(cu_address at, uint64_t bytes);

/* Memory of one GPU that other processes map as a whole (ipc.c). */
typedef struct mem_ipc {
    cu_address address;
    cu_ipc_memory handle; /* for other processes */
} mem_ipc;
/* EXPAR_ERR_MEMORY says how much the GPU has free. */
expar_status mem_ipc_create(const cuda_device *device, uint64_t bytes, mem_ipc *out);
/* Call this once no other process has the memory open. Address 0 is allowed. */
void mem_ipc_free(const cuda_device *device, cu_address address);
/* Opens another process's memory, not this process's own, for loads and stores by this device. */
expar_status mem_ipc_open(const cuda_device *device, const cu_ipc_memory *handle, cu_address *address);
void mem_ipc_close(const cuda_device *device, cu_address address);

/* Pinned host memory that kernels of every GPU read and write in place; zero at first. */
typedef struct mem_pinned {
    void *host;
    cu_address device;
    size_t bytes;
} mem_pinned;
/* The device must have been entered. */
expar_status mem_pinned_create(size_t bytes, mem_pinned *out);
void mem_pinned_free(mem_pinned *pinned);

/* Registers host memory that exists, in whole pages, with the driver. Kernels of every GPU then reach it at the address
   that it has here; EXPAR_ERR_UNSUPPORTED if they cannot. */
expar_status mem_host_register(const cuda_device *device, void *host, uint64_t bytes);
/* Takes the address of mem_host_register. No kernel may use the memory any more. */
void mem_host_unregister(const cuda_device *device, void *host);

/* Maps registers of another device, in whole pages that this process has mapped, for kernels of the GPU. *out is their
   address for kernels. */
expar_status mem_registers_map(const cuda_device *device, void *pages, uint64_t bytes, cu_address *out);
/* Takes the pages of mem_registers_map. No kernel may use them any more. */
void mem_registers_unmap(const cuda_device *device, void *pages);

/* Both calls return when it is done. They use a stream of their own, so they do not wait for the caller's streams. */
expar_status mem_device_clear(const cuda_device *device, cu_address at, uint64_t bytes);
expar_status mem_device_copy(const cuda_device *device, cu_address dest, cu_address source, uint64_t bytes);

#endif
