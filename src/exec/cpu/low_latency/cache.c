/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of results. It has worst-case sizes, but only a few of its pages are ever touched. A freed block stays mapped
 * for the next one of its size, with its record. So a repeated call allocates nothing and meets no page faults. */
#include "exec/cpu/low_latency/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The most unused blocks that are kept; beyond that, the oldest is freed. */
#define CACHED_BLOCKS 16

typedef struct cached {
    mem_block block; /* first: such a mem_block is one of these */
    ll_cache *cache;
} cached;

struct ll_cache {
    atomic_int holders; /* references: the executor, and each block in use; dropping the last one (acq_rel) frees it */
    pthread_mutex_t lock;
    /* guarded by lock: the oldest first */
    cached *idle[CACHED_BLOCKS];
    int32_t num_idle;
    bool closed; /* nothing is kept any more */
};

ll_cache *ll_cache_make(void)
{
    ll_cache *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    atomic_init(&self->holders, 1);
    pthread_mutex_init(&self->lock, NULL);
    return self;
}

static void drop_holder(ll_cache *self)
{
    if (atomic_fetch_sub_explicit(&self->holders, 1, memory_order_acq_rel) > 1) return;
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void cached_free(cached *block)
{
    if (!block) return;
    munmap(block->block.data, (size_t)block->block.bytes);
    free(block);
}

/* The caller holds the lock. */
static cached *take_idle(ll_cache *self, int32_t i)
{
    cached *block = self->idle[i];
    self->num_idle--;
    for (; i < self->num_idle; i++)
        self->idle[i] = self->idle[i + 1];
    return block;
}

void ll_cache_close(ll_cache *self)
{
    if (!self) return;
    pthread_mutex_lock(&self->lock);
    self->closed = true;
    while (self->num_idle > 0)
        cached_free(take_idle(self, 0));
    pthread_mutex_unlock(&self->lock);
    drop_holder(self);
}

/* Called by mem_block when its last holder releases it. */
static void cached_give(mem_block *block)
{
    cached *back = (cached *)block, *gone = back;
    ll_cache *self = back->cache;
    pthread_mutex_lock(&self->lock);
    if (!self->closed) {
        gone = self->num_idle == CACHED_BLOCKS ? take_idle(self, 0) : NULL;
        self->idle[self->num_idle++] = back;
    }
    pthread_mutex_unlock(&self->lock);
    cached_free(gone);
    drop_holder(self);
}

/* Finds the block that was freed last, whose pages are most likely in a cache. */
static cached *find_idle(ll_cache *self, uint64_t bytes)
{
    cached *found = NULL;
    pthread_mutex_lock(&self->lock);
    for (int32_t i = self->num_idle - 1; i >= 0 && !found; i--)
        if (self->idle[i]->block.bytes == bytes) found = take_idle(self, i);
    pthread_mutex_unlock(&self->lock);
    return found;
}

/* Returns NULL if there is no memory. */
static cached *cached_make(ll_cache *self, uint64_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    cached *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    void *data = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (data == MAP_FAILED) {
        free(made);
        return NULL;
    }
    made->cache = self;
    made->block = (mem_block){.data = data, .offset = UINT64_MAX, .bytes = bytes, .give = cached_give};
    return made;
}

expar_status ll_cache_take(ll_cache *self, uint64_t bytes, mem_block **out)
{
    cached *block = find_idle(self, bytes);
    if (!block) block = cached_make(self, bytes);
    if (!block) return error_set(EXPAR_ERR_MEMORY, "no memory for results of %llu bytes", (unsigned long long)bytes);
    atomic_init(&block->block.references, 1);
    atomic_fetch_add_explicit(&self->holders, 1, memory_order_relaxed);
    *out = &block->block;
    return EXPAR_OK;
}
