/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: local, reference-counted blocks inside a range of the symmetric heap.
 *
 * Memory that comes back stays mapped, so that the next dispatch writes to warm pages. Records of blocks are kept for
 * reuse: in the steady state nothing is allocated. */
#include "mem/mem.h"

#include <pthread.h>
#include <stdlib.h>

#define SMALL_ALIGNMENT 128u
#define LARGE_ALIGNMENT MEM_POOL_LARGE_BYTES

/* A block's record, in the pool's list of spare ones while it is not in use. */
typedef struct pool_record {
    mem_block block; /* first: a mem_block of a pool is a pool_record */
    struct pool_record *next;
} pool_record;

struct mem_pool {
    pthread_mutex_t lock; /* guards all below */
    mem_arena *arena;     /* of offsets from origin on, a multiple of LARGE_ALIGNMENT in the heap */
    uint8_t *heap_base;
    uint64_t origin;
    uint64_t alive; /* blocks in use */
    bool closed;
    pool_record *spare;
    const mem_region *region; /* NULL: memory is there. Else it is committed from origin up to `filled` */
    uint64_t filled;
    mem_budget budget;
};

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
        return error_set(EXPAR_ERR_ARGUMENT, "a pool of %llu bytes has no room for a block", (unsigned long long)bytes);
    }
    *origin = offset - lead;
    return EXPAR_OK;
}

expar_status mem_pool_create(void *heap_base, uint64_t offset, uint64_t bytes, mem_pool **out)
{
    mem_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return error_set(EXPAR_ERR_MEMORY, "no memory for a pool's record");
    expar_status status = arena_from(offset, bytes, &pool->origin, &pool->arena);
    if (status != EXPAR_OK) {
        free(pool);
        return status;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pool->heap_base = heap_base;
    *out = pool;
    return EXPAR_OK;
}

void mem_pool_fill(mem_pool *pool, const mem_region *region, int32_t sharers)
{
    pool->region = region;
    pool->budget.sharers = sharers;
}

static void pool_free(mem_pool *pool)
{
    while (pool->spare) {
        pool_record *next = pool->spare->next;
        free(pool->spare);
        pool->spare = next;
    }
    mem_arena_destroy(pool->arena);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void mem_pool_close(mem_pool *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->closed = true;
    bool last = pool->alive == 0;
    pthread_mutex_unlock(&pool->lock);
    if (last) pool_free(pool);
}

static pool_record *record_get(mem_pool *pool)
{
    pool_record *record = pool->spare;
    if (!record) return calloc(1, sizeof *record);
    pool->spare = record->next;
    return record;
}

static void record_put(mem_pool *pool, pool_record *record)
{
    record->next = pool->spare;
    pool->spare = record;
}

static uint64_t alignment_of(uint64_t bytes)
{
    return bytes >= LARGE_ALIGNMENT ? LARGE_ALIGNMENT : SMALL_ALIGNMENT;
}

/* Behind the last block that is held now. */
static uint64_t enough_for(const mem_arena_stats *stats, uint64_t bytes)
{
    uint64_t end = stats->used_bytes + stats->hole_bytes, unit = alignment_of(bytes), total;
    if (size_add_overflows((end + unit - 1) / unit * unit, bytes, &total) || total > UINT64_MAX - SMALL_ALIGNMENT)
        return UINT64_MAX;
    return (total + SMALL_ALIGNMENT - 1) / SMALL_ALIGNMENT * SMALL_ALIGNMENT;
}

uint64_t mem_pool_enough(mem_pool *pool, uint64_t bytes)
{
    mem_arena_stats stats;
    pthread_mutex_lock(&pool->lock);
    mem_arena_get_stats(pool->arena, &stats);
    pthread_mutex_unlock(&pool->lock);
    return enough_for(&stats, bytes);
}

static expar_status pool_exhausted(const mem_pool *pool, uint64_t bytes)
{
    mem_arena_stats stats;
    mem_arena_get_stats(pool->arena, &stats);
    return error_set(EXPAR_ERR_MEMORY,
                     "the output pool has no room for %llu bytes: %llu of %llu are free, the largest free block has "
                     "%llu; %llu in all would do",
                     (unsigned long long)bytes, (unsigned long long)(stats.total_bytes - stats.used_bytes),
                     (unsigned long long)stats.total_bytes, (unsigned long long)stats.largest_free_bytes,
                     (unsigned long long)enough_for(&stats, bytes));
}

/* Memory for the pool up to `end`, from origin on: once it is there it stays, so that a block taken again costs
 * nothing. */
static expar_status fill_up_to(mem_pool *pool, uint64_t end)
{
    if (!pool->region || end <= pool->filled) return EXPAR_OK;
    expar_status status =
        mem_region_commit(pool->region, &pool->budget, pool->origin + pool->filled, end - pool->filled);
    if (status == EXPAR_OK) pool->filled = end;
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "the output pool");
}

/* The block at an offset of the arena, with the lock held; NULL: no memory for its record. */
static mem_block *block_at(mem_pool *pool, uint64_t offset, uint64_t bytes)
{
    pool_record *record = record_get(pool);
    if (!record) return NULL;
    mem_block *block = &record->block;
    block->offset = pool->origin + offset;
    block->data = pool->heap_base + block->offset;
    block->bytes = bytes;
    block->pool = pool;
    atomic_init(&block->references, 1);
    pool->alive++;
    return block;
}

/* With the lock held. */
static expar_status take_locked(mem_pool *pool, uint64_t bytes, mem_block **out)
{
    if (pool->closed) return error_set(EXPAR_ERR_STATE, "the output pool is closed");
    uint64_t offset;
    if (!mem_arena_take(pool->arena, bytes, alignment_of(bytes), &offset)) return pool_exhausted(pool, bytes);
    expar_status status = fill_up_to(pool, offset + bytes);
    mem_block *block = status == EXPAR_OK ? block_at(pool, offset, bytes) : NULL;
    if (!block) {
        mem_arena_give(pool->arena, offset, NULL);
        return status != EXPAR_OK ? status : error_set(EXPAR_ERR_MEMORY, "no memory for the record of a pool's block");
    }
    *out = block;
    return EXPAR_OK;
}

expar_status mem_pool_take(mem_pool *pool, uint64_t bytes, mem_block **out)
{
    pthread_mutex_lock(&pool->lock);
    expar_status status = take_locked(pool, bytes, out);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

bool mem_pool_take_whole(mem_pool *pool, uint64_t least, mem_block **out)
{
    uint64_t offset, bytes;
    mem_block *block = NULL;
    pthread_mutex_lock(&pool->lock);
    if (!pool->closed && !pool->region &&
        mem_arena_take_whole(pool->arena, least, alignment_of(least), &offset, &bytes)) {
        block = block_at(pool, offset, bytes);
        if (!block) mem_arena_give(pool->arena, offset, NULL);
    }
    pthread_mutex_unlock(&pool->lock);
    if (block) *out = block;
    return block != NULL;
}

void mem_block_trim(mem_block *block, uint64_t bytes)
{
    mem_pool *pool = block->pool;
    pthread_mutex_lock(&pool->lock);
    if (mem_arena_trim(pool->arena, block->offset - pool->origin, bytes)) block->bytes = bytes;
    pthread_mutex_unlock(&pool->lock);
}

expar_status mem_block_private(uint64_t bytes, mem_block **out)
{
    mem_block *block = calloc(1, sizeof *block);
    void *data = NULL;
    if (!block || bytes > PTRDIFF_MAX || posix_memalign(&data, alignment_of(bytes), bytes == 0 ? 1 : bytes) != 0) {
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

void mem_block_retain(mem_block *block)
{
    /* Relaxed: whoever retains holds a reference already, so the block cannot go meanwhile. */
    atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
}

static void pool_give(mem_pool *pool, mem_block *block)
{
    pthread_mutex_lock(&pool->lock);
    mem_arena_give(pool->arena, block->offset - pool->origin, NULL);
    record_put(pool, (pool_record *)block);
    pool->alive--;
    bool last = pool->closed && pool->alive == 0;
    pthread_mutex_unlock(&pool->lock);
    if (last) pool_free(pool);
}

void mem_block_release(mem_block *block)
{
    if (!block) return;
    /* Acquire and release: the last one out sees all that the others did with the memory before it is used again. */
    if (atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1) return;
    if (block->pool) {
        pool_give(block->pool, block);
        return;
    }
    free(block->data);
    free(block);
}
