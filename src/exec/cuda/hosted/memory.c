/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on the GPU for outputs: addresses of this rank alone, which get physical memory as outputs need it. No other
 * rank maps it, so it grows in any call. It stays until the buffer and its last output are gone. */
#include "exec/cuda/hosted/hosted.h"
#include "mem/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One chunk for each range that was filled. */
typedef struct filled {
    struct filled *next;
    mem_chunk chunk;
    cu_address at;
} filled;

/* Lives as long as the store. */
struct hosted_source {
    cuda_task task;
    cuda_device *device;
    cu_address base;
    uint64_t bytes; /* of addresses */
    filled *first;  /* guarded by the store's lock */
    /* Places on streams that later calls come after, with a reference. NULL: they are not known, since the host waits
       for streams. */
    gpu_places *places;
    /* The thread that dropped the owner's reference of the store; valid once `closed`. */
    pthread_t closer;
    atomic_bool closed; /* set by that thread (release); read with acquire */
};

/* ---- the source -------------------------------------------------------------------------------------------------- */

static expar_status fill_at(hosted_source *source, filled *one, uint64_t bytes)
{
    expar_status status = mem_chunk_create(source->device, bytes, &one->chunk);
    if (status != EXPAR_OK) return status;
    status = mem_chunk_map(&one->chunk, one->at, &source->device->index, 1);
    if (status != EXPAR_OK) mem_chunk_release(&one->chunk);
    return status;
}

static expar_status hosted_source_fill(void *context, uint64_t offset, uint64_t bytes)
{
    hosted_source *source = context;
    int mode;
    filled *one = calloc(1, sizeof *one);
    if (!one) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of an output's memory");
    one->at = source->base + offset;
    expar_status status = cuda_enter(source->device);
    if (status == EXPAR_OK) {
        status = gpu_leave_captures(&mode);
        if (status == EXPAR_OK) {
            status = fill_at(source, one, bytes);
            gpu_return_to_captures(mode);
        }
        cuda_leave();
    }
    if (status != EXPAR_OK) {
        free(one);
        return status;
    }
    one->next = source->first;
    source->first = one;
    return EXPAR_OK;
}

static void hosted_source_free(cuda_task *task)
{
    hosted_source *source = (hosted_source *)task;
    const bool entered = cuda_enter(source->device) == EXPAR_OK;
    while (source->first) {
        filled *one = source->first;
        source->first = one->next;
        if (entered) {
            mem_chunk_unmap(one->at, one->chunk.bytes);
            mem_chunk_release(&one->chunk);
        }
        free(one);
    }
    if (entered && source->base) mem_range_free(source->base, source->bytes);
    if (entered) cuda_leave();
    cuda_device_close(source->device);
    gpu_places_drop(source->places);
    free(source);
}

/* The thread that drops the last reference calls it. That may be in a function that the driver calls, unless it is the
   thread that closed the store. */
static void hosted_source_end(void *context)
{
    hosted_source *source = context;
    source->task.run = hosted_source_free;
    if (atomic_load_explicit(&source->closed, memory_order_acquire) && pthread_equal(source->closer, pthread_self()))
        hosted_source_free(&source->task);
    else
        cuda_later(&source->task);
}

/* The range has twice the GPU's memory, because pieces of it may stay unused between blocks. */
static expar_status reserve_addresses(hosted_source *source, uint64_t *unit)
{
    expar_status status = mem_chunk_granularity(source->device, unit);
    if (status != EXPAR_OK) return status;
    if (*unit < MEM_POOL_LARGE_BYTES) *unit = MEM_POOL_LARGE_BYTES;
    source->bytes = align_up(2 * source->device->memory_bytes, *unit);
    status = cuda_enter(source->device);
    if (status != EXPAR_OK) return status;
    status = mem_range_reserve(source->bytes, &source->base);
    cuda_leave();
    return status;
}

static expar_status store_make(hosted_executor *self, hosted_source *source)
{
    uint64_t unit = 0;
    expar_status status = cuda_device_open(self->device->index, &source->device);
    if (status != EXPAR_OK) {
        free(source);
        return status;
    }
    status = reserve_addresses(source, &unit);
    const mem_source table = {
        .unit_bytes = unit, .fill = hosted_source_fill, .end = hosted_source_end, .context = source};
    if (status == EXPAR_OK)
        status = mem_store_create((void *)(uintptr_t)source->base, 0, source->bytes, &table, &self->store);
    if (status != EXPAR_OK) hosted_source_free(&source->task);
    if (status != EXPAR_OK || !self->mover.on) return status;
    source->places = gpu_places_hold(gpu_order_places(self->core.order));
    mem_store_set_cover(self->store, gpu_places_cover, source->places);
    return EXPAR_OK;
}

expar_status hosted_pool_make(hosted_executor *self, const executor_plan *plan)
{
    hosted_source *source = calloc(1, sizeof *source);
    if (!source) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    expar_status status = store_make(self, source);
    if (status != EXPAR_OK) return status;
    self->source = source;
    return mem_pool_create_in(self->store, plan->pool_limit_bytes, plan->pool_bytes, &self->core.base.pool);
}

void hosted_pool_close(hosted_executor *self)
{
    mem_pool_close(self->core.base.pool);
    self->core.base.pool = NULL;
    if (!self->store) return;
    self->source->closer = pthread_self();
    atomic_store_explicit(&self->source->closed, true, memory_order_release);
    mem_store_close(self->store);
    self->store = NULL;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

expar_status hosted_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    if (!from && mem_pool_take(base->pool, bytes, out) == EXPAR_OK) return EXPAR_OK;
    return gpu_fallback_allocate(gpu_core_of(base), from, bytes, out);
}

/* Rows pass through host memory that peers reach, wherever the caller has them. Steps find out where that is. */
exec_reach hosted_reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                        exec_mapping *out)
{
    (void)base, (void)call, (void)data, (void)bytes, (void)maps, (void)out;
    return EXEC_REACH_HEAP;
}

/* Memory on the GPU stays. */
void hosted_trim(executor *base)
{
    executor *inner = hosted_of(base)->inner;
    hosted_stages_trim(hosted_of(base));
    inner->normal->trim(inner);
}

/* In host memory that knows marks of streams, as those of a handle's release are. */
expar_status hosted_map_make(executor *base, int64_t slots, mem_block **out)
{
    executor *inner = hosted_of(base)->inner;
    const uint64_t bytes = ((uint64_t)slots + 1) * sizeof(int32_t);
    expar_status status = inner->ops->take(inner, NULL, bytes, out);
    if (status != EXPAR_OK) return error_set(status, "no memory for a row map of %lld slots", (long long)slots);
    memset((*out)->data, 0xff, (size_t)bytes); /* the handle of a dispatch that fails later names no row */
    return EXPAR_OK;
}
