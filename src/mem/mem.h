/* SPDX-License-Identifier: Apache-2.0 */
/* mem: symmetric memory: regions that peers can map, the collective heap allocator, and the local output pool.
 *
 * Called by shmem (heap), the transports (regions), exec (pool), ep (blocks of the pool) and group (heaps of ranks
 * that are threads); calls base, and cuda where a block waits for a stream. Knows nothing of ranks or sockets: a
 * region is a file descriptor and a mapping, an allocator works on offsets. */
#ifndef EXPAR_MEM_MEM_H
#define EXPAR_MEM_MEM_H

#include "mem/pool.h"
#include "mem/region.h"

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
/* The first free piece that starts at `from` or behind it; false: there is none. */
bool mem_arena_next_hole(const mem_arena *arena, uint64_t from, uint64_t *offset, uint64_t *bytes);
/* Takes that very piece, as far as the size is rounded up. False where it is not free. */
bool mem_arena_take_at(mem_arena *arena, uint64_t offset, uint64_t bytes);
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

#endif
