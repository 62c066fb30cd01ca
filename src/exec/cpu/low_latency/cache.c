/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of results: worst-case sizes, of which few pages are ever touched. A block that comes back stays mapped for
 * the next one of its size, so that a call that repeats meets no page faults. */
#include "exec/cpu/low_latency/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Blocks that are kept while nobody holds them; beyond, the oldest goes. */
#define CACHED_BLOCKS 16

typedef struct cached {
    void *data;
    uint64_t bytes;
} cached;

struct ll_cache {
    atomic_int holders; /* the executor, and each block that is out; who gives the last one back (acq_rel) frees it */
    pthread_mutex_t lock;
    /* Guarded by lock: the oldest first. */
    cached idle[CACHED_BLOCKS];
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

/* With the lock. */
static cached take_idle(ll_cache *self, int32_t i)
{
    const cached block = self->idle[i];
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
    while (self->num_idle > 0) {
        const cached block = take_idle(self, 0);
        munmap(block.data, (size_t)block.bytes);
    }
    pthread_mutex_unlock(&self->lock);
    drop_holder(self);
}

/* Of mem_allocator: the last holder of a block gives it back. */
static void give_block(void *context, void *data, size_t bytes, void *stream)
{
    ll_cache *self = context;
    cached gone = {.data = data, .bytes = bytes};
    (void)stream;
    pthread_mutex_lock(&self->lock);
    if (!self->closed) {
        const cached back = gone;
        gone = self->num_idle == CACHED_BLOCKS ? take_idle(self, 0) : (cached){0};
        self->idle[self->num_idle++] = back;
    }
    pthread_mutex_unlock(&self->lock);
    if (gone.data) munmap(gone.data, (size_t)gone.bytes);
    drop_holder(self);
}

/* The one that came back last, whose pages are the warmest. */
static cached find_idle(ll_cache *self, uint64_t bytes)
{
    cached found = {0};
    pthread_mutex_lock(&self->lock);
    for (int32_t i = self->num_idle - 1; i >= 0 && !found.data; i--)
        if (self->idle[i].bytes == bytes) found = take_idle(self, i);
    pthread_mutex_unlock(&self->lock);
    return found;
}

expar_status ll_cache_take(ll_cache *self, uint64_t bytes, mem_block **out)
{
    cached block = find_idle(self, bytes);
    if (!block.data) {
        void *data =
            mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED)
            return error_set(EXPAR_ERR_MEMORY, "no memory for results of %llu bytes", (unsigned long long)bytes);
        block = (cached){.data = data, .bytes = bytes};
    }
    const mem_allocator from = {.free = give_block, .context = self};
    expar_status status = mem_block_foreign(&from, block.data, block.bytes, out);
    if (status != EXPAR_OK) {
        munmap(block.data, (size_t)block.bytes);
        return status;
    }
    atomic_fetch_add_explicit(&self->holders, 1, memory_order_relaxed);
    return EXPAR_OK;
}
