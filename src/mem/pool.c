/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: the part of a store that a buffer uses, and its blocks. */
#include "mem/store.h"

#include <stdlib.h>

struct mem_pool {
    mem_store *store;     /* its lock guards the members below */
    uint64_t limit_bytes; /* 0: none */
    uint64_t start_bytes;
    uint64_t used_bytes, used_high_bytes; /* in blocks */
    uint64_t alive;                       /* blocks in use */
    bool closed;
};

/* ---- making and end ---------------------------------------------------------------------------------------------- */

expar_status mem_pool_create_in(mem_store *store, uint64_t limit_bytes, uint64_t start_bytes, mem_pool **out)
{
    mem_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return error_set(EXPAR_ERR_MEMORY, "no memory for a pool's record");
    *pool = (mem_pool){.store = store, .limit_bytes = limit_bytes, .start_bytes = start_bytes};
    pthread_mutex_lock(&store->lock);
    store->floor_bytes += start_bytes;
    expar_status status = store_keep_floor(store);
    if (status == EXPAR_OK)
        store->holders++;
    else
        store->floor_bytes -= start_bytes;
    pthread_mutex_unlock(&store->lock);
    if (status == EXPAR_OK)
        *out = pool;
    else
        free(pool);
    return status;
}

expar_status mem_pool_create(void *base, uint64_t offset, uint64_t bytes, mem_pool **out)
{
    mem_store *store;
    expar_status status = mem_store_create(base, offset, bytes, NULL, &store);
    if (status != EXPAR_OK) return status;
    status = mem_pool_create_in(store, 0, 0, out);
    mem_store_close(store);
    return status;
}

/* Frees a pool without blocks. */
static void pool_free(mem_pool *pool)
{
    mem_store *store = pool->store;
    free(pool);
    store_drop(store);
}

void mem_pool_close(mem_pool *pool)
{
    if (!pool) return;
    mem_store *store = pool->store;
    pthread_mutex_lock(&store->lock);
    pool->closed = true;
    store->floor_bytes -= pool->start_bytes;
    bool last = pool->alive == 0;
    if (!last && store->waiting) store_drain(store);
    pthread_mutex_unlock(&store->lock);
    if (last) pool_free(pool);
}

bool pool_is_closed(const mem_pool *pool)
{
    return pool->closed;
}

/* ---- limits and statistics --------------------------------------------------------------------------------------- */

uint64_t mem_pool_limit(const mem_pool *pool)
{
    return pool->limit_bytes ? pool->limit_bytes : pool->store->end - pool->store->begin;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    uint64_t padded;
    return size_add_overflows(bytes, unit - 1, &padded) ? UINT64_MAX : padded / unit * unit;
}

/* Counts from the end of the last block in use; for a pool with a limit, from the bytes in use. */
static uint64_t enough_for(const mem_pool *pool, uint64_t bytes)
{
    mem_arena_stats stats;
    uint64_t total;
    mem_arena_get_stats(pool->store->arena, &stats);
    uint64_t unit = bytes >= LARGE_ALIGNMENT ? LARGE_ALIGNMENT : SMALL_ALIGNMENT;
    uint64_t end = pool->limit_bytes ? pool->used_bytes : round_up(stats.used_bytes + stats.hole_bytes, unit);
    return size_add_overflows(end, bytes, &total) ? UINT64_MAX : round_up(total, SMALL_ALIGNMENT);
}

uint64_t mem_pool_enough(mem_pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&pool->store->lock);
    uint64_t enough = enough_for(pool, bytes);
    pthread_mutex_unlock(&pool->store->lock);
    return enough;
}

static bool within_limit(const mem_pool *pool, uint64_t bytes)
{
    uint64_t total;
    if (pool->limit_bytes == 0) return true;
    return !size_add_overflows(pool->used_bytes, store_charge(bytes), &total) && total <= pool->limit_bytes;
}

static expar_status pool_exhausted(const mem_pool *pool, uint64_t bytes)
{
    mem_arena_stats stats;
    mem_arena_get_stats(pool->store->arena, &stats);
    uint64_t most = pool->limit_bytes ? pool->limit_bytes : stats.total_bytes;
    uint64_t used = pool->limit_bytes ? pool->used_bytes : stats.used_bytes;
    uint64_t largest = pool->limit_bytes ? most - used : stats.largest_free_bytes;
    return error_set(EXPAR_ERR_MEMORY,
                     "the output pool has no space for %llu bytes: %llu of %llu are free, the largest free block has "
                     "%llu; %llu in all would do",
                     (unsigned long long)bytes, (unsigned long long)(most - used), (unsigned long long)most,
                     (unsigned long long)largest, (unsigned long long)enough_for(pool, bytes));
}

void mem_pool_get_stats(mem_pool *pool, mem_pool_stats *out)
{
    store_settle(pool->store, true);
    pthread_mutex_lock(&pool->store->lock);
    *out = (mem_pool_stats){
        .used_bytes = pool->used_bytes, .used_high_bytes = pool->used_high_bytes, .blocks = pool->alive};
    pthread_mutex_unlock(&pool->store->lock);
    mem_store_get_stats(pool->store, &out->store);
}

void mem_pool_trim(mem_pool *pool)
{
    mem_store_trim(pool->store);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void charge(mem_pool *pool, const mem_block *block)
{
    pool->alive++;
    pool->used_bytes += store_charge(block->bytes);
    pool->store->used_bytes += store_charge(block->bytes);
}

/* Does not count while a holder has all the free space, because it does not know yet how much it needs. */
static void note_high(mem_pool *pool)
{
    mem_store *store = pool->store;
    if (pool->used_bytes > pool->used_high_bytes) pool->used_high_bytes = pool->used_bytes;
    if (store->used_bytes > store->used_high_bytes) store->used_high_bytes = store->used_bytes;
}

/* With the lock held. */
static expar_status take_locked(mem_pool *pool, uint64_t bytes, mem_block **out)
{
    if (pool->closed) return error_set(EXPAR_ERR_STATE, "the output pool is closed");
    if (!within_limit(pool, bytes)) return pool_exhausted(pool, bytes);
    expar_status status = store_take(pool->store, pool, bytes, out);
    if (status == EXPAR_OK) {
        charge(pool, *out);
        note_high(pool);
    }
    return status == EXPAR_ERR_BUFFER_SIZE ? pool_exhausted(pool, bytes) : status;
}

static expar_status take_settled(mem_pool *pool, uint64_t bytes, bool all, mem_block **out)
{
    mem_block *block;
    store_settle(pool->store, all);
    pthread_mutex_lock(&pool->store->lock);
    expar_status status = take_locked(pool, bytes, &block);
    pthread_mutex_unlock(&pool->store->lock);
    if (status == EXPAR_OK) *out = block;
    return status;
}

expar_status mem_pool_take(mem_pool *pool, uint64_t bytes, mem_block **out)
{
    expar_status status = take_settled(pool, bytes, false, out);
    if (status == EXPAR_OK || !store_has_waiting(pool->store)) return status;
    return take_settled(pool, bytes, true, out);
}

bool mem_pool_take_whole(mem_pool *pool, uint64_t least, mem_block **out)
{
    mem_block *block = NULL;
    store_settle(pool->store, false);
    pthread_mutex_lock(&pool->store->lock);
    uint64_t most = pool->limit_bytes ? pool->limit_bytes - pool->used_bytes : UINT64_MAX;
    bool taken = !pool->closed && within_limit(pool, least) && store_take_whole(pool->store, pool, least, most, &block);
    if (taken) charge(pool, block);
    pthread_mutex_unlock(&pool->store->lock);
    if (taken) *out = block;
    return taken;
}

uint64_t mem_pool_reach(mem_pool *pool, const uint64_t *bytes, size_t count)
{
    uint64_t sizes[MEM_POOL_MOST_REACHED], total = 0;
    size_t allowed = 0;
    store_settle(pool->store, true);
    pthread_mutex_lock(&pool->store->lock);
    for (size_t i = 0; i < count && allowed < MEM_POOL_MOST_REACHED; i++) {
        uint64_t more;
        if (size_add_overflows(total, store_charge(bytes[i]), &more) || !within_limit(pool, more)) continue;
        sizes[allowed++] = bytes[i];
        total = more;
    }
    uint64_t end = store_reach(pool->store, sizes, allowed);
    pthread_mutex_unlock(&pool->store->lock);
    return end;
}

void mem_block_trim(mem_block *block, uint64_t bytes)
{
    mem_pool *pool = block->pool;
    mem_store *store = pool->store;
    pthread_mutex_lock(&store->lock);
    if (mem_arena_trim(store->arena, block->offset - store->origin, bytes)) {
        const uint64_t less = store_charge(block->bytes) - store_charge(bytes);
        pool->used_bytes -= less;
        store->used_bytes -= less;
        block->bytes = bytes;
        note_high(pool);
    }
    pthread_mutex_unlock(&store->lock);
}

expar_status mem_block_private(uint64_t bytes, mem_block **out)
{
    const uint64_t alignment = bytes >= LARGE_ALIGNMENT ? LARGE_ALIGNMENT : SMALL_ALIGNMENT;
    mem_block *block = calloc(1, sizeof *block);
    void *data = NULL;
    if (!block || bytes > PTRDIFF_MAX || posix_memalign(&data, alignment, bytes == 0 ? 1 : bytes) != 0) {
        free(block);
        return error_set(EXPAR_ERR_MEMORY, "no private memory for an output of %llu bytes", (unsigned long long)bytes);
    }
    block->data = data;
    block->offset = UINT64_MAX;
    block->bytes = bytes;
    atomic_init(&block->references, 1);
    *out = block;
    return EXPAR_OK;
}

/* Memory of a caller, and how it is freed. */
typedef struct foreign_block {
    mem_block block; /* first: such a mem_block is a foreign_block */
    mem_allocator from;
} foreign_block;

static void foreign_give(mem_block *block)
{
    foreign_block *foreign = (foreign_block *)block;
    foreign->from.free(foreign->from.context, block->data, (size_t)block->bytes, NULL);
    free(foreign);
}

expar_status mem_block_foreign(const mem_allocator *from, void *data, uint64_t bytes, mem_block **out)
{
    foreign_block *foreign = calloc(1, sizeof *foreign);
    if (!foreign) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of an output");
    foreign->from = *from;
    foreign->block.data = data;
    foreign->block.offset = UINT64_MAX;
    foreign->block.bytes = bytes;
    foreign->block.give = foreign_give;
    atomic_init(&foreign->block.references, 1);
    *out = &foreign->block;
    return EXPAR_OK;
}

void mem_block_retain(mem_block *block)
{
    /* Relaxed: the caller of retain has a reference already, so the block cannot be freed meanwhile. */
    atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
}

bool pool_settle(mem_pool *pool, mem_block *block)
{
    mem_store *store = pool->store;
    pool->used_bytes -= store_charge(block->bytes);
    store->used_bytes -= store_charge(block->bytes);
    pool->alive--;
    store_give(store, block);
    if (!pool->closed || pool->alive > 0) return false;
    free(pool);
    return true;
}

static void pool_give(mem_pool *pool, mem_block *block)
{
    mem_store *store = pool->store;
    bool last = false;
    pthread_mutex_lock(&store->lock);
    if (atomic_load_explicit(&block->marks, memory_order_acquire)) {
        store_wait(store, block);
        if (pool->closed) store_drain(store);
    } else {
        last = pool_settle(pool, block);
    }
    pthread_mutex_unlock(&store->lock);
    if (last) store_drop(store);
}

void mem_block_release(mem_block *block)
{
    if (!block) return;
    /* Acquire and release: the last one sees everything that the others did with the memory before it is used again. */
    if (atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1) return;
    if (block->pool) {
        pool_give(block->pool, block);
        return;
    }
    if (block->give) {
        block->give(block);
        return;
    }
    free(block->data);
    free(block);
}
