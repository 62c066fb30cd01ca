/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap: memory that has the same offset on every rank (model: OpenSHMEM 1.5, section 9.3). */
#ifndef EXPAR_MEMORY_H
#define EXPAR_MEMORY_H

#include <expar/group.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates a block. Collective; all ranks give the same bytes and alignment (else EXPAR_ERR_MISMATCH on all, naming a
   rank). The block is aligned to 128 bytes and not initialised. bytes 0 gives NULL and EXPAR_OK. Ends with a barrier.
   The group owns the block, which lasts until expar_free or the group's end. Only one thread of a rank at a time may be
   in a collective call on the heap. Errors: EXPAR_ERR_NULL, EXPAR_ERR_MISMATCH, EXPAR_ERR_MEMORY (says how much is left
   and the largest free block), EXPAR_ERR_SYSTEM, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_malloc(expar_group *group, size_t bytes, void **out);
/* Like expar_malloc, but aligned to `alignment` bytes: a power of two, ≤ 1 GiB (EXPAR_ERR_ARGUMENT). */
EXPAR_API expar_status expar_align(expar_group *group, size_t alignment, size_t bytes, void **out);
/* Like expar_malloc of count·size bytes, all zero. Overflow is EXPAR_ERR_ARGUMENT. */
EXPAR_API expar_status expar_calloc(expar_group *group, size_t count, size_t size, void **out);
/* Frees a block. Collective; does quiet first. NULL is allowed, on all ranks. A rank whose quiet fails returns that,
   others EXPAR_ERR_REMOTE, and all keep the block. EXPAR_ERR_NULL (group), EXPAR_ERR_ADDRESS for a pointer that is not
   the start of a block, EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_free(expar_group *group, void *block);

/* Changes the size of a block. Collective; gives a block of `bytes` bytes with the contents of `block`, as far as they
   fit, on each rank its own. `block` is free afterwards. Waits for all ranks before it copies and before it returns.
   block NULL is expar_malloc; bytes 0 frees and gives NULL. After an error `block` is unchanged. Errors as expar_malloc
   and expar_free. */
EXPAR_API expar_status expar_realloc(expar_group *group, void *block, size_t bytes, void **out);

/* The use of this rank's symmetric heap. */
typedef struct expar_heap_stats {
    /* set by EXPAR_HEAP_STATS_INIT */
    size_t struct_size;
    /* the size that the heap may grow to */
    uint64_t total_bytes;
    uint64_t used_bytes;
    /* the largest value that used_bytes has had */
    uint64_t high_water_bytes;
    uint64_t largest_free_bytes;
    /* blocks in use */
    uint64_t blocks;
    /* the size that the heap has grown to */
    uint64_t grown_bytes;
    /* physical memory of the heap; 0 where the system does not say (thread ranks) */
    uint64_t memory_bytes;
    /* Fragmentation: free space between blocks, without the space after the last one. It is bad if hole_bytes is large
       compared to used_bytes, and largest_hole_bytes is small compared to hole_bytes. */
    uint64_t holes, hole_bytes, largest_hole_bytes;
    /* 2 MiB if the heap consists of huge pages of hugetlbfs, else the page size of the system */
    uint64_t page_bytes;
    /* bytes of the heap that this rank now maps by huge pages, whatever made them huge */
    uint64_t huge_bytes;
    /* the number of chunks in which the heap has grown; 1: only the first */
    uint64_t chunks;
    /* Ranges outside the heap that are registered now (expar_register, expar_register_symmetric), and their bytes: host
       memory is counted by the host kind, memory of GPUs by the device kind. */
    uint64_t registered_ranges, registered_bytes;
} expar_heap_stats;
#define EXPAR_HEAP_STATS_INIT EXPAR_STRUCT_INIT(expar_heap_stats)
/* Fills as many members as stats->struct_size covers. Not collective. Any thread. EXPAR_ERR_NULL; EXPAR_ERR_ARGUMENT
   when stats->struct_size is not set. */
EXPAR_API expar_status expar_heap_get_stats(expar_group *group, expar_heap_stats *stats);
/* Reads the same facts, as of the last allocation, from a rank of another process, and its rank and group size. The
   descriptor fd is open for reading on the heap of that rank, which is the file `/memfd:expar-heap` among its
   descriptors (/proc/PID/fd). Ranks that are threads have no such file. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT
   (struct_size; fd is no heap of this version of expar, or of a rank that is not ready), EXPAR_ERR_SYSTEM. Any
   thread. */
EXPAR_API expar_status expar_heap_read_stats(int fd, expar_heap_stats *stats, int32_t *rank, int32_t *size);

/* The kinds of symmetric memory. Each is a heap of its own. An address is of one kind, the same on all ranks. */
typedef enum expar_memory_kind {
    /* the heap of expar_malloc: CPUs of the node load and store it */
    EXPAR_MEMORY_HOST = 0,
    /* memory of the rank's GPU, which kernels of the node's GPUs with peer access load and store */
    EXPAR_MEMORY_DEVICE = 1,
    /* host memory that is registered with the CUDA driver: CPUs and kernels of the node load and store it */
    EXPAR_MEMORY_PINNED = 2
} expar_memory_kind;

typedef struct expar_memory_options {
    /* set by EXPAR_MEMORY_OPTIONS_INIT */
    size_t struct_size;
    expar_memory_kind kind;
    /* this rank's GPU, by its number in this process; may differ between ranks. The first allocation of device or
       pinned memory chooses it, and later ones name the same. Host memory: 0 */
    int32_t device;
    /* 0 gives NULL and EXPAR_OK */
    size_t bytes;
    /* 0 or a power of two: up to 2 MiB, host memory up to 1 GiB. Device blocks have 256 bytes at least, others 128 */
    size_t alignment;
    /* 1: the block is zero on all ranks when the call returns; 0: its contents are undefined */
    int32_t zeroed;
} expar_memory_options;
#define EXPAR_MEMORY_OPTIONS_INIT EXPAR_STRUCT_INIT(expar_memory_options)

/* Allocates a block of a kind. Collective; all ranks give the same options except device (else EXPAR_ERR_MISMATCH on
   all, naming a rank). The group owns the block, which lasts until expar_free or the group's end. expar_free and
   expar_realloc know the kind by the address. They follow no stream: the caller's kernels that use the block have ended
   on all ranks. The group's end is the same. A rank whose arguments are wrong returns its error, and the others return
   EXPAR_ERR_REMOTE. *out is set on success only. Errors as expar_malloc, and EXPAR_ERR_ARGUMENT (names the member),
   EXPAR_ERR_RANGE (there is no such GPU), EXPAR_ERR_CUDA. EXPAR_ERR_UNSUPPORTED on all ranks: one of them, which is
   named, has no GPU; host memory serves on. */
EXPAR_API expar_status expar_memory_alloc(expar_group *group, const expar_memory_options *options, void **out);

/* Where a symmetric address lies. */
typedef struct expar_memory_place {
    /* set by EXPAR_MEMORY_PLACE_INIT */
    size_t struct_size;
    expar_memory_kind kind;
    /* this rank's GPU for memory of the kind; -1: host memory */
    int32_t device;
    /* from the start of the kind's heap, the same on all ranks */
    uint64_t offset;
    /* the address for kernels of this rank's GPU; NULL: host memory */
    void *device_address;
} expar_memory_place;
#define EXPAR_MEMORY_PLACE_INIT EXPAR_STRUCT_INIT(expar_memory_place)
/* Fills as many members as place->struct_size covers, for any address inside a block of this rank. Not collective. Any
   thread. EXPAR_ERR_NULL; EXPAR_ERR_ADDRESS: the address is not symmetric; EXPAR_ERR_ARGUMENT: struct_size. */
EXPAR_API expar_status expar_memory_get_place(expar_group *group, const void *address, expar_memory_place *place);
/* Fills the statistics of this rank's heap of a kind, as expar_heap_get_stats does for host memory. All members are 0
   until the kind's first allocation. Members that only host memory has are 0; page_bytes is the granularity in which
   the heap grows. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT. Not collective. Any thread. */
EXPAR_API expar_status expar_memory_get_stats(expar_group *group, expar_memory_kind kind, expar_heap_stats *stats);

/* Registers [address, address + bytes), memory outside the symmetric heaps, for this rank's own operations: as the
   source of puts and the destination of gets. It may be host memory, or memory of a GPU. No operation needs this.
   Copies between a GPU and host memory that is not registered pass through pinned pieces of the library's own.
   Registered host memory is pinned once the group has device or pinned memory, and such copies then use it in place.
   Memory of GPUs is always used in place. Not collective. Any thread.
     A transport that registers memory with a network device (gda, and fabric where its provider asks for that) does so
   once for the range, and not for each operation.
     The same range may be registered several times. It stays until it was unregistered as often, or until the group's
   end; it must stay allocated until then. Errors: EXPAR_ERR_NULL. EXPAR_ERR_ARGUMENT: bytes is 0, or the range leaves
   the address space. EXPAR_ERR_ADDRESS: the range is symmetric, of two kinds, freed, or it overlaps another registered
   range. EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA and EXPAR_ERR_UNSUPPORTED: it cannot be pinned, or a network device cannot
   take it. */
EXPAR_API expar_status expar_register(expar_group *group, void *address, size_t bytes);
/* Takes back one expar_register of the range that begins at `address`. Operations that use the memory have been
   completed (expar_quiet, expar_ctx_quiet), and streams have passed theirs. Not collective. Any thread. EXPAR_ERR_NULL;
   EXPAR_ERR_ADDRESS: no registered range begins there; EXPAR_ERR_BUSY: a call of another thread uses it. */
EXPAR_API expar_status expar_unregister(expar_group *group, const void *address);
/* Makes the caller's memory on this rank's GPU symmetric, without a copy. *out is its symmetric address, of kind
   EXPAR_MEMORY_DEVICE. All calls and kernels take it as they take memory of expar_memory_alloc. The memory was made by
   cuMemCreate and mapped by cuMemMap. `address` is where a chunk begins, and further chunks may follow it. Ranks that
   are processes need chunks with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
     Collective; all ranks give the same bytes (else EXPAR_ERR_MISMATCH), each an address of its own. The caller's
   address stays valid, but a kernel must not use both addresses for the same data. The memory stays until
   expar_unregister_symmetric or the group's end, even if the caller unmaps it before. A group has at most 16 such
   ranges (EXPAR_ERR_LIMIT). *out is set on success only. A rank whose arguments are wrong returns its error, and the
   others return EXPAR_ERR_REMOTE.
     Errors: EXPAR_ERR_NULL. EXPAR_ERR_ARGUMENT: the size, or the memory of another GPU than this rank's.
   EXPAR_ERR_ADDRESS: it is no such memory, or it is registered or symmetric already. EXPAR_ERR_UNSUPPORTED: some rank
   has no GPU, its chunks cannot be shared, or memory is shared by CUDA IPC. EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA,
   EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_register_symmetric(expar_group *group, void *address, size_t bytes, void **out);
/* Ends the registration of that symmetric address. Collective; all ranks name the same memory (else
   EXPAR_ERR_MISMATCH). As for expar_free, kernels and streams of all ranks are done with it. The library's operations
   are completed first. EXPAR_ERR_NULL; EXPAR_ERR_ADDRESS: it is not an address of expar_register_symmetric;
   EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_unregister_symmetric(expar_group *group, const void *address);

/* Returns where this rank can load and store pe's copy of `address` (any address inside a symmetric heap): by its CPU,
   or for device memory by kernels of its GPU. Returns NULL if it cannot: address is not symmetric, pe is out of range
   or on another node, or the GPUs have no peer access. Not collective. Any thread. */
EXPAR_API void *expar_ptr(expar_group *group, const void *address, int32_t pe);
/* Returns where kernels of this rank's GPU load and store pe's copy of a device or pinned `address`. NULL as expar_ptr,
   and for host memory. Not collective. Any thread. */
EXPAR_API void *expar_device_ptr(expar_group *group, const void *address, int32_t pe);

#ifdef __cplusplus
}
#endif
#endif
