/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of the device heap share. device_heap.c makes the heap, takes and gives.
 * device_heap_grow.c adds memory to the symmetric part. device_heap_own.c has the second part, of which each rank has
 * as much as it asks for. device_heap_range.c has the addresses, and how long they stay. device_heap_registered.c maps
 * memory of the callers. */
#ifndef EXPAR_SHMEM_DEVICE_HEAP_PARTS_H
#define EXPAR_SHMEM_DEVICE_HEAP_PARTS_H

#include "shmem/changer.h"
#include "shmem/device_heap.h"

/* How processes get access to each other's memory; the same on all ranks. */
typedef enum heap_kind {
    /* VMM: each PE has a reserved range, into which chunks are mapped by descriptors; it grows */
    HEAP_CHUNKS,
    /* CUDA IPC: one piece for each PE, which the first take allocates */
    HEAP_WHOLE
} heap_kind;

/* Memory of one part of a range: pieces of bytes[i] each, one after the other. */
typedef struct heap_pieces {
    uint64_t *bytes; /* [count] */
    size_t count;
    uint64_t total_bytes;
} heap_pieces;

/* Memory of one rank's caller, in the second part of its range. */
typedef struct heap_guest {
    uint64_t offset;
    heap_pieces pieces; /* count 0: none */
} heap_guest;

/* Memory that all ranks have registered together. */
typedef struct heap_registered {
    /* Offsets that callers use; end 0: none. Collective calls write them, `end` last (release). Any thread that looks
       for an address reads `end` first (acquire). While memory is registered, they stay. */
    _Atomic uint64_t begin, end;
    /* the caller's address of it on this rank */
    cu_address address;
    /* [size] between processes: what this rank has mapped of the others; else NULL */
    heap_guest *guests;
} heap_registered;

/* A rank's own addresses, and the memory mapped there. With CUDA IPC it is one piece. */
struct device_part {
    /* references; dropping the last one (acquire, release) frees everything */
    atomic_int holders;
    cuda_device *device;
    /* 0: none */
    cu_address base;
    /* number of addresses; 0: CUDA IPC */
    uint64_t range_bytes;
    /* offset of the second part, which follows the symmetric one */
    uint64_t own_at;
    /* VMM; only the heap changes them while it exists */
    heap_pieces symmetric, own;
    /* by number, as the heap's `registered` */
    heap_guest guests[DEVICE_HEAP_MOST_REGISTERED];
    /* CUDA IPC: no other process has it open */
    bool closed;
    /* next in the list of parts that outlived their heaps */
    struct device_part *next;
};

struct device_heap {
    sym *sym;
    cuda_device *device;
    heap_kind kind;
    /* it is counted among the living heaps of this process */
    bool counted;
    /* made by device_heap_create_for_node */
    bool for_node;
    /* [size] this rank's GPU reaches that of the PE; and its atomics there are atomic with other GPUs' */
    bool *reaches, *atomics;
    /* That holds for all ranks and all PEs, and the settings leave atomics to kernels. */
    bool kernels_meet;
    /* EXPAR_DEVICE_ATOMICS of all ranks */
    kernel_atomics atomics_by;
    /* NULL: kernels do not change words of this heap, or there is no such kernel */
    changer *changer;
    /* The arena's first block, so that no offset given to a caller is 0. Groups have words in it. */
    uint64_t first_bytes;
    /* by CUDA IPC: the least size of the one piece, the same on all ranks; 0: what the first take needs */
    uint64_t whole_bytes;
    /* [num_devices] GPUs of this process whose ranks map what this rank maps */
    int32_t *devices;
    int32_t num_devices;
    /* this rank's part; NULL: not there yet */
    device_part *part;
    /* [size]; 0: not there yet */
    cu_address *bases;
    /* [size] what the ranks passed in the last give */
    bool *quiet;
    /* [size] each PE's second part, which follows the symmetric one */
    heap_pieces *grown;
    /* close NULL: there is none */
    device_heap_gate gate;
    /* addresses of each of the two parts; granularity */
    uint64_t range_bytes, unit_bytes;
    /* guarded by sym->lock */
    mem_arena *arena;
    /* Offsets of the second part, for registered memory. Collective calls alone use it; NULL: there was none yet. */
    mem_arena *guest_arena;
    heap_registered registered[DEVICE_HEAP_MOST_REGISTERED];
    /* chunks of the symmetric part, equal on all PEs */
    heap_pieces chunks;
    /* Sum of the chunks, or size of the one piece. Collective calls raise it (release); any thread that looks for an
       address reads it (acquire), and then also bases. */
    _Atomic uint64_t mapped_bytes;
};

static inline uint64_t heap_mapped(const device_heap *heap)
{
    return atomic_load_explicit(&heap->mapped_bytes, memory_order_acquire);
}

static inline void heap_gate_close(const device_heap *heap)
{
    if (heap->gate.close) heap->gate.close(heap->gate.context);
}
static inline void heap_gate_open(const device_heap *heap)
{
    if (heap->gate.close) heap->gate.open(heap->gate.context);
}

static inline bool heap_is_own(const device_heap *heap, int32_t r)
{
    return r == heap->sym->rank;
}

/* The request of a rank, or what it has found. */
typedef struct heap_word {
    /* of a take or give; they must be equal on all ranks; offset may be BOOT_UNKNOWN */
    uint64_t bytes, alignment, offset;
    /* Gathered data: mine_bytes of each rank, all[size]. */
    const void *mine;
    void *all;
    size_t mine_bytes;
} heap_word;

/* Zeroes the words of the first block, where the heap has them: after its memory was made, before PEs agree on that. */
expar_status heap_first_clear(const device_heap *heap, cu_address base);

/* ---- device_heap.c ----------------------------------------------------------------------------------------------- */
/* Collective: OK on all ranks, or on none. own: why this rank cannot take part, with the last error's text. */
expar_status heap_agree(device_heap *heap, const char *what, const heap_word *word, expar_status own);
/* The same for a heap of another kind; block: "the block's offset in the pinned heap". */
expar_status heap_agree_on(sym *sym, const char *what, const char *block, const heap_word *word, expar_status own);

/* ---- device_heap_range.c ----------------------------------------------------------------------------------------- */
/* Reserves addresses: this rank's own, and those of peers in other processes. */
expar_status heap_reserve(device_heap *heap);
/* Makes free space for the record of one more piece. Call it first: EXPAR_ERR_MEMORY comes before anything is done. */
expar_status heap_pieces_prepare(heap_pieces *pieces);
void heap_pieces_add(heap_pieces *pieces, uint64_t bytes);
/* Unmaps the pieces, the first of which is at that address, and forgets them. */
void heap_pieces_free(heap_pieces *pieces, cu_address at);
/* Frees memory and addresses. Closes the device, or keeps it with the memory that must stay. */
void heap_release(device_heap *heap, bool quiet);

/* ---- device_heap_registered.c ------------------------------------------------------------------------------------ */
/* Unmaps what this rank has registered of other processes. */
void heap_registered_forget_peers(device_heap *heap);
/* Frees the records. */
void heap_registered_free(device_heap *heap);

/* ---- device_heap_grow.c ------------------------------------------------------------------------------------------ */
/* Maps memory into the heap up to end_bytes. Before anything is shared, all ranks must agree on `request`. Collective.
   */
expar_status heap_grow(device_heap *heap, const char *what, uint64_t end_bytes, const heap_word *request);
/* Allocates this rank's memory of that size and maps it at an offset of its range; between processes it also makes a
   descriptor. On failure nothing is left. */
expar_status heap_chunk_make(const device_heap *heap, uint64_t offset, uint64_t bytes, int *fd);
void heap_chunk_unmake(const device_heap *heap, uint64_t offset, uint64_t bytes);
/* Between processes, collective: exchanges the descriptors, and maps those that arrive: bytes[r] of rank r (0: none),
   at offsets[r] of its range. OK on all ranks, or on none. */
expar_status heap_chunks_share(device_heap *heap, const char *what, int fd, const uint64_t *offsets,
                               const uint64_t *bytes);
/* CUDA IPC: afterwards no process has another one's memory open. Collective while the group is sound. */
void heap_whole_close(device_heap *heap, bool quiet);

#endif
