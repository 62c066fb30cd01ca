/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on the GPU for outputs. A rank that is alone on its node has addresses of its own, which get physical memory
 * as outputs need it. No other rank maps it, so it grows in any call. It stays until the buffer and its last output are
 * gone. Ranks of one node have the growing part of a heap that they map on each other's GPUs (core/store.c). It grows
 * in calls in which all ranks wait for counts. */
#include "exec/cuda/core/device_state.h"
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

/* ---- a pool that ranks of the node map --------------------------------------------------------------------------- */

/* Collective: whether all ranks pass true. */
static expar_status all_say(const hosted_executor *self, bool mine, bool *out)
{
    bool *all = calloc((size_t)self->core.sym->size, sizeof *all);
    if (!all) return sym_out_of_step(self->core.sym, "the buffer", error_set(EXPAR_ERR_MEMORY, "no memory"));
    const boot_matter matter = {
        .what = "the buffer", .rejected = "could not make its part", .mine = &mine, .all = all, .bytes = sizeof mine};
    const expar_status status = sym_agree(self->core.sym, &matter, EXPAR_OK);
    *out = status == EXPAR_OK;
    for (int32_t r = 0; r < self->core.sym->size && *out; r++)
        *out = all[r];
    free(all);
    return status;
}

static bool reaches_node(const hosted_executor *self)
{
    const sym *symmetric = self->core.sym;
    const cu_address *bases = device_heap_bases(self->core.heap);
    const int32_t first = symmetric->rank - symmetric->rank % self->near_ranks;
    for (int32_t r = first; r < first + self->near_ranks; r++)
        if (!bases[r]) return false;
    return device_heap_grows(self->core.heap);
}

/* Failures of one rank are failures of all. They cost the node its mapped pools, and no more. */
static expar_status enter_state(hosted_executor *self)
{
    const expar_status status = gpu_device_state_enter(&self->core, self->device->index, true);
    self->core.device = self->device;
    if (status == EXPAR_OK || sym_check(self->core.sym, "the buffer") != EXPAR_OK) return status;
    LOG(LOG_INFO, "rows for ranks of this node pass through host memory: %s", expar_last_error());
    return EXPAR_OK;
}

static void close_gate(void *order)
{
    gpu_order_close(order);
}

static void open_gate(void *order)
{
    gpu_order_open(order);
}

expar_status hosted_pool_map(hosted_executor *self)
{
    bool all = false;
    expar_status status = all_say(self, self->mover.on && self->near_ranks > 1, &all);
    if (status != EXPAR_OK || !all) return status;
    status = enter_state(self);
    if (status != EXPAR_OK || !self->core.device_state) return status;
    status = all_say(self, reaches_node(self), &self->mapped);
    if (self->mapped)
        device_heap_guard(self->core.heap, &(device_heap_gate){close_gate, open_gate, self->core.order});
    else
        gpu_device_state_leave(&self->core, true);
    return status;
}

void hosted_pool_unmap(hosted_executor *self, bool sound, bool quiet)
{
    bool all = false;
    if (!self->core.device_state) return;
    if (sound && all_say(self, quiet, &all) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    gpu_device_state_leave(&self->core, all);
}

static expar_status pool_make_mapped(hosted_executor *self, const executor_plan *plan)
{
    gpu_device_state *state = self->core.device_state;
    expar_status status = gpu_store_open(state, gpu_order_places(self->core.order), 0, 0);
    if (status != EXPAR_OK) return status;
    self->store = state->store;
    self->core.base.grows = true;
    self->limited = plan->pool_limit_bytes != 0;
    return mem_pool_create_in(self->store, plan->pool_limit_bytes, 0, &self->core.base.pool);
}

expar_status hosted_pool_start(hosted_executor *self, const executor_plan *plan)
{
    gpu_device_state *state = self->core.device_state;
    if (!self->mapped) return EXPAR_OK;
    const uint64_t held = device_heap_own_bytes(state->heap);
    self->start_bytes = plan->pool_bytes;
    state->start_bytes += self->start_bytes;
    return gpu_store_grow(state, state->start_bytes > held ? state->start_bytes - held : 0);
}

ep_growth hosted_choose_growth(hosted_executor *self, const ep_notify_step *step)
{
    if (!self->mapped || step->growth != EP_GROWTH_CAN) return step->growth;
    const bool lacks = gpu_store_lacks(&self->core, step->lacking);
    return gpu_store_requests(self->core.device_state) || lacks ? EP_GROWTH_REQUESTED : EP_GROWTH_CAN;
}

expar_status hosted_grow_pool(executor *base, const uint64_t *bytes, int32_t count)
{
    hosted_executor *self = hosted_of(base);
    bool failed;
    if (!self->mapped) return EXPAR_OK;
    return gpu_store_grow_pool(&self->core, self->limited, bytes, count, &failed);
}

bool hosted_offset_on_gpu(const hosted_executor *self, const void *data, uint64_t bytes, uint64_t *offset)
{
    *offset = (uint64_t)(uintptr_t)data;
    if (self->near_ranks == 1 || bytes == 0) return true;
    return self->mapped && device_heap_offset(self->core.heap, (cu_address)(uintptr_t)data, bytes, offset);
}

/* ---- making and closing ------------------------------------------------------------------------------------------ */

expar_status hosted_pool_make(hosted_executor *self, const executor_plan *plan)
{
    if (self->mapped) return pool_make_mapped(self, plan);
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
    if (self->core.device_state) self->core.device_state->start_bytes -= self->start_bytes;
    self->start_bytes = 0;
    if (!self->store || self->mapped) return;
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

/* Other rows pass through host memory that peers reach, wherever the caller has them. Steps find out where that is.
   Rows that ranks of this node read or write must lie in the pool, which calls take from in their order. */
exec_reach hosted_reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                        exec_mapping *out)
{
    (void)call, (void)maps;
    if (!hosted_of(base)->mapped) return EXEC_REACH_HEAP;
    return hosted_offset_on_gpu(hosted_of(base), data, bytes, &out->offset) ? EXEC_REACH_HEAP : EXEC_REACH_NONE;
}

/* Memory of this rank alone stays on the GPU. */
void hosted_trim(executor *base)
{
    executor *inner = hosted_of(base)->inner;
    hosted_stages_trim(hosted_of(base));
    if (hosted_of(base)->mapped) gpu_store_trim(hosted_of(base)->core.device_state);
    inner->normal->trim(inner);
}

/* In host memory that knows marks of streams, as those of a handle's release are. */
expar_status hosted_map_make(executor *base, int64_t slots, mem_block **out)
{
    const uint64_t bytes = ((uint64_t)slots + 1) * sizeof(int32_t);
    expar_status status = hosted_take_private(hosted_of(base), bytes, out);
    if (status != EXPAR_OK) return error_set(status, "no memory for a row map of %lld slots", (long long)slots);
    memset((*out)->data, 0xff, (size_t)bytes); /* the handle of a dispatch that fails later names no row */
    return EXPAR_OK;
}
