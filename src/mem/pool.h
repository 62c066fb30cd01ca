/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: memory of outputs. There are four objects, from the machine upwards:
 *
 *   a source   provides the memory: a table of callbacks that fill a range of addresses with memory, and take it away
 *              again (mem_source). Host memory has one ready made: a backing (backing.c). On GPUs it is the device
 *              heap's growing part.
 *   a store    a range of addresses, all of them reserved, of which the filled ones have memory (store.c). Each rank of
 *              a group has one, for outputs that peers reach; all buffers of the group take memory from it.
 *   a pool     the part of a store that one buffer uses: its limit and its statistics (pool.c)
 *   a block    a piece that is in use, with a count of references. It keeps its store, and the store keeps its source.
 *              So a block stays readable even after the end of pool, buffer and group.
 *
 * A block may be freed while a stream still uses its memory (mem_block_follow). Then it waits in its store (marks.c)
 * and counts as used, until the next user is known to come after the work of the stream. On the same stream that holds
 * at once; else it holds when the driver says that the work is done.
 *
 * All calls are thread-safe. A source is called with the store's lock held, so it must not call functions of this
 * header. */
#ifndef EXPAR_MEM_POOL_H
#define EXPAR_MEM_POOL_H

#include "base/base.h"
#include "cuda/cuda.h"
#include "mem/region.h"
#include <stdatomic.h>

/* Blocks of at least this size start on a multiple of it, a huge page. */
#define MEM_POOL_LARGE_BYTES ((uint64_t)2 << 20)

/* ---- sources ----------------------------------------------------------------------------------------------------- */

/* Offsets are those of blocks: they count from `base` of the store, not from its first byte. */
typedef struct mem_source {
    /* ranges are multiples of it, except at the store's two ends; 0: 64 KiB. A power of two */
    uint64_t unit_bytes;
    /* Gives memory to a range that has none; on success all of the range has it. EXPAR_ERR_MEMORY: no memory is
       available, or this rank alone cannot get it. The caller's operation then fails, and may be tried again. */
    expar_status (*fill)(void *context, uint64_t offset, uint64_t bytes);
    /* Takes the memory of such a range away; its contents are not needed. NULL: the memory stays. */
    void (*drain)(void *context, uint64_t offset, uint64_t bytes);
    /* The store and its last block are gone, so the memory is not used any more. May be NULL. */
    void (*end)(void *context);
    void *context;
} mem_source;

/* ---- stores (store.c) -------------------------------------------------------------------------------------------- */

typedef struct mem_store mem_store;

/* Makes a store over the reserved addresses base + [offset, offset + bytes). source NULL: all of it has memory, and
   keeps it. The source is copied, and the store ends it, unless the creation fails. */
expar_status mem_store_create(void *base, uint64_t offset, uint64_t bytes, const mem_source *source, mem_store **out);
/* Drops the owner's reference. The store is freed with the last pool and block. */
void mem_store_close(mem_store *store);
/* Returns whether [data, data + bytes) lies in the store's addresses, and its offset from the store's base. */
bool mem_store_offset(const mem_store *store, const void *data, uint64_t bytes, uint64_t *offset);
/* Returns idle memory to the source, if it takes memory back, except the pools' start sizes. */
void mem_store_trim(mem_store *store);
/* Another function has filled the range, as a GPU's source does together with other ranks. Blocks may be taken there
   without asking the source. */
void mem_store_filled(mem_store *store, uint64_t offset, uint64_t bytes);
/* Another function is to take the memory of the range away: no block is taken there any more. False: there is a block,
   and nothing changes. */
bool mem_store_emptied(mem_store *store, uint64_t offset, uint64_t bytes);
/* `covers` returns whether everything that will use the store's blocks from now on comes after the mark anyway. It must
   not call a driver, and any thread may call it with the store's lock held. NULL: nothing is known. Then, and if covers
   returns false, a block with marks waits until the driver says that they have passed. */
typedef bool (*mem_covers_fn)(void *context, const cuda_mark *mark);
void mem_store_set_cover(mem_store *store, mem_covers_fn covers, void *context);
/* Returns the end of the last block, as an offset from the store's base. */
uint64_t mem_store_used_end(mem_store *store);

typedef struct mem_store_stats {
    /* size of the address range */
    uint64_t reserved_bytes;
    /* of these, with memory */
    uint64_t filled_bytes;
    /* in blocks */
    uint64_t used_bytes;
    uint64_t used_high_bytes, filled_high_bytes;
    /* memory that the source has given in total; memory that went and came again counts twice */
    uint64_t taken_bytes;
    uint64_t blocks;
} mem_store_stats;
void mem_store_get_stats(mem_store *store, mem_store_stats *out);

/* ---- pools (pool.c) ---------------------------------------------------------------------------------------------- */

typedef struct mem_pool mem_pool;
typedef struct mem_block {
    /* local address */
    void *data;
    /* from the store's base, which is the heap's start for symmetric memory; UINT64_MAX: private memory */
    uint64_t offset;
    uint64_t bytes;
    /* NULL for private memory (malloc), and for a caller's memory */
    mem_pool *pool;
    /* For a caller's memory: frees it and its record, once its marks have passed. The thread that drops the last
       reference calls it. Else NULL. */
    void (*give)(struct mem_block *block);
    /* Places on streams after which the memory's next user must come (mem_block_follow). Holders push them (release);
       the thread that drops the last reference reads them. */
    _Atomic(cuda_mark *) marks;
    atomic_int references;
} mem_block;

/* Makes a pool that takes blocks from the store, which it keeps: at most limit_bytes at a time (0: no limit).
   start_bytes of memory are filled now and kept as long as the pool lives; EXPAR_ERR_MEMORY: not that much is
   available. */
expar_status mem_pool_create_in(mem_store *store, uint64_t limit_bytes, uint64_t start_bytes, mem_pool **out);
/* The same over a store of its own, all of which has memory: base + [offset, offset + bytes). */
expar_status mem_pool_create(void *base, uint64_t offset, uint64_t bytes, mem_pool **out);
/* No more blocks can be taken; existing ones stay as they are. */
void mem_pool_close(mem_pool *pool);
/* Takes a block, aligned to 128 bytes, large ones to MEM_POOL_LARGE_BYTES. EXPAR_ERR_MEMORY: no free space (the text
   says the largest free block, and which pool size would be enough), or no memory for it. */
expar_status mem_pool_take(mem_pool *pool, uint64_t bytes, mem_block **out);
/* Takes a block of at least `least` bytes, with all the free space that follows it; block->bytes gets the size. Trim it
   before taking anything else. The source is not asked: in a store with a source the free space ends where memory does.
   Returns false if there is too little. */
bool mem_pool_take_whole(mem_pool *pool, uint64_t least, mem_block **out);
/* Reduces the block, which has one holder, to its first `bytes`; at most what it has. */
void mem_block_trim(mem_block *block, uint64_t bytes);
/* Returns the pool size that would hold one more block of `bytes` beside the present ones. */
uint64_t mem_pool_enough(mem_pool *pool, uint64_t bytes);
/* Returns how far blocks of these sizes would reach at most, if they were taken now one after the other within the
   limit. It is an offset from the store's base; 0: none could be taken. Nothing is taken, and no source is asked. */
#define MEM_POOL_MOST_REACHED 16
uint64_t mem_pool_reach(mem_pool *pool, const uint64_t *bytes, size_t count);
/* Returns the most bytes that its blocks may have: its limit, else the store's address range. */
uint64_t mem_pool_limit(const mem_pool *pool);

typedef struct mem_pool_stats {
    /* in blocks of this pool */
    uint64_t used_bytes, used_high_bytes;
    uint64_t blocks;
    /* of the store, which other pools use, too */
    mem_store_stats store;
} mem_pool_stats;
void mem_pool_get_stats(mem_pool *pool, mem_pool_stats *out);

/* mem_store_trim for the pool's store. */
void mem_pool_trim(mem_pool *pool);

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* A caller's functions for memory; as expar_ep_alloc_fn and expar_ep_free_fn. */
typedef struct mem_allocator {
    /* NULL: there are none */
    void *(*alloc)(void *context, size_t bytes, size_t alignment, void *stream);
    void (*free)(void *context, void *data, size_t bytes, void *stream);
    void *context;
} mem_allocator;
/* Makes a block from memory of these functions. The block owns the memory from now on, and needs no stream; after a
   failure the caller still owns it. */
expar_status mem_block_foreign(const mem_allocator *from, void *data, uint64_t bytes, mem_block **out);
/* Makes a block of private memory, for outputs that do not fit into the pool. */
expar_status mem_block_private(uint64_t bytes, mem_block **out);
void mem_block_retain(mem_block *block);
void mem_block_release(mem_block *block);
/* A stream still reads or writes the block until the mark: the memory's next user must come after it. Takes ownership
   of the mark. A holder calls this, on any thread. */
void mem_block_follow(mem_block *block, cuda_mark *mark);
/* For the owner of the memory, after the last holder: returns true if its next user comes after all marks of the block.
   `covers` is as in mem_store_set_cover, or NULL; the driver is asked about the other marks. Drops the marks that are
   done with. */
bool mem_block_is_free(mem_block *block, mem_covers_fn covers, void *context);

/* ---- host memory of a store (backing.c) -------------------------------------------------------------------------- */

/* A region with several references: of the store, and of other users of its addresses (ranks that are threads). */
typedef struct mem_backing {
    mem_region region;
    /* guarded by the store's lock */
    mem_budget budget;
    /* of the region's first byte, as blocks count; mem_backing_store sets it */
    uint64_t offset;
    atomic_int holders;
} mem_backing;
/* Takes ownership of the region, also on failure; one reference. sharers: as in mem_budget. */
expar_status mem_backing_create(mem_region *region, int32_t sharers, mem_backing **out);
void mem_backing_hold(mem_backing *backing);
/* Drops a reference. The last one unmaps the region. */
void mem_backing_drop(mem_backing *backing);
/* Makes a store over the backing, to which it holds a reference. Its blocks count from the region's address minus
   `offset`. */
expar_status mem_backing_store(mem_backing *backing, uint64_t offset, mem_store **out);

#endif
