/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of results: worst-case sizes, of which there are few. A block that comes back stays for the next one of its
 * size, so that calls that repeat ask the driver for nothing. Kernels of a rank's later calls stand behind those of
 * earlier ones, so it can be handed on at once, unless a stream still reads it (mem_block_follow). */
#include "exec/cuda/low_latency/ll_gpu.h"

#include <pthread.h>
#include <stdlib.h>

/* One block of the driver's, as its holder sees it. */
typedef struct ll_lent {
    mem_block block;      /* first: what a holder has; its marks stay with it while nobody holds it */
    struct ll_lent *next; /* of those that nobody holds: guarded by the cache's lock */
    ll_gpu_cache *cache;
    mem_block *memory;
} ll_lent;

struct ll_gpu_cache {
    atomic_int holders; /* the executor, and each block that is out; who gives the last one back (acq_rel) frees it */
    pthread_mutex_t lock;
    ll_lent *idle; /* guarded by lock: the one that came back last first */
    bool closed;   /* guarded by lock: nothing is kept any more */
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

/* The driver gets it once the rank's calls have passed, and what streams still read of it (lend.c). */
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

/* The give of mem_block: the last holder gives the block back. */
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

/* One that no stream reads any more, unless the rank's calls come after it. */
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
    expar_status status = gpu_lend(&self->core, NULL, bytes, &lent->memory);
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
