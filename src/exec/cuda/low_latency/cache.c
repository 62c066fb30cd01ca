/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of results: worst-case sizes, of which there are few. A block that comes back stays for the next one of its
 * size, so that calls that repeat ask the driver for nothing. Kernels of a rank's later calls stand behind those of
 * earlier ones, so it can be handed on at once. */
#include "exec/cuda/low_latency/ll_gpu.h"

#include <pthread.h>
#include <stdlib.h>

/* One block of the driver's. */
typedef struct ll_lent {
    struct ll_lent *next; /* of those that nobody holds: guarded by the cache's lock */
    ll_gpu_cache *cache;
    mem_block *memory;
    uint64_t bytes;
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

/* The driver gets it once the rank's calls have passed (lend.c). */
static void lent_free(ll_lent *lent)
{
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

/* Of mem_allocator: the last holder of a block gives it back, perhaps in a function that the driver calls. */
static void gpu_cache_give(void *context, void *data, size_t bytes, void *stream)
{
    ll_lent *lent = context;
    ll_gpu_cache *cache = lent->cache;
    (void)data, (void)bytes, (void)stream;
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

static ll_lent *gpu_cache_find(ll_gpu_cache *cache, uint64_t bytes)
{
    pthread_mutex_lock(&cache->lock);
    ll_lent **place = &cache->idle;
    while (*place && (*place)->bytes != bytes)
        place = &(*place)->next;
    ll_lent *found = *place;
    if (found) *place = found->next;
    pthread_mutex_unlock(&cache->lock);
    return found;
}

static expar_status lent_make(ll_gpu *self, uint64_t bytes, ll_lent **out)
{
    ll_lent *lent = calloc(1, sizeof *lent);
    if (!lent) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of a block");
    *lent = (ll_lent){.cache = self->cache, .bytes = bytes};
    expar_status status = gpu_lend(&self->core, NULL, bytes, &lent->memory);
    if (status != EXPAR_OK) {
        free(lent);
        return status;
    }
    *out = lent;
    return EXPAR_OK;
}

expar_status ll_gpu_cache_take(ll_gpu *self, uint64_t bytes, mem_block **out)
{
    ll_lent *lent = gpu_cache_find(self->cache, bytes);
    expar_status status = lent ? EXPAR_OK : lent_make(self, bytes, &lent);
    if (status != EXPAR_OK) return status;
    const mem_allocator from = {.free = gpu_cache_give, .context = lent};
    status = mem_block_foreign(&from, lent->memory->data, bytes, out);
    if (status != EXPAR_OK) {
        lent_free(lent);
        return status;
    }
    atomic_fetch_add_explicit(&self->cache->holders, 1, memory_order_relaxed);
    return EXPAR_OK;
}
