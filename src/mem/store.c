/* SPDX-License-Identifier: Apache-2.0 */
/* Stores: a range of addresses; those that are, or were, in use have memory (fill.c).
 *
 * A store with a source has addresses enough. So large blocks are given up to an eighth more of them than they need.
 * The place of a freed block then fits the next one of about its size. Among the free pieces that fit, a block takes
 * the one that already has most memory. Records of blocks are reused: in the steady state nothing is allocated. */
#include "mem/store.h"

#include <stdlib.h>

/* ---- making and end ---------------------------------------------------------------------------------------------- */

/* The range may start anywhere. The arena starts at the large alignment below it, and the bytes before the range are
   taken. */
static expar_status arena_from(uint64_t offset, uint64_t bytes, uint64_t *origin, mem_arena **out)
{
    uint64_t lead = offset & (LARGE_ALIGNMENT - 1);
    uint64_t total, taken;
    if (size_add_overflows(bytes, lead, &total))
        return error_set(EXPAR_ERR_ARGUMENT, "a pool of %llu bytes is too large", (unsigned long long)bytes);
    expar_status status = mem_arena_create(total, out);
    if (status != EXPAR_OK) return status;
    if (lead > 0 && !mem_arena_take(*out, lead, 1, &taken)) {
        mem_arena_destroy(*out);
        *out = NULL;
        return error_set(EXPAR_ERR_ARGUMENT, "a pool of %llu bytes has no space for a block",
                         (unsigned long long)bytes);
    }
    *origin = offset - lead;
    return EXPAR_OK;
}

/* Frees the store but does not end its source. */
static void store_free(mem_store *store)
{
    while (store->spare) {
        store_record *next = store->spare->next;
        free(store->spare);
        store->spare = next;
    }
    mem_arena_destroy(store->arena);
    free(store->filled);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

expar_status mem_store_create(void *base, uint64_t offset, uint64_t bytes, const mem_source *source, mem_store **out)
{
    mem_store *store = calloc(1, sizeof *store);
    if (!store) return error_set(EXPAR_ERR_MEMORY, "no memory for a pool's record");
    pthread_mutex_init(&store->lock, NULL);
    store->base = base;
    store->begin = offset;
    store->end = offset + bytes;
    store->holders = 1;
    store->waiting_end = &store->waiting;
    if (source) store->source = *source;
    expar_status status = arena_from(offset, bytes, &store->origin, &store->arena);
    if (status == EXPAR_OK && store->source.fill) status = store_table_make(store);
    if (status == EXPAR_OK)
        *out = store;
    else
        store_free(store);
    return status;
}

void store_drop(mem_store *store)
{
    if (!store) return;
    pthread_mutex_lock(&store->lock);
    bool last = --store->holders == 0;
    pthread_mutex_unlock(&store->lock);
    if (!last) return;
    const mem_source source = store->source;
    store_free(store);
    if (source.end) source.end(source.context);
}

void mem_store_set_cover(mem_store *store, mem_covers_fn covers, void *context)
{
    pthread_mutex_lock(&store->lock);
    store->covers = covers;
    store->covers_context = context;
    pthread_mutex_unlock(&store->lock);
}

void mem_store_close(mem_store *store)
{
    store_drop(store);
}

bool mem_store_offset(const mem_store *store, const void *data, uint64_t bytes, uint64_t *offset)
{
    const uint64_t at = (uintptr_t)data - (uintptr_t)store->base;
    *offset = at;
    return at >= store->begin && at < store->end && bytes <= store->end - at;
}

expar_status store_keep_floor(mem_store *store)
{
    uint64_t offset;
    if (store->floor_bytes == 0) return EXPAR_OK;
    if (!mem_arena_take(store->arena, store->floor_bytes, LARGE_ALIGNMENT, &offset))
        return error_set(EXPAR_ERR_MEMORY, "a pool of %llu bytes is larger than the memory of this machine",
                         (unsigned long long)store->floor_bytes);
    expar_status status = store_fill(store, offset, store->floor_bytes);
    mem_arena_give(store->arena, offset, NULL);
    return status;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static uint64_t alignment_of(uint64_t bytes)
{
    return bytes >= LARGE_ALIGNMENT ? LARGE_ALIGNMENT : SMALL_ALIGNMENT;
}

static store_record *record_get(mem_store *store)
{
    store_record *record = store->spare;
    if (!record) return calloc(1, sizeof *record);
    store->spare = record->next;
    return record;
}

static void record_put(mem_store *store, store_record *record)
{
    record->next = store->spare;
    store->spare = record;
}

/* Makes the block at an offset of the arena; NULL: no memory for its record. */
static mem_block *block_at(mem_store *store, mem_pool *pool, uint64_t offset, uint64_t bytes)
{
    store_record *record = record_get(store);
    if (!record) return NULL;
    mem_block *block = &record->block;
    block->offset = store->origin + offset;
    block->data = store->base + block->offset;
    block->bytes = bytes;
    block->pool = pool;
    block->give = NULL;
    atomic_init(&block->marks, NULL);
    atomic_init(&block->references, 1);
    return block;
}

uint64_t store_charge(uint64_t bytes)
{
    uint64_t padded;
    if (size_add_overflows(bytes ? bytes : 1, SMALL_ALIGNMENT - 1, &padded)) return UINT64_MAX;
    return padded / SMALL_ALIGNMENT * SMALL_ALIGNMENT;
}

/* Returns the addresses for a block: sizes come in steps of an eighth of the power of two below. */
static uint64_t span_of(uint64_t bytes)
{
    uint64_t step = LARGE_ALIGNMENT, padded;
    while (step <= bytes / 16)
        step *= 2;
    if (bytes < LARGE_ALIGNMENT || size_add_overflows(bytes, step - 1, &padded)) return bytes;
    return padded / step * step;
}

/* Finds the free piece of `span` bytes whose first `bytes` lack the least memory; the smallest of equals. */
static bool store_find_place(const mem_store *store, uint64_t span, uint64_t bytes, uint64_t *place)
{
    uint64_t offset = 0, size = 0, least = UINT64_MAX, smallest = 0;
    while (mem_arena_next_hole(store->arena, offset + size, &offset, &size)) {
        uint64_t start = align_up(offset, alignment_of(bytes));
        if (start - offset > size || size - (start - offset) < span) continue;
        uint64_t lacking = store_lacking(store, start, bytes);
        if (lacking > least || (lacking == least && size >= smallest)) continue;
        least = lacking;
        smallest = size;
        *place = start;
    }
    return least != UINT64_MAX;
}

/* If memory only comes, and only together with other ranks, there is no choice of places. */
static bool take_addresses(mem_store *store, uint64_t bytes, uint64_t *offset)
{
    if (!store->source.drain) return mem_arena_take(store->arena, bytes, alignment_of(bytes), offset);
    if (store_find_place(store, span_of(bytes), bytes, offset))
        return mem_arena_take_at(store->arena, *offset, span_of(bytes));
    return store_find_place(store, bytes, bytes, offset) && mem_arena_take_at(store->arena, *offset, bytes);
}

expar_status store_take(mem_store *store, mem_pool *pool, uint64_t bytes, mem_block **out)
{
    uint64_t offset;
    if (bytes > store->end - store->origin || !take_addresses(store, bytes, &offset)) return EXPAR_ERR_BUFFER_SIZE;
    mem_block *block = block_at(store, pool, offset, bytes);
    expar_status status = block ? store_fill(store, offset, bytes)
                                : error_set(EXPAR_ERR_MEMORY, "no memory for the record of a pool's block");
    if (status == EXPAR_OK) {
        *out = block;
        return EXPAR_OK;
    }
    if (block) record_put(store, (store_record *)block);
    mem_arena_give(store->arena, offset, NULL);
    return status;
}

bool store_take_whole(mem_store *store, mem_pool *pool, uint64_t least, uint64_t most, mem_block **out)
{
    uint64_t offset, bytes;
    if (!mem_arena_take_whole(store->arena, least, alignment_of(least), &offset, &bytes)) return false;
    uint64_t filled = store_filled_from(store, offset, bytes);
    if (filled > most) filled = most - most % SMALL_ALIGNMENT;
    bool fits = filled >= least && (filled == bytes || mem_arena_trim(store->arena, offset, filled));
    *out = fits ? block_at(store, pool, offset, filled) : NULL;
    if (!*out) mem_arena_give(store->arena, offset, NULL);
    return *out != NULL;
}

uint64_t store_reach(mem_store *store, const uint64_t *bytes, size_t count)
{
    uint64_t offsets[MEM_POOL_MOST_REACHED], end = 0;
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        if (!mem_arena_take(store->arena, bytes[i], alignment_of(bytes[i]), &offsets[taken])) continue;
        const uint64_t following = store->origin + offsets[taken++] + bytes[i];
        if (following > end) end = following;
    }
    while (taken > 0)
        mem_arena_give(store->arena, offsets[--taken], NULL);
    return end;
}

void store_give(mem_store *store, mem_block *block)
{
    mem_arena_give(store->arena, block->offset - store->origin, NULL);
    record_put(store, (store_record *)block);
}

void mem_store_get_stats(mem_store *store, mem_store_stats *out)
{
    mem_arena_stats arena;
    pthread_mutex_lock(&store->lock);
    mem_arena_get_stats(store->arena, &arena);
    const uint64_t unit = store_unit_bytes(store), all = store->end - store->begin;
    *out = (mem_store_stats){.reserved_bytes = all,
                             .filled_bytes = store->filled ? store->filled_units * unit : all,
                             .filled_high_bytes = store->filled ? store->filled_high_units * unit : all,
                             .taken_bytes = store->fills * unit,
                             .used_bytes = store->used_bytes,
                             .used_high_bytes = store->used_high_bytes,
                             .blocks = arena.blocks};
    pthread_mutex_unlock(&store->lock);
}
