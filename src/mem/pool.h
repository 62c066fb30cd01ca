/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: memory of outputs. Four objects, from the machine upwards:
 *
 *   a source   where memory comes from: a table of callbacks that fill a range of addresses with it, and take it away
 *              again (mem_source). Host memory has one ready made: a backing (backing.c). On GPUs it is the device
 *              heap's growing part.
 *   a store    a range of addresses, all of them reserved, with memory behind those that have been filled (store.c).
 *              One for each rank of a group, for outputs that peers reach; all buffers of the group draw on it.
 *   a pool     what one buffer takes of a store: its limit and its statistics (pool.c)
 *   a block    a piece in somebody's hands, with a count of its holders. It keeps its store, the store keeps its
 *              source: so a block stays readable whatever has become of pool, buffer and group.
 *
 * A block may go back while a stream still uses its memory (mem_block_follow). Then it waits in its store (marks.c) and
 * counts as used, until the next user is known to come after the work of the stream: at once on the same stream, else
 * when the driver says that the work is done.
 *
 * All calls are thread-safe; a source is called with the store's lock held, so it calls nothing of this header. */
#ifndef EXPAR_MEM_POOL_H
#define EXPAR_MEM_POOL_H

#include "base/base.h"
#include "cuda/cuda.h"
#include "mem/region.h"
#include <stdatomic.h>

/* Blocks of so many bytes and more start on a multiple of it: a huge page. */
#define MEM_POOL_LARGE_BYTES ((uint64_t)2 << 20)

/* ---- sources ----------------------------------------------------------------------------------------------------- */

/* Offsets are those of blocks: from `base` of the store, not from its first byte. */
typedef struct mem_source {
    uint64_t unit_bytes; /* ranges are whole ones, but where the store begins and ends; 0: 64 KiB. A power of two */
    /* Puts memory behind a range that has none; on success all of it has. EXPAR_ERR_MEMORY: there is none to be had, or
       not by this rank alone; what needs it fails then, and may be tried again. */
    expar_status (*fill)(void *context, uint64_t offset, uint64_t bytes);
    /* Takes the memory of such a range away, whose contents nobody needs. NULL: it stays. */
    void (*drain)(void *context, uint64_t offset, uint64_t bytes);
    /* The store and its last block have gone: nobody looks at the memory any more. May be NULL. */
    void (*end)(void *context);
    void *context;
} mem_source;

/* ---- stores (store.c) -------------------------------------------------------------------------------------------- */

typedef struct mem_store mem_store;

/* Over base + [offset, offset + bytes), addresses that are reserved. source NULL: all of it has memory, and keeps it.
   The source is copied, and ended by the store, unless the making fails. */
expar_status mem_store_create(void *base, uint64_t offset, uint64_t bytes, const mem_source *source, mem_store **out);
/* Gives the owner's hold back. The store goes with the last pool and block. */
void mem_store_close(mem_store *store);
/* Whether [data, data + bytes) lies in the store's addresses, and its offset from the store's base. */
bool mem_store_offset(const mem_store *store, const void *data, uint64_t bytes, uint64_t *offset);
/* Gives idle memory back, beyond what the pools have begun with, where the source takes it. */
void mem_store_trim(mem_store *store);
/* Somebody else has filled the range, as the source of a GPU does together with other ranks: blocks may be taken there
   without asking the source. */
void mem_store_filled(mem_store *store, uint64_t offset, uint64_t bytes);
/* Somebody else is to take the memory of the range away, likewise: no block is taken there any more. False: there is
   one, and all stays as it is. */
bool mem_store_emptied(mem_store *store, uint64_t offset, uint64_t bytes);
/* `covers` says whether all that will use the store's blocks from now on comes after the mark anyway. It calls no
   driver, and may be called by any thread with the store's lock held. NULL: nothing is known of that; then, and where
   covers says no, a block with marks waits until the driver says that they have passed. */
typedef bool (*mem_covers_fn)(void *context, const cuda_mark *mark);
void mem_store_set_cover(mem_store *store, mem_covers_fn covers, void *context);
/* Behind the last block: an offset from the store's base. */
uint64_t mem_store_used_end(mem_store *store);

typedef struct mem_store_stats {
    uint64_t reserved_bytes; /* addresses */
    uint64_t filled_bytes;   /* with memory behind them */
    uint64_t used_bytes;     /* in blocks */
    uint64_t used_high_bytes, filled_high_bytes;
    uint64_t taken_bytes; /* memory that the source has given, all in all: what went and came again counts twice */
    uint64_t blocks;
} mem_store_stats;
void mem_store_get_stats(mem_store *store, mem_store_stats *out);

/* ---- pools (pool.c) ---------------------------------------------------------------------------------------------- */

typedef struct mem_pool mem_pool;
typedef struct mem_block {
    void *data;      /* local address */
    uint64_t offset; /* from the store's base, for symmetric memory the start of the heap; UINT64_MAX: private memory */
    uint64_t bytes;
    mem_pool *pool; /* NULL for private memory (malloc), and for what somebody lent */
    /* Of a block that was lent: gives it back, with its record, once its marks have passed. By the last holder, on any
       thread. Else NULL. */
    void (*give)(struct mem_block *block);
    /* Places on streams that the memory's next user has to come after (mem_block_follow). Pushed by holders (release),
       read by who gives the last hold back. */
    _Atomic(cuda_mark *) marks;
    atomic_int references;
} mem_block;

/* Draws on the store, which it keeps: at most limit_bytes in blocks at a time (0: what there is). start_bytes of memory
   are filled now and kept for as long as the pool lives; EXPAR_ERR_MEMORY: there are not so many. */
expar_status mem_pool_create_in(mem_store *store, uint64_t limit_bytes, uint64_t start_bytes, mem_pool **out);
/* The same over a store of its own, all of which has memory: base + [offset, offset + bytes). */
expar_status mem_pool_create(void *base, uint64_t offset, uint64_t bytes, mem_pool **out);
/* No more blocks; those alive stay as they are. */
void mem_pool_close(mem_pool *pool);
/* Aligned to 128 bytes; large blocks to MEM_POOL_LARGE_BYTES. EXPAR_ERR_MEMORY: no room (says the largest free block,
   and how large a pool would do), or no memory behind it. */
expar_status mem_pool_take(mem_pool *pool, uint64_t bytes, mem_block **out);
/* A block of at least `least` bytes, with all the room that lies behind it: block->bytes tells how much. To be trimmed
   before anything else is taken. Its source is asked for nothing: of a store with one the room ends where memory does.
   False where there is no room. */
bool mem_pool_take_whole(mem_pool *pool, uint64_t least, mem_block **out);
/* Leaves the block, which has one holder, its first `bytes`; at most what it has. */
void mem_block_trim(mem_block *block, uint64_t bytes);
/* Bytes of a pool that would have room for one more block of `bytes`, beside what is held now. */
uint64_t mem_pool_enough(mem_pool *pool, uint64_t bytes);
/* Where blocks of these sizes, as far as the limit allows them, would end at most if they were taken now one behind the
   other: an offset from the store's base; 0: none would be had. Nothing is taken, and no source asked. */
#define MEM_POOL_MOST_REACHED 16
uint64_t mem_pool_reach(mem_pool *pool, const uint64_t *bytes, size_t count);
/* The most that it may have in blocks: its limit, else its store's addresses. */
uint64_t mem_pool_limit(const mem_pool *pool);

typedef struct mem_pool_stats {
    uint64_t used_bytes, used_high_bytes; /* in blocks of this pool */
    uint64_t blocks;
    mem_store_stats store; /* which other pools draw on, too */
} mem_pool_stats;
void mem_pool_get_stats(mem_pool *pool, mem_pool_stats *out);

/* As mem_store_trim, of the pool's store. */
void mem_pool_trim(mem_pool *pool);

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Somebody else's functions for memory; as expar_ep_alloc_fn and expar_ep_free_fn. */
typedef struct mem_allocator {
    void *(*alloc)(void *context, size_t bytes, size_t alignment, void *stream); /* NULL: there are none */
    void (*free)(void *context, void *data, size_t bytes, void *stream);
    void *context;
} mem_allocator;
/* What they have given as a block, which owns it from now on, and needs no stream; on failure it is still the
   caller's. */
expar_status mem_block_foreign(const mem_allocator *from, void *data, uint64_t bytes, mem_block **out);
/* Private memory in the same shape, for outputs that do not fit the pool. */
expar_status mem_block_private(uint64_t bytes, mem_block **out);
void mem_block_retain(mem_block *block);
void mem_block_release(mem_block *block);
/* A stream still reads or writes the block until the mark: the memory serves nobody who does not come after it. Takes
   the mark over. By a holder, on any thread. */
void mem_block_follow(mem_block *block, cuda_mark *mark);
/* For the owner of the memory, after the last holder: true when its next user comes after all marks of the block.
   covers as in mem_store_set_cover, or NULL; what that does not know the driver is asked. Drops the marks that are
   done with. */
bool mem_block_is_free(mem_block *block, mem_covers_fn covers, void *context);

/* ---- host memory behind a store (backing.c) ---------------------------------------------------------------------- */

/* A region that several keep: the store, and whoever else needs its addresses (ranks that are threads). */
typedef struct mem_backing {
    mem_region region;
    mem_budget budget; /* guarded by the store's lock */
    uint64_t offset;   /* of the region's first byte, as blocks count; set by mem_backing_store */
    atomic_int holders;
} mem_backing;
/* Takes the region over, also when it fails; one holder. sharers: as in mem_budget. */
expar_status mem_backing_create(mem_region *region, int32_t sharers, mem_backing **out);
void mem_backing_hold(mem_backing *backing);
/* The last one unmaps the region. */
void mem_backing_drop(mem_backing *backing);
/* A store over the backing, which it holds. Its blocks count from the region's address less `offset`. */
expar_status mem_backing_store(mem_backing *backing, uint64_t offset, mem_store **out);

#endif
