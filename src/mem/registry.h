/* SPDX-License-Identifier: Apache-2.0 */
/* registry: memory of the caller's that is registered for a rank's own operations.
 *
 * shmem fills it, the copier asks it; it calls cuda and base. Registered host memory is pinned for the driver, once
 * there is a GPU: whole pages of it, because the first and the last page may have other data. Copies then use it in
 * place. Memory of GPUs is only counted, since copies reach it anyhow. */
#ifndef EXPAR_MEM_REGISTRY_H
#define EXPAR_MEM_REGISTRY_H

#include "cuda/cuda.h"

typedef struct mem_registry mem_registry;
/* Memory that was registered. */
typedef struct mem_registered mem_registered;

/* NULL: no memory. */
mem_registry *mem_registry_create(void);
/* Ends all registrations. NULL is allowed. */
void mem_registry_destroy(mem_registry *registry);

/* From now on the GPU's driver pins host memory, also what is registered already. `device` stays until
   mem_registry_unpin. Memory that cannot be pinned is registered nevertheless, with a warning. */
void mem_registry_pin(mem_registry *registry, const cuda_device *device);
void mem_registry_unpin(mem_registry *registry);

/* Registers [address, address + bytes), or counts once more if just that is registered. on_gpu: it is memory of a GPU.
   EXPAR_ERR_ADDRESS: it overlaps other registered memory, or the process cannot read it. EXPAR_ERR_MEMORY,
   EXPAR_ERR_CUDA: it cannot be pinned. Any thread. */
expar_status mem_registry_add(mem_registry *registry, void *address, uint64_t bytes, bool on_gpu);
/* Takes back one registration; the last one ends it. EXPAR_ERR_ADDRESS: no registered memory begins there.
   EXPAR_ERR_BUSY: a copy uses it. Any thread. */
expar_status mem_registry_remove(mem_registry *registry, const void *address);

/* The addresses that are pinned. */
typedef struct mem_pinned_range {
    uintptr_t begin, end;
} mem_pinned_range;
/* Finds the registered memory that holds [at, at + bytes), some of which is pinned. It stays until
   mem_registry_leave. NULL: there is none. */
mem_registered *mem_registry_enter(mem_registry *registry, const void *at, uint64_t bytes, mem_pinned_range *pinned);
void mem_registry_leave(mem_registry *registry, mem_registered *registered);

/* Returns whether [at, at + bytes) is in one registration. *on_gpu: it is memory of a GPU. */
bool mem_registry_holds(mem_registry *registry, const void *at, uint64_t bytes, bool *on_gpu);

/* Returns whether the driver takes [at, at + bytes) for one copy: it does not leave memory that the registry has
   pinned. */
bool mem_registry_permits(mem_registry *registry, const void *at, uint64_t bytes);

/* Counts what is registered now; memory that was registered several times counts once. */
typedef struct mem_registry_stats {
    uint64_t host_ranges, host_bytes, gpu_ranges, gpu_bytes;
} mem_registry_stats;
mem_registry_stats mem_registry_get_stats(mem_registry *registry);

#endif
