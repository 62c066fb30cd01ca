/* SPDX-License-Identifier: Apache-2.0 */
/* The arena: best fit over a range of offsets.
 *
 * One array of blocks in the order of their offsets covers the whole range without gaps; no two free blocks are
 * neighbours. Taking scans the array, freeing searches it by bisection. Symmetric programs hold tens to thousands of
 * blocks, for which a scan of one small array is faster than a tree. A call allocates only if there were never so many
 * blocks before. */
#include "mem/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Every block starts and ends on a multiple of it: two cache lines, so that neighbours share none, even with
 * prefetch. */
#define GRAIN_BYTES    128u
#define FIRST_CAPACITY 16

typedef struct block {
    uint64_t offset, bytes;
    bool used;
} block;

struct mem_arena {
    block *blocks;
    size_t count, capacity;
    uint64_t total_bytes, used_bytes, high_water_bytes;
    uint64_t used_blocks;
};

expar_status mem_arena_create(uint64_t bytes, mem_arena **out)
{
    uint64_t usable = bytes & ~(uint64_t)(GRAIN_BYTES - 1);
    if (usable == 0)
        return error_set(EXPAR_ERR_ARGUMENT, "an arena of %llu bytes: expected at least %u", (unsigned long long)bytes,
                         GRAIN_BYTES);
    mem_arena *arena = calloc(1, sizeof *arena);
    block *blocks = calloc(FIRST_CAPACITY, sizeof *blocks);
    if (!arena || !blocks) {
        free(arena);
        free(blocks);
        return error_set(EXPAR_ERR_MEMORY, "no memory for an arena's records");
    }
    blocks[0] = (block){.offset = 0, .bytes = usable};
    *arena = (mem_arena){.blocks = blocks, .count = 1, .capacity = FIRST_CAPACITY, .total_bytes = usable};
    *out = arena;
    return EXPAR_OK;
}

void mem_arena_destroy(mem_arena *arena)
{
    if (!arena) return;
    free(arena->blocks);
    free(arena);
}

/* Finds where an aligned piece would start in a free block; false if it does not fit. */
static bool piece_fits(const block *candidate, uint64_t bytes, uint64_t alignment, uint64_t *start)
{
    uint64_t padded;
    if (candidate->used || size_add_overflows(candidate->offset, alignment - 1, &padded)) return false;
    uint64_t aligned = padded & ~(alignment - 1);
    uint64_t lead = aligned - candidate->offset;
    if (lead > candidate->bytes || candidate->bytes - lead < bytes) return false;
    *start = aligned;
    return true;
}

/* Returns the smallest free block that holds the piece, the first of equals; count if there is none. */
static size_t best_fit(const mem_arena *arena, uint64_t bytes, uint64_t alignment, uint64_t *start)
{
    size_t best = arena->count;
    for (size_t i = 0; i < arena->count; i++) {
        uint64_t candidate_start;
        if (best < arena->count && arena->blocks[i].bytes >= arena->blocks[best].bytes) continue;
        if (piece_fits(&arena->blocks[i], bytes, alignment, &candidate_start)) {
            best = i;
            *start = candidate_start;
        }
    }
    return best;
}

/* Makes space for two more records, because one take can split one block into three. */
static bool arena_make_space(mem_arena *arena)
{
    if (arena->count + 2 <= arena->capacity) return true;
    block *larger = realloc(arena->blocks, 2 * arena->capacity * sizeof *larger);
    if (!larger) return false;
    arena->blocks = larger;
    arena->capacity *= 2;
    return true;
}

static void insert_free(mem_arena *arena, size_t at, uint64_t offset, uint64_t bytes)
{
    if (bytes == 0) return;
    memmove(&arena->blocks[at + 1], &arena->blocks[at], (arena->count - at) * sizeof(block));
    arena->blocks[at] = (block){.offset = offset, .bytes = bytes};
    arena->count++;
}

static uint64_t size_of(uint64_t bytes)
{
    return bytes == 0 ? GRAIN_BYTES : align_up(bytes, GRAIN_BYTES);
}

/* Takes the piece from the free block `at`. There must be space for the records. */
static void take_from(mem_arena *arena, size_t at, uint64_t start, uint64_t size)
{
    block old = arena->blocks[at];
    uint64_t end = old.offset + old.bytes;
    arena->blocks[at] = (block){.offset = start, .bytes = size, .used = true};
    insert_free(arena, at + 1, start + size, end - (start + size));
    insert_free(arena, at, old.offset, start - old.offset);
    arena->used_blocks++;
    arena->used_bytes += size;
    if (arena->used_bytes > arena->high_water_bytes) arena->high_water_bytes = arena->used_bytes;
}

/* Takes the piece; with `whole` also all that follows it in the free block in which it fits best. */
static bool take(mem_arena *arena, uint64_t bytes, uint64_t alignment, bool whole, uint64_t *start, uint64_t *size)
{
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    if (bytes > arena->total_bytes || !arena_make_space(arena)) return false;
    size_t at = best_fit(arena, size_of(bytes), alignment < GRAIN_BYTES ? GRAIN_BYTES : alignment, start);
    if (at == arena->count) return false;
    *size = whole ? arena->blocks[at].offset + arena->blocks[at].bytes - *start : size_of(bytes);
    take_from(arena, at, *start, *size);
    return true;
}

bool mem_arena_take(mem_arena *arena, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    uint64_t start = 0, size;
    if (!take(arena, bytes, alignment, false, &start, &size)) return false;
    *offset = start;
    return true;
}

bool mem_arena_take_whole(mem_arena *arena, uint64_t least, uint64_t alignment, uint64_t *offset, uint64_t *bytes)
{
    uint64_t start = 0, size;
    if (!take(arena, least, alignment, true, &start, &size)) return false;
    *offset = start;
    *bytes = size;
    return true;
}

/* Returns the first block that starts at offset or after it. */
static size_t find_from(const mem_arena *arena, uint64_t offset)
{
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (arena->blocks[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool mem_arena_next_hole(const mem_arena *arena, uint64_t from, uint64_t *offset, uint64_t *bytes)
{
    size_t at = find_from(arena, from);
    while (at < arena->count && arena->blocks[at].used)
        at++;
    if (at == arena->count) return false;
    *offset = arena->blocks[at].offset;
    *bytes = arena->blocks[at].bytes;
    return true;
}

bool mem_arena_take_at(mem_arena *arena, uint64_t offset, uint64_t bytes)
{
    size_t at = find_from(arena, offset + 1);
    const uint64_t size = size_of(bytes);
    if (offset % GRAIN_BYTES != 0 || at == 0 || !arena_make_space(arena)) return false;
    const block *hole = &arena->blocks[--at];
    uint64_t lead = offset - hole->offset;
    if (hole->used || lead > hole->bytes || hole->bytes - lead < size) return false;
    take_from(arena, at, offset, size);
    return true;
}

/* Returns the used block that starts at offset; count if there is none. */
static size_t find_used(const mem_arena *arena, uint64_t offset)
{
    size_t low = find_from(arena, offset);
    bool found = low < arena->count && arena->blocks[low].offset == offset && arena->blocks[low].used;
    return found ? low : arena->count;
}

bool mem_arena_block_bytes(const mem_arena *arena, uint64_t offset, uint64_t *bytes)
{
    size_t at = find_used(arena, offset);
    if (at == arena->count) return false;
    *bytes = arena->blocks[at].bytes;
    return true;
}

/* Joins the block after `at` to it if both are free. */
static void coalesce(mem_arena *arena, size_t at)
{
    if (at + 1 >= arena->count || arena->blocks[at].used || arena->blocks[at + 1].used) return;
    arena->blocks[at].bytes += arena->blocks[at + 1].bytes;
    memmove(&arena->blocks[at + 1], &arena->blocks[at + 2], (arena->count - at - 2) * sizeof(block));
    arena->count--;
}

bool mem_arena_give(mem_arena *arena, uint64_t offset, uint64_t *bytes)
{
    size_t at = find_used(arena, offset);
    if (at == arena->count) return false;
    if (bytes) *bytes = arena->blocks[at].bytes;
    arena->blocks[at].used = false;
    arena->used_bytes -= arena->blocks[at].bytes;
    arena->used_blocks--;
    coalesce(arena, at);
    if (at > 0) coalesce(arena, at - 1);
    return true;
}

bool mem_arena_trim(mem_arena *arena, uint64_t offset, uint64_t bytes)
{
    size_t at = find_used(arena, offset);
    if (at == arena->count || size_of(bytes) > arena->blocks[at].bytes || !arena_make_space(arena)) return false;
    uint64_t rest = arena->blocks[at].bytes - size_of(bytes);
    arena->blocks[at].bytes -= rest;
    arena->used_bytes -= rest;
    insert_free(arena, at + 1, offset + size_of(bytes), rest);
    coalesce(arena, at + 1);
    return true;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void mem_arena_get_stats(const mem_arena *arena, mem_arena_stats *out)
{
    mem_arena_stats stats = {
        .total_bytes = arena->total_bytes,
        .used_bytes = arena->used_bytes,
        .high_water_bytes = arena->high_water_bytes,
        .blocks = arena->used_blocks,
    };
    for (size_t i = 0; i < arena->count; i++) {
        const block *b = &arena->blocks[i];
        if (b->used) continue;
        stats.largest_free_bytes = larger(b->bytes, stats.largest_free_bytes);
        if (i + 1 == arena->count) continue;
        stats.holes++;
        stats.hole_bytes += b->bytes;
        stats.largest_hole_bytes = larger(b->bytes, stats.largest_hole_bytes);
    }
    *out = stats;
}
