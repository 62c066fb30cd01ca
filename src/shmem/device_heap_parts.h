/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the device heap share: device_heap.c (making, taking, giving) and device_heap_grow.c (memory and
 * addresses behind it). */
#ifndef EXPAR_SHMEM_DEVICE_HEAP_PARTS_H
#define EXPAR_SHMEM_DEVICE_HEAP_PARTS_H

#include "shmem/device_heap.h"

/* How processes come to each other's memory; the same on all ranks. */
typedef enum heap_kind {
    HEAP_CHUNKS, /* VMM: a reserved range for each PE, chunks behind it as descriptors; grows */
    HEAP_WHOLE   /* CUDA IPC: one piece each, taken by the first take */
} heap_kind;

struct device_heap {
    sym *sym;
    cuda_device *device;
    heap_kind kind;
    bool has_ranges;  /* to be released */
    int32_t *devices; /* [num_devices] GPUs of this process whose ranks map what this rank maps */
    int32_t num_devices;
    cu_address *bases; /* [size] 0: not there yet */
    bool *quiet;       /* [size] what the ranks said in the last give */
    uint64_t range_bytes, unit_bytes;
    mem_arena *arena; /* guarded by sym->lock */
    uint64_t *chunks; /* [num_chunks] bytes of each, one behind the other */
    size_t num_chunks;
    uint64_t mapped_bytes; /* their sum, or the whole */
};

/* What a rank wants, or has found. */
typedef struct heap_word {
    uint64_t bytes, alignment, offset; /* of a take or give: to be equal; offset may be BOOT_UNKNOWN */
    /* Gathered beside it: mine_bytes of each rank, all[size]. */
    const void *mine;
    void *all;
    size_t mine_bytes;
} heap_word;

/* ---- device_heap.c ----------------------------------------------------------------------------------------------- */
/* Collective: OK on all ranks, or on none. own: why this rank cannot, with the last error's text. */
expar_status heap_agree(device_heap *heap, const char *what, const heap_word *word, expar_status own);

/* ---- device_heap_grow.c ------------------------------------------------------------------------------------------ */
/* Addresses for what is to come: this rank's own, and those of peers in other processes. */
expar_status heap_reserve(device_heap *heap);
/* Puts memory behind the heap up to end_bytes. `wish` is what all must agree on before anything is
   shared. Collective. */
expar_status heap_grow(device_heap *heap, const char *what, uint64_t end_bytes, const heap_word *wish);
/* Gives memory and addresses back. The device is closed after it, or kept with what must stay. */
void heap_release(device_heap *heap, bool quiet);

#endif
