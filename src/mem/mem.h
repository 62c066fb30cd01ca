/* SPDX-License-Identifier: Apache-2.0 */
/* mem: symmetric memory: regions that peers can map, the collective heap allocator, and the local output pool.
 *
 * Called by shmem (heap), the transports (regions), exec (pool), ep (blocks of the pool) and group (heaps of ranks that
 * are threads). Calls base, and cuda if a block waits for a stream. It knows nothing of ranks or sockets: a region is a
 * file descriptor and a mapping, and an allocator works on offsets. */
#ifndef EXPAR_MEM_MEM_H
#define EXPAR_MEM_MEM_H

#include "mem/pool.h"
#include "mem/region.h"

/* ---- arena (arena.c): an allocator of offsets -------------------------------------------------------------------- */

/* An allocator of offsets: best fit over [0, bytes), free neighbours coalesce, metadata outside the range. The same
   calls in the same order give the same offsets, which makes the heap symmetric. Not thread-safe; the owner locks. */
typedef struct mem_arena mem_arena;
expar_status mem_arena_create(uint64_t bytes, mem_arena **out);
void mem_arena_destroy(mem_arena *arena);
/* alignment: a power of two. Returns false if there is no free space. bytes 0 takes the smallest block. */
bool mem_arena_take(mem_arena *arena, uint64_t bytes, uint64_t alignment, uint64_t *offset);
/* Takes the same place with all the free space that follows it; *bytes gets its size. This is for a caller that does
   not know yet how much it needs, and trims the block soon. */
bool mem_arena_take_whole(mem_arena *arena, uint64_t least, uint64_t alignment, uint64_t *offset, uint64_t *bytes);
/* Finds the first free piece that starts at `from` or after it; false: there is none. */
bool mem_arena_next_hole(const mem_arena *arena, uint64_t from, uint64_t *offset, uint64_t *bytes);
/* Takes exactly that piece; its size is rounded up. Returns false if it is not free. */
bool mem_arena_take_at(mem_arena *arena, uint64_t offset, uint64_t bytes);
/* Frees what follows the block's first `bytes`. Returns false if no block of that size or more starts there. */
bool mem_arena_trim(mem_arena *arena, uint64_t offset, uint64_t bytes);
/* Returns false if no block starts there. *bytes (may be NULL) gets the block's size. */
bool mem_arena_give(mem_arena *arena, uint64_t offset, uint64_t *bytes);
/* Gives the size of the block that starts at offset, as taken (rounded up). Returns false if no block starts there. */
bool mem_arena_block_bytes(const mem_arena *arena, uint64_t offset, uint64_t *bytes);
typedef struct mem_arena_stats {
    uint64_t total_bytes, used_bytes, high_water_bytes, largest_free_bytes;
    uint64_t blocks;
    /* Free space between blocks, without the space after the last one. */
    uint64_t holes, hole_bytes, largest_hole_bytes;
} mem_arena_stats;
void mem_arena_get_stats(const mem_arena *arena, mem_arena_stats *out);

#endif
