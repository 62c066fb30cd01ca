/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor's small memory, and what calls take from the pool. */
#include "exec/cuda/normal/normal_gpu.h"

#include <stdlib.h>
#include <string.h>

/* ---- with the buffer --------------------------------------------------------------------------------------------- */

/* Fills one block of device memory: the addresses of the heaps, the state, what waits have told of each rank. */
static expar_status fill_memory(gpu_executor *self, cu_address memory, size_t heaps_bytes)
{
    const size_t ranks = (size_t)self->shape.ranks;
    const cu_address at_state = memory + heaps_bytes, at_noted = at_state + ep_round(sizeof(gpu_state), EP_ALIGN_BYTES);
    const gpu_state state = {.bad_slot = ~0ull};
    self->core.place.heaps = (const uint64_t *)(uintptr_t)memory;
    self->core.place.state = (gpu_state *)(uintptr_t)at_state;
    self->core.place.noted = (uint64_t *)(uintptr_t)at_noted;
    const cu_stream own = self->core.own_stream;
    expar_status status =
        CUDA_CALL(MemcpyHtoDAsync, memory, device_heap_bases(self->core.heap), ranks * sizeof(cu_address), own);
    if (status == EXPAR_OK) status = CUDA_CALL(MemcpyHtoDAsync, at_state, &state, sizeof state, own);
    if (status == EXPAR_OK) status = CUDA_CALL(MemsetD8Async, at_noted, 0, ranks * sizeof(uint64_t), own);
    return status == EXPAR_OK ? gpu_own_stream_await(&self->core) : status;
}

/* Makes that block, the pinned report followed by the words of awaited ranks, and the counters. */
expar_status gpu_memory_open(gpu_executor *self)
{
    const size_t ranks = (size_t)self->shape.ranks;
    const size_t heaps_bytes = ep_round(ranks * sizeof(cu_address), EP_ALIGN_BYTES);
    const size_t awaits_at = ep_round(sizeof(gpu_report), EP_ALIGN_BYTES);
    gpu_counters *counters = NULL;
    const size_t state_bytes = (size_t)ep_round(sizeof(gpu_state), EP_ALIGN_BYTES) + ranks * sizeof(uint64_t);
    expar_status status = gpu_scratch_take(self->core.device, heaps_bytes + state_bytes,
                                           awaits_at + ranks * sizeof(uint64_t), &self->core.scratch);
    if (status != EXPAR_OK) return status;
    self->core.watch.awaits = (uint64_t *)(void *)((char *)self->core.scratch->pinned.host + awaits_at);
    self->core.place.awaits = (uint64_t *)(uintptr_t)(self->core.scratch->pinned.device + awaits_at);
    self->core.report = self->core.scratch->pinned.host;
    self->core.place.report = (gpu_report *)(uintptr_t)self->core.scratch->pinned.device;
    status = fill_memory(self, self->core.scratch->memory, heaps_bytes);
    if (status == EXPAR_OK) status = gpu_counters_make(self, &self->shape, &counters);
    gpu_counters_use(self, counters);
    return status == EXPAR_OK ? gpu_order_hold(&self->core) : status;
}

/* ---- with a call ------------------------------------------------------------------------------------------------- */

/* A graph may be launched after the caller's memory was freed. */
exec_reach gpu_reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                     exec_mapping *out)
{
    const gpu_core *core = gpu_core_of(base);
    if (device_heap_offset(core->heap, (cu_address)(uintptr_t)data, bytes, &out->offset)) return EXEC_REACH_HEAP;
    if (!maps || call->captured || !gpu_segments_find(core->segments, data, bytes, out)) return EXEC_REACH_NONE;
    return EXEC_REACH_MAPPED;
}

void gpu_unmap(executor *base, exec_mapping *mapping)
{
    gpu_segments_release(gpu_core_of(base)->segments, mapping);
}

static expar_status nothing_left(gpu_executor *self, uint64_t bytes, expar_status status)
{
    const bool limited = self->limit_bytes != 0;
    return error_prefix(status,
                        "the pool of %llu bytes has no space for %llu bytes (free outputs and handles, or make "
                        "config.%s %llu), nor is there memory beside it",
                        (unsigned long long)gpu_pool_bytes(self), (unsigned long long)bytes,
                        limited ? "pool_limit_bytes" : "pool_bytes",
                        (unsigned long long)mem_pool_enough(self->core.base.pool, bytes));
}

expar_status gpu_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    if (from) return gpu_fallback_allocate(gpu_core_of(base), from, bytes, out);
    if (mem_pool_take(base->pool, bytes, out) == EXPAR_OK) return EXPAR_OK;
    expar_status status = gpu_fallback_allocate(gpu_core_of(base), NULL, bytes, out);
    return status == EXPAR_ERR_MEMORY ? nothing_left(gpu_of(base), bytes, status) : status;
}

/* Rounds as the pool rounds large blocks. */
static uint64_t gpu_in_pool(uint64_t bytes)
{
    return ep_round(bytes, MEM_POOL_LARGE_BYTES);
}

/* The pool must also hold the handles of two dispatches, and copies of rows and weights that a combine gets in the
   caller's memory. Its start may not be aligned for large blocks; up to the first aligned address it holds only small
   ones. */
uint64_t gpu_beside_outputs(const ep_shape *shape, int64_t rows)
{
    const uint64_t weights_bytes = sizeof(float) * (uint64_t)shape->topk;
    return 2 * gpu_in_pool(gpu_routing_bytes(shape, shape->tokens)) +
           gpu_in_pool((uint64_t)rows * (uint64_t)shape->row_bytes) + gpu_in_pool((uint64_t)rows * weights_bytes) +
           MEM_POOL_LARGE_BYTES;
}

uint64_t gpu_routing_bytes(const ep_shape *shape, int64_t tokens)
{
    return gpu_routing_of(tokens, shape->ranks, shape->channels, shape->local_experts, shape->topk).total_bytes;
}

gpu_routing gpu_routing_at(const ep_routing *routing)
{
    return gpu_routing_of(routing->tokens, routing->ranks, routing->channels, routing->local_experts,
                          routing->keeps_slots ? routing->topk : 0);
}

/* In host memory: the counts that the caller may ask for. The block has all the rest. */
expar_status gpu_routing_make(executor *base, ep_routing *routing, int32_t most_targets)
{
    (void)most_targets;
    size_t n = (size_t)routing->ranks, cells = n * (size_t)routing->channels;
    routing->local_experts = routing->experts / routing->ranks;
    int32_t *arrays = calloc(cells + n + (size_t)routing->local_experts, sizeof *arrays);
    if (!arrays) return error_set(EXPAR_ERR_MEMORY, "no memory for the counts of a handle");
    expar_status status = gpu_take(base, NULL, gpu_routing_at(routing).total_bytes, &routing->own);
    if (status != EXPAR_OK) {
        free(arrays);
        return status;
    }
    routing->arrays = arrays;
    routing->channel_prefix = arrays;
    routing->rank_prefix = arrays + cells;
    routing->recv_expert_counts = arrays + cells + n;
    return EXPAR_OK;
}

expar_status gpu_map_make(executor *base, int64_t slots, mem_block **out)
{
    return gpu_take(base, NULL, ((uint64_t)slots + 1) * sizeof(int32_t), out);
}
