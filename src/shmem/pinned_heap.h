/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric pinned heap: host memory of each rank that is registered with the CUDA driver.
 *
 * Called by kinds.c alone. The CPUs of a node load and store it as they do the host's heap, and transports reach it.
 * The kernels of their GPUs use the same addresses. It grows as the host's heap does: all ranks take the memory,
 * register their own, and then that of the ranks that they map. */
#ifndef EXPAR_SHMEM_PINNED_HEAP_H
#define EXPAR_SHMEM_PINNED_HEAP_H

#include "shmem/kinds.h"

typedef struct pinned_heap pinned_heap;

/* Collective. Opens GPU `index` of this process, whose driver registers the memory; takes no memory yet. OK on all
   ranks, or on none. */
expar_status pinned_heap_create(sym *sym, int32_t index, pinned_heap **out);
/* Undoes what this rank has registered of other ranks. Call it before the transports close. NULL is allowed. */
void pinned_heap_forget_peers(pinned_heap *heap);
/* Call it after the transports have closed. Thread ranks that are still there keep this rank's memory. NULL is
   allowed. */
void pinned_heap_destroy(pinned_heap *heap);

/* Collective, as device_heap_take and device_heap_give. If `own` is not EXPAR_OK, all ranks keep the block, and this
   rank returns it. */
expar_status pinned_heap_take(pinned_heap *heap, const char *what, uint64_t bytes, uint64_t alignment,
                              uint64_t *offset);
expar_status pinned_heap_give(pinned_heap *heap, const char *what, uint64_t offset, expar_status own);

/* Returns this rank's GPU. */
const cuda_device *pinned_heap_device(const pinned_heap *heap);
/* Gives the offset of an address in this rank's heap. Returns false unless [address, address + bytes) has memory. */
bool pinned_heap_offset(const pinned_heap *heap, const void *address, uint64_t bytes, uint64_t *offset);
/* Returns where pe's heap is, for this rank's CPU and for kernels of its GPU; NULL: it does not map it. */
uint8_t *pinned_heap_base(const pinned_heap *heap, int32_t pe);
/* Returns the GPU, by its number in this process, whose context has registered what pinned_heap_base gives. */
int32_t pinned_heap_registrar(const pinned_heap *heap, int32_t pe);
bool pinned_heap_block_bytes(pinned_heap *heap, uint64_t offset, uint64_t *bytes);
void pinned_heap_get_facts(pinned_heap *heap, device_heap_facts *out);

#endif
