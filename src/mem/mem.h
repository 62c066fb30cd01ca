/* SPDX-License-Identifier: Apache-2.0 */
/* mem: symmetric memory: regions that peers can map, the collective heap allocator, and the local output pool.
 *
 * Called by shmem (heap), the transports (regions), exec (pool), ep (blocks of the pool) and group (heaps of ranks that
 * are threads); calls base only. Knows nothing of ranks or sockets: a region is a file descriptor and a mapping, an
 * allocator works on offsets. */
#ifndef EXPAR_MEM_MEM_H
#define EXPAR_MEM_MEM_H

#include "base/base.h"
#include <stdatomic.h>

/* ---- region (region.c): a range of shared memory without a name in the file system ------------------------------- */

/* A range of addresses of which the first `open_bytes` may be touched. Behind it is a memfd (fd ≥ 0) that grows with
   them, or anonymous memory (fd -1), which serves ranks that are threads. Pages exist once they are committed or
   touched. Huge pages are asked for (madvise), or it consists of those of hugetlbfs. */
typedef struct mem_region {
    void *base;
    size_t bytes;
    size_t open_bytes; /* whole pages; only grows */
    size_t page_bytes; /* of a region that was made here: the system's pages, or 2 MiB of hugetlbfs */
    int fd;
} mem_region;

/* Reserves addresses alone: nothing of them is open yet. */
expar_status mem_region_create(size_t bytes, bool shareable, mem_region *out);
/* A shareable one of huge pages of hugetlbfs, with memory for its first bytes; `bytes` is rounded up to whole ones.
   EXPAR_ERR_UNSUPPORTED: the system knows none. EXPAR_ERR_MEMORY: too few are free. */
expar_status mem_region_create_huge(size_t bytes, size_t first_bytes, mem_region *out);
/* Maps all of a peer's region of at most `bytes` bytes from its descriptor, which is closed in any case. What the peer
   opens later is there without another call; nothing behind that may be touched. */
expar_status mem_region_map(int fd, size_t bytes, mem_region *out);
/* Opens the region up to `end`, at least. EXPAR_ERR_MEMORY: a limit of this process or the system, named. */
expar_status mem_region_open(mem_region *region, size_t end);
/* What one thread at a time may commit before the limits on memory are looked at again. */
typedef struct mem_budget {
    size_t vetted_bytes; /* 0 at first */
    int32_t sharers;     /* ranks of the host, which take as much at the same time */
} mem_budget;
/* Takes memory for an open range, so that lack of it is EXPAR_ERR_MEMORY here and no signal on a later touch. Stops
   short of what the machine and this process's memory cgroup have left; part of the range may have been taken then.
   What the range holds stays as it is. */
expar_status mem_region_commit(const mem_region *region, mem_budget *budget, size_t offset, size_t bytes);
/* Gives the physical pages of a range back; the range reads as zero afterwards. Rounded inwards to whole pages. */
void mem_region_discard(mem_region *region, size_t offset, size_t bytes);
/* The memory that the region has; 0 where the system does not say (anonymous memory). */
uint64_t mem_region_memory(const mem_region *region);
/* What of it is mapped by huge pages now, whether of hugetlbfs or by the kernel's own choice. Reads /proc. */
uint64_t mem_region_huge_bytes(const mem_region *region);
void mem_region_close(mem_region *region);

/* ---- room (room.c): what memory is left -------------------------------------------------------------------------- */

#define MEM_ROOM_TEXT 160
typedef struct mem_room {
    uint64_t bytes;            /* UINT64_MAX: no limit is known */
    char limit[MEM_ROOM_TEXT]; /* what sets it, for error texts */
} mem_room;
/* The least of what the machine has available and what the memory cgroups of this process leave (versions 1 and 2),
   page cache that can go counted as free. `root` stands before /proc and /sys; "" but in tests. */
void mem_room_find(const char *root, mem_room *out);

/* ---- arena (arena.c): an allocator of offsets -------------------------------------------------------------------- */

/* Best fit over [0, bytes), free neighbours coalesce, metadata outside the range. The same calls in the same order give
   the same offsets: that is what makes the heap symmetric. Not thread-safe; the owner locks. */
typedef struct mem_arena mem_arena;
expar_status mem_arena_create(uint64_t bytes, mem_arena **out);
void mem_arena_destroy(mem_arena *arena);
/* alignment: a power of two. False when there is no room. bytes 0 takes the smallest block. */
bool mem_arena_take(mem_arena *arena, uint64_t bytes, uint64_t alignment, uint64_t *offset);
/* The same place with all the free space behind it, of which *bytes tells how much it is: for who does not know yet how
   much it needs, and trims it soon. */
bool mem_arena_take_whole(mem_arena *arena, uint64_t least, uint64_t alignment, uint64_t *offset, uint64_t *bytes);
/* Gives back what lies behind the block's first `bytes`. False when no block of so many starts there. */
bool mem_arena_trim(mem_arena *arena, uint64_t offset, uint64_t bytes);
/* False when no block starts there. *bytes (may be NULL) gets what the block was. */
bool mem_arena_give(mem_arena *arena, uint64_t offset, uint64_t *bytes);
/* The bytes of the block that starts at offset, as taken (rounded up); false when none does. */
bool mem_arena_block_bytes(const mem_arena *arena, uint64_t offset, uint64_t *bytes);
typedef struct mem_arena_stats {
    uint64_t total_bytes, used_bytes, high_water_bytes, largest_free_bytes;
    uint64_t blocks;
    /* Free space between blocks, that is without what lies behind the last one. */
    uint64_t holes, hole_bytes, largest_hole_bytes;
} mem_arena_stats;
void mem_arena_get_stats(const mem_arena *arena, mem_arena_stats *out);

/* ---- pool (pool.c): local, reference-counted blocks inside a symmetric range ------------------------------------- */

/* Blocks of so many bytes and more start on a multiple of it: a huge page. */
#define MEM_POOL_LARGE_BYTES ((uint64_t)2 << 20)

/* Output blocks of dispatches. Taking and giving back is local to the rank: its offsets differ from its peers', who
   learn them by offers. Thread-safe. The pool itself lives until it is closed and its last block is dropped. */
typedef struct mem_pool mem_pool;
typedef struct mem_block {
    void *data;      /* local address */
    uint64_t offset; /* from the start of the heap; UINT64_MAX for private memory */
    uint64_t bytes;
    mem_pool *pool; /* NULL for private memory (malloc) */
    atomic_int references;
} mem_block;

/* Over heap_base + [offset, offset + bytes). */
expar_status mem_pool_create(void *heap_base, uint64_t offset, uint64_t bytes, mem_pool **out);
/* For a pool over open memory of `region`, which outlives its taking: blocks are committed as they are taken. */
void mem_pool_fill(mem_pool *pool, const mem_region *region, int32_t sharers);
/* No more blocks; those alive stay accounted but their memory is no longer valid. */
void mem_pool_close(mem_pool *pool);
/* Aligned to 128 bytes; large blocks to MEM_POOL_LARGE_BYTES. EXPAR_ERR_MEMORY: no room (says the largest free block,
   and how large a pool would do), or no memory behind it. */
expar_status mem_pool_take(mem_pool *pool, uint64_t bytes, mem_block **out);
/* A block of at least `least` bytes, with all the room that lies behind it: block->bytes tells how much. To be trimmed
   before anything else is taken. False where there is no room, and for a pool over a region. */
bool mem_pool_take_whole(mem_pool *pool, uint64_t least, mem_block **out);
/* Leaves the block, which has one holder, its first `bytes`; at most what it has. */
void mem_block_trim(mem_block *block, uint64_t bytes);
/* Bytes of a pool that would have room for one more block of `bytes`, beside what is held now. */
uint64_t mem_pool_enough(mem_pool *pool, uint64_t bytes);
/* Private memory in the same shape, for outputs that do not fit the pool. */
expar_status mem_block_private(uint64_t bytes, mem_block **out);
void mem_block_retain(mem_block *block);
void mem_block_release(mem_block *block);

#endif
