/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the device heap share: device_heap.c (making, taking, giving), device_heap_grow.c (memory behind
 * the symmetric part), device_heap_own.c (the part behind it, of which each rank has as much as it likes) and
 * device_heap_range.c (addresses, and how long they stay). */
#ifndef EXPAR_SHMEM_DEVICE_HEAP_PARTS_H
#define EXPAR_SHMEM_DEVICE_HEAP_PARTS_H

#include "shmem/device_heap.h"

/* How processes come to each other's memory; the same on all ranks. */
typedef enum heap_kind {
    HEAP_CHUNKS, /* VMM: a reserved range for each PE, chunks behind it as descriptors; grows */
    HEAP_WHOLE   /* CUDA IPC: one piece each, taken by the first take */
} heap_kind;

/* Memory behind a part of a range: so many bytes each, one behind the other. */
typedef struct heap_pieces {
    uint64_t *bytes; /* [count] */
    size_t count;
    uint64_t total_bytes;
} heap_pieces;

/* A rank's own addresses, with what lies behind them. By CUDA IPC the one piece. */
struct device_part {
    atomic_int holders; /* who drops the last one (acquire, release) gives all back */
    cuda_device *device;
    cu_address base;            /* 0: none */
    uint64_t range_bytes;       /* of addresses; 0: by CUDA IPC */
    uint64_t own_at;            /* offset of the part behind the symmetric one */
    heap_pieces symmetric, own; /* VMM. Changed by the heap alone, as long as there is one */
    bool closed;                /* by CUDA IPC: no other process has it open */
    struct device_part *next;   /* in the list of those left behind */
};

struct device_heap {
    sym *sym;
    cuda_device *device;
    heap_kind kind;
    bool counted;     /* among the living heaps of this process */
    int32_t *devices; /* [num_devices] GPUs of this process whose ranks map what this rank maps */
    int32_t num_devices;
    device_part *part;                /* this rank's; NULL: not there yet */
    cu_address *bases;                /* [size] 0: not there yet */
    bool *quiet;                      /* [size] what the ranks said in the last give */
    heap_pieces *grown;               /* [size] each PE's part behind the symmetric one */
    uint64_t range_bytes, unit_bytes; /* addresses of each of the two parts */
    mem_arena *arena;                 /* guarded by sym->lock */
    heap_pieces chunks;               /* of the symmetric part, on all PEs alike */
    uint64_t mapped_bytes;            /* their sum, or the whole */
};

static inline bool heap_is_own(const device_heap *heap, int32_t r)
{
    return r == heap->sym->rank;
}

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

/* ---- device_heap_range.c ----------------------------------------------------------------------------------------- */
/* Addresses for what is to come: this rank's own, and those of peers in other processes. */
expar_status heap_reserve(device_heap *heap);
/* Notes one more piece; EXPAR_ERR_MEMORY before anything is done: room for its record. */
expar_status heap_pieces_prepare(heap_pieces *pieces);
void heap_pieces_add(heap_pieces *pieces, uint64_t bytes);
/* Gives memory and addresses back. The device is closed after it, or kept with what must stay. */
void heap_release(device_heap *heap, bool quiet);

/* ---- device_heap_grow.c ------------------------------------------------------------------------------------------ */
/* Puts memory behind the heap up to end_bytes. `wish` is what all must agree on before anything is
   shared. Collective. */
expar_status heap_grow(device_heap *heap, const char *what, uint64_t end_bytes, const heap_word *wish);
/* This rank's memory of so many bytes at an offset of its range, mapped, and with its descriptor, where there are
   processes; on failure nothing is left. */
expar_status heap_chunk_make(const device_heap *heap, uint64_t offset, uint64_t bytes, int *fd);
void heap_chunk_unmake(const device_heap *heap, uint64_t offset, uint64_t bytes);
/* Between processes, collective: hands the descriptors round, and maps what came: bytes[r] of rank r, 0: none, at
   offsets[r] of its range. OK on all ranks, or on none. */
expar_status heap_chunks_share(device_heap *heap, const char *what, int fd, const uint64_t *offsets,
                               const uint64_t *bytes);
/* By CUDA IPC: no process has another's memory open any more; collective while the group is sound. */
void heap_whole_close(device_heap *heap, bool quiet);

#endif
