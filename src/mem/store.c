/* SPDX-License-Identifier: Apache-2.0 */
/* Stores: a range of addresses with memory behind those that are, or were, in use.
 *
 * Memory that comes back stays, so that the next output is written to warm pages. Records of blocks are kept for reuse:
 * in the steady state nothing is allocated. */
#include "mem/store.h"

#include <stdlib.h>

#define UNIT_BYTES MEM_POOL_LARGE_BYTES
#define WORD_BITS  64

/* ---- making and end ---------------------------------------------------------------------------------------------- */

/* The range may start anywhere; the arena starts at the large alignment below it and has the bytes before it taken. */
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
        return error_set(EXPAR_ERR_ARGUMENT, "a pool of %llu bytes has no room for a block", (unsigned long long)bytes);
    }
    *origin = offset - lead;
    return EXPAR_OK;
}

/* Without its source's end. */
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

/* The table of what is filled has a bit for 2 MiB: pages of it exist as they are written to. */
static expar_status make_table(mem_store *store)
{
    store->units = (store->end - store->origin + UNIT_BYTES - 1) / UNIT_BYTES;
    store->filled = calloc((size_t)(store->units / WORD_BITS + 1), sizeof *store->filled);
    return store->filled ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for a pool's table");
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
    if (source) store->source = *source;
    expar_status status = arena_from(offset, bytes, &store->origin, &store->arena);
    if (status == EXPAR_OK && store->source.fill) status = make_table(store);
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

/* ---- memory behind it -------------------------------------------------------------------------------------------- */

static bool is_filled(const mem_store *store, uint64_t unit)
{
    return store->filled[unit / WORD_BITS] >> unit % WORD_BITS & 1;
}

static void mark_filled(mem_store *store, uint64_t first, uint64_t last)
{
    for (uint64_t unit = first; unit < last; unit++) {
        store->filled_units += !is_filled(store, unit);
        store->filled[unit / WORD_BITS] |= (uint64_t)1 << unit % WORD_BITS;
    }
    if (store->filled_units > store->filled_high_units) store->filled_high_units = store->filled_units;
}

/* Units [first, last), none of which has memory. */
static expar_status fill_units(mem_store *store, uint64_t first, uint64_t last)
{
    uint64_t start = store->origin + first * UNIT_BYTES, end = store->origin + last * UNIT_BYTES;
    if (start < store->begin) start = store->begin;
    if (end > store->end) end = store->end;
    expar_status status = store->source.fill(store->source.context, start, end - start);
    if (status == EXPAR_OK) mark_filled(store, first, last);
    return status;
}

/* Memory for [offset, offset + bytes) of the arena, as far as there is none: once it is there it stays, so that a block
   taken again costs nothing. */
static expar_status fill(mem_store *store, uint64_t offset, uint64_t bytes)
{
    uint64_t unit = offset / UNIT_BYTES, end = (offset + bytes + UNIT_BYTES - 1) / UNIT_BYTES;
    expar_status status = EXPAR_OK;
    while (store->source.fill && unit < end && status == EXPAR_OK) {
        uint64_t first = unit;
        while (unit < end && !is_filled(store, unit))
            unit++;
        if (unit > first) status = fill_units(store, first, unit);
        while (unit < end && is_filled(store, unit))
            unit++;
    }
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "the output pool");
}

void mem_store_filled(mem_store *store, uint64_t offset, uint64_t bytes)
{
    pthread_mutex_lock(&store->lock);
    uint64_t at = offset - store->origin;
    if (store->filled) mark_filled(store, (at + UNIT_BYTES - 1) / UNIT_BYTES, (at + bytes) / UNIT_BYTES);
    pthread_mutex_unlock(&store->lock);
}

expar_status store_keep_floor(mem_store *store)
{
    uint64_t offset;
    if (store->floor_bytes == 0) return EXPAR_OK;
    if (!mem_arena_take(store->arena, store->floor_bytes, LARGE_ALIGNMENT, &offset))
        return error_set(EXPAR_ERR_MEMORY, "a pool of %llu bytes is larger than the memory of this machine",
                         (unsigned long long)store->floor_bytes);
    expar_status status = fill(store, offset, store->floor_bytes);
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

/* The block at an offset of the arena; NULL: no memory for its record. */
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
    atomic_init(&block->references, 1);
    return block;
}

expar_status store_take(mem_store *store, mem_pool *pool, uint64_t bytes, mem_block **out)
{
    uint64_t offset;
    if (!mem_arena_take(store->arena, bytes, alignment_of(bytes), &offset)) return EXPAR_ERR_BUFFER_SIZE;
    expar_status status = fill(store, offset, bytes);
    mem_block *block = status == EXPAR_OK ? block_at(store, pool, offset, bytes) : NULL;
    if (!block) {
        mem_arena_give(store->arena, offset, NULL);
        return status != EXPAR_OK ? status : error_set(EXPAR_ERR_MEMORY, "no memory for the record of a pool's block");
    }
    *out = block;
    return EXPAR_OK;
}

/* Of [offset, offset + bytes) of the arena, what has memory from its start on. */
static uint64_t filled_from(const mem_store *store, uint64_t offset, uint64_t bytes)
{
    uint64_t unit = offset / UNIT_BYTES, end = (offset + bytes + UNIT_BYTES - 1) / UNIT_BYTES;
    if (!store->filled) return bytes;
    while (unit < end && is_filled(store, unit))
        unit++;
    uint64_t filled_end = unit * UNIT_BYTES;
    if (filled_end <= offset) return 0;
    return filled_end - offset < bytes ? filled_end - offset : bytes;
}

bool store_take_whole(mem_store *store, mem_pool *pool, uint64_t least, uint64_t most, mem_block **out)
{
    uint64_t offset, bytes;
    if (!mem_arena_take_whole(store->arena, least, alignment_of(least), &offset, &bytes)) return false;
    uint64_t filled = filled_from(store, offset, bytes);
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
        const uint64_t behind = store->origin + offsets[taken++] + bytes[i];
        if (behind > end) end = behind;
    }
    while (taken > 0)
        mem_arena_give(store->arena, offsets[--taken], NULL);
    return end;
}

void store_give(mem_store *store, mem_block *block)
{
    store_record *record = (store_record *)block;
    mem_arena_give(store->arena, block->offset - store->origin, NULL);
    record->next = store->spare;
    store->spare = record;
}

void mem_store_get_stats(mem_store *store, mem_store_stats *out)
{
    mem_arena_stats arena;
    pthread_mutex_lock(&store->lock);
    mem_arena_get_stats(store->arena, &arena);
    *out = (mem_store_stats){.reserved_bytes = store->end - store->begin,
                             .filled_bytes = store->filled_units * UNIT_BYTES,
                             .filled_high_bytes = store->filled_high_units * UNIT_BYTES,
                             .used_bytes = arena.used_bytes,
                             .used_high_bytes = store->used_high_bytes,
                             .blocks = arena.blocks};
    pthread_mutex_unlock(&store->lock);
}
