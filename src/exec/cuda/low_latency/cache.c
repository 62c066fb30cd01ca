/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of results, whose worst-case sizes are few. A block that is returned stays for the next result of its size, so
 * that repeated calls ask the driver for nothing. Kernels of a rank's later calls run after those of earlier ones. So
 * the next call can use a block at once, unless a stream still reads it (mem_block_follow). */
#include "exec/cuda/low_latency/ll_gpu.h"

#include <pthread.h>
#include <stdlib.h>

/* One block of the driver's memory, as its holder sees it. */
typedef struct ll_lent {
    /* First: holders know only this. Its marks stay valid while nobody holds the block. */
    mem_block block;
    /* The list of blocks that nobody holds. Guarded by the cache's lock. */
    struct ll_lent *next;
    ll_gpu_cache *cache;
    mem_block *memory;
} ll_lent;

struct ll_gpu_cache {
    /* One of the executor, one of each block that is out. Dropping the last one (acq_rel) frees the cache. */
    atomic_int holders;
    pthread_mutex_t lock;
    ll_lent *idle; /* guarded by lock; the block that was returned last comes first */
    bool closed;   /* guarded by lock; nothing is kept any more */
};

ll_gpu_cache *ll_gpu_cache_make(void)
{
    ll_gpu_cache *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    atomic_init(&cache->holders, 1);
    pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

static void gpu_cache_drop(ll_gpu_cache *cache)
{
    if (atomic_fetch_sub_explicit(&cache->holders, 1, memory_order_acq_rel) > 1) return;
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* Frees the block once the rank's calls have ended, and work on streams that still reads it (fallback.c). */
static void lent_free(ll_lent *lent)
{
    cuda_mark *mark = atomic_load_explicit(&lent->block.marks, memory_order_acquire);
    while (mark) {
        cuda_mark *next = cuda_mark_next(mark);
        mem_block_follow(lent->memory, mark);
        mark = next;
    }
    mem_block_release(lent->memory);
    free(lent);
}

void ll_gpu_cache_close(ll_gpu_cache *cache)
{
    if (!cache) return;
    pthread_mutex_lock(&cache->lock);
    ll_lent *idle = cache->idle;
    cache->idle = NULL;
    cache->closed = true;
    pthread_mutex_unlock(&cache->lock);
    while (idle) {
        ll_lent *next = idle->next;
        lent_free(idle);
        idle = next;
    }
    gpu_cache_drop(cache);
}

/* mem_block.give: the last holder returns the block. */
static void gpu_cache_give(mem_block *block)
{
    ll_lent *lent = (ll_lent *)block;
    ll_gpu_cache *cache = lent->cache;
    pthread_mutex_lock(&cache->lock);
    const bool keeps = !cache->closed;
    if (keeps) {
        lent->next = cache->idle;
        cache->idle = lent;
    }
    pthread_mutex_unlock(&cache->lock);
    if (!keeps) lent_free(lent);
    gpu_cache_drop(cache);
}

static void gpu_cache_put_idle(ll_gpu_cache *cache, ll_lent *lent)
{
    pthread_mutex_lock(&cache->lock);
    lent->next = cache->idle;
    cache->idle = lent;
    pthread_mutex_unlock(&cache->lock);
}

/* Takes a block of that size off the list. */
static ll_lent *gpu_cache_take_idle(ll_gpu_cache *cache, uint64_t bytes)
{
    pthread_mutex_lock(&cache->lock);
    ll_lent **place = &cache->idle;
    while (*place && (*place)->block.bytes != bytes)
        place = &(*place)->next;
    ll_lent *found = *place;
    if (found) *place = found->next;
    pthread_mutex_unlock(&cache->lock);
    return found;
}

/* Finds a block that no stream reads any more. Readers that all later calls of the rank come after do not count. */
static ll_lent *gpu_cache_find(ll_gpu *self, uint64_t bytes)
{
    ll_lent *used = NULL, *found = gpu_cache_take_idle(self->cache, bytes);
    while (found && !mem_block_is_free(&found->block, gpu_places_cover, gpu_order_places(self->core.order))) {
        found->next = used;
        used = found;
        found = gpu_cache_take_idle(self->cache, bytes);
    }
    while (used) {
        ll_lent *next = used->next;
        gpu_cache_put_idle(self->cache, used);
        used = next;
    }
    return found;
}

static expar_status lent_make(ll_gpu *self, uint64_t bytes, ll_lent **out)
{
    ll_lent *lent = calloc(1, sizeof *lent);
    if (!lent) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of a block");
    expar_status status = gpu_fallback_allocate(&self->core, NULL, bytes, &lent->memory);
    if (status != EXPAR_OK) {
        free(lent);
        return status;
    }
    lent->cache = self->cache;
    lent->block = (mem_block){.data = lent->memory->data, .offset = UINT64_MAX, .bytes = bytes, .give = gpu_cache_give};
    *out = lent;
    return EXPAR_OK;
}

expar_status ll_gpu_cache_take(ll_gpu *self, uint64_t bytes, mem_block **out)
{
    ll_lent *lent = gpu_cache_find(self, bytes);
    expar_status status = lent ? EXPAR_OK : lent_make(self, bytes, &lent);
    if (status != EXPAR_OK) return status;
    atomic_init(&lent->block.references, 1);
    atomic_fetch_add_explicit(&self->cache->holders, 1, memory_order_relaxed);
    *out = &lent->block;
    return EXPAR_OK;
}
