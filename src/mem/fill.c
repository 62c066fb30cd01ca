/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a store: which addresses have any.
 *
 * Freed memory stays, so that the next output is written to warm pages. But with outputs of other sizes it would pile
 * up in pieces that fit no block. Addresses are plenty, so an unused piece needs no memory. The memory of a store is
 * therefore bounded by what was ever in use at a time:
 *
 *     1.25 · the most that blocks held + 48 MiB, or the start sizes of the pools
 *
 * If a new block would exceed that, idle memory is freed, the highest addresses first. Memory in use counts in whole
 * granules (`unit_bytes`). */
#include "mem/store.h"

#include <stdlib.h>

#define WORD_BITS   64
#define SPARE_BYTES ((uint64_t)48 << 20)

uint64_t store_unit_bytes(const mem_store *store)
{
    return store->source.unit_bytes ? store->source.unit_bytes : STORE_UNIT_BYTES;
}

static uint64_t fewer(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Pages of the table exist once they are written. */
expar_status store_table_make(mem_store *store)
{
    store->units = (store->end - store->origin + store_unit_bytes(store) - 1) / store_unit_bytes(store);
    store->filled = calloc((size_t)(store->units / WORD_BITS + 1), sizeof *store->filled);
    return store->filled ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for a pool's table");
}

static bool is_filled(const mem_store *store, uint64_t unit)
{
    return store->filled[unit / WORD_BITS] >> unit % WORD_BITS & 1;
}

/* Returns the bits in a word for its granules in [first, last). */
static uint64_t mask_of(uint64_t word, uint64_t first, uint64_t last)
{
    uint64_t low = first > word * WORD_BITS ? first - word * WORD_BITS : 0;
    uint64_t high = fewer(last - word * WORD_BITS, WORD_BITS);
    return UINT64_MAX << low & UINT64_MAX >> (WORD_BITS - high);
}

static uint64_t count_filled(const mem_store *store, uint64_t first, uint64_t last)
{
    uint64_t count = 0;
    for (uint64_t word = first / WORD_BITS; first < last && word * WORD_BITS < last; word++)
        count += (uint64_t)__builtin_popcountll(store->filled[word] & mask_of(word, first, last));
    return count;
}

/* Returns the first granule in [first, last) without memory; last: there is none. A range may have many thousands of
   granules, so words are looked at, not bits. */
static uint64_t first_empty(const mem_store *store, uint64_t first, uint64_t last)
{
    for (uint64_t word = first / WORD_BITS; first < last && word * WORD_BITS < last; word++) {
        const uint64_t empty = ~store->filled[word] & mask_of(word, first, last);
        if (empty) return word * WORD_BITS + (uint64_t)__builtin_ctzll(empty);
    }
    return last;
}

static void units_mark(mem_store *store, uint64_t first, uint64_t last, bool filled)
{
    for (uint64_t word = first / WORD_BITS; first < last && word * WORD_BITS < last; word++) {
        uint64_t mask = mask_of(word, first, last), before = store->filled[word];
        store->filled[word] = filled ? before | mask : before & ~mask;
        store->filled_units += (uint64_t)__builtin_popcountll(store->filled[word]);
        store->filled_units -= (uint64_t)__builtin_popcountll(before);
    }
    if (store->filled_units > store->filled_high_units) store->filled_high_units = store->filled_units;
}

/* Returns the first whole granule that begins there, or after it. */
static uint64_t units_from(const mem_store *store, uint64_t offset)
{
    return (offset + store_unit_bytes(store) - 1) / store_unit_bytes(store);
}

uint64_t store_lacking(const mem_store *store, uint64_t offset, uint64_t bytes)
{
    uint64_t first = offset / store_unit_bytes(store), last = units_from(store, offset + bytes);
    return last - first - count_filled(store, first, last);
}

/* Returns how many bytes of the range have memory, counted from its start. */
uint64_t store_filled_from(const mem_store *store, uint64_t offset, uint64_t bytes)
{
    uint64_t unit = offset / store_unit_bytes(store), end = units_from(store, offset + bytes);
    if (!store->filled) return bytes;
    uint64_t filled_end = first_empty(store, unit, end) * store_unit_bytes(store);
    if (filled_end <= offset) return 0;
    return fewer(filled_end - offset, bytes);
}

/* ---- memory comes ------------------------------------------------------------------------------------------------ */

/* Gives the part of the store's range that lies in the granules. */
static void units_range(const mem_store *store, uint64_t first, uint64_t last, uint64_t *offset, uint64_t *bytes)
{
    uint64_t start = store->origin + first * store_unit_bytes(store),
             end = store->origin + last * store_unit_bytes(store);
    *offset = start < store->begin ? store->begin : start;
    *bytes = fewer(end, store->end) - *offset;
}

/* Fills granules [first, last), none of which has memory. */
static expar_status fill_units(mem_store *store, uint64_t first, uint64_t last)
{
    uint64_t offset, bytes;
    units_range(store, first, last, &offset, &bytes);
    expar_status status = store->source.fill(store->source.context, offset, bytes);
    if (status != EXPAR_OK) return status;
    store->fills += last - first;
    units_mark(store, first, last, true);
    return EXPAR_OK;
}

static expar_status fill_lacking(mem_store *store, uint64_t unit, uint64_t end)
{
    expar_status status = EXPAR_OK;
    while (unit < end && status == EXPAR_OK) {
        uint64_t first = unit;
        while (unit < end && !is_filled(store, unit))
            unit++;
        if (unit > first) status = fill_units(store, first, unit);
        while (unit < end && is_filled(store, unit))
            unit++;
    }
    return status;
}

/* ---- memory goes ------------------------------------------------------------------------------------------------- */

/* Drains the filled ones of granules [first, last), except the first *spared of them. Returns how many it has
   drained. */
static uint64_t drain_units(mem_store *store, uint64_t unit, uint64_t last, uint64_t *spared)
{
    uint64_t drained = 0;
    for (; unit < last; unit++) {
        uint64_t first = unit, offset, bytes;
        if (!is_filled(store, unit)) continue;
        if (*spared > 0) {
            --*spared;
            continue;
        }
        while (unit < last && is_filled(store, unit))
            unit++;
        units_range(store, first, unit, &offset, &bytes);
        store->source.drain(store->source.context, offset, bytes);
        units_mark(store, first, unit, false);
        drained += unit - first;
    }
    return drained;
}

/* Counts idle granules with memory outside [first, last), and drains those after the first *spared. */
static uint64_t look_at_idle(mem_store *store, uint64_t first, uint64_t last, uint64_t *spared)
{
    uint64_t offset = 0, bytes = 0, idle = 0;
    while (mem_arena_next_hole(store->arena, offset + bytes, &offset, &bytes)) {
        uint64_t begin = units_from(store, offset), end = (offset + bytes) / store_unit_bytes(store);
        uint64_t before = fewer(end, first), following = begin > last ? begin : last;
        if (spared) {
            idle += drain_units(store, begin, before, spared) + drain_units(store, following, end, spared);
            continue;
        }
        if (begin < before) idle += count_filled(store, begin, before);
        if (following < end) idle += count_filled(store, following, end);
    }
    return idle;
}

/* Drains at least `wanted` idle granules, if there are as many, but none of [first, last). Returns how many. */
static uint64_t drain_idle(mem_store *store, uint64_t wanted, uint64_t first, uint64_t last)
{
    if (!store->source.drain || wanted == 0) return 0;
    uint64_t idle = look_at_idle(store, first, last, NULL), spared = idle > wanted ? idle - wanted : 0;
    return look_at_idle(store, first, last, &spared);
}

/* Returns how many granules the store may hold, with another block of that size. */
static uint64_t most_units(const mem_store *store, uint64_t bytes)
{
    uint64_t used = store->used_bytes + store_charge(bytes);
    if (used < store->used_high_bytes) used = store->used_high_bytes;
    uint64_t most = used + used / 4 + SPARE_BYTES;
    return units_from(store, most > store->floor_bytes ? most : store->floor_bytes);
}

expar_status store_fill(mem_store *store, uint64_t offset, uint64_t bytes)
{
    if (!store->source.fill) return EXPAR_OK;
    uint64_t first = offset / store_unit_bytes(store), last = units_from(store, offset + bytes);
    uint64_t then = store->filled_units + store_lacking(store, offset, bytes), most = most_units(store, bytes);
    if (then > most) drain_idle(store, then - most, first, last);
    expar_status status = fill_lacking(store, first, last);
    if (status == EXPAR_ERR_MEMORY && drain_idle(store, UINT64_MAX, first, last) > 0)
        status = fill_lacking(store, first, last);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "the output pool");
}

void mem_store_filled(mem_store *store, uint64_t offset, uint64_t bytes)
{
    pthread_mutex_lock(&store->lock);
    uint64_t at = offset - store->origin;
    if (store->filled) units_mark(store, units_from(store, at), (at + bytes) / store_unit_bytes(store), true);
    pthread_mutex_unlock(&store->lock);
}

/* With the lock held. */
static uint64_t used_end(const mem_store *store)
{
    mem_arena_stats stats;
    mem_arena_get_stats(store->arena, &stats);
    return store->origin + stats.used_bytes + stats.hole_bytes;
}

uint64_t mem_store_used_end(mem_store *store)
{
    store_settle(store, true);
    pthread_mutex_lock(&store->lock);
    const uint64_t end = used_end(store);
    pthread_mutex_unlock(&store->lock);
    return end;
}

bool mem_store_emptied(mem_store *store, uint64_t offset, uint64_t bytes)
{
    pthread_mutex_lock(&store->lock);
    const uint64_t at = offset - store->origin;
    const bool idle = store->filled && offset >= used_end(store);
    if (idle) units_mark(store, units_from(store, at), (at + bytes) / store_unit_bytes(store), false);
    pthread_mutex_unlock(&store->lock);
    return idle;
}

void mem_store_trim(mem_store *store)
{
    pthread_mutex_lock(&store->lock);
    uint64_t floor = units_from(store, store->floor_bytes);
    if (store->filled_units > floor) drain_idle(store, store->filled_units - floor, 0, 0);
    pthread_mutex_unlock(&store->lock);
}
