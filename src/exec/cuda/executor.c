/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor's object: its device memory, its pinned report, its operations. */
#include "exec/cuda/gpu.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(EXPAR_STATUS_INDEX == EXPAR_ERR_INDEX, "kernels and library disagree");
_Static_assert(EXPAR_BF16 == 1 && EXPAR_F16 == 2 && EXPAR_F32 == 3, "kernels know these values (number.h)");

static void gpu_destroy(executor *base)
{
    gpu_executor *self = gpu_of(base);
    if (cuda_enter(self->device) == EXPAR_OK) {
        gpu_order_await(self);
        cuda_leave();
    }
    gpu_endings_close(self);
    if (cuda_enter(self->device) == EXPAR_OK) {
        gpu_order_release(self);
        if (self->own_stream) cuda_driver()->StreamDestroy(self->own_stream);
        gpu_counts_free(self);
        cuda_leave();
    }
    sym_unlisten(self->sym, &self->listener);
    gpu_programs_close(self);
    gpu_scratch_give(self->stamp_memory);
    gpu_scratch_give(self->scratch);
    free(self);
}

static const executor_ops gpu_ops = {
    .name = "cuda",
    .layout = gpu_layout,
    .notify = gpu_notify,
    .dispatch = gpu_dispatch,
    .combine = gpu_combine,
    .expand = gpu_expand,
    .reduce = gpu_reduce,
    .destroy = gpu_destroy,
};

/* One block of device memory: where the heaps are, the state, the counts. */
static expar_status fill_memory(gpu_executor *self, cu_address memory, size_t heaps_bytes)
{
    const ep_shape *shape = &self->world.shape;
    size_t ranks = (size_t)shape->ranks, experts = ranks * (size_t)shape->local_experts;
    const cu_address at_state = memory + heaps_bytes, at_counts = at_state + EP_ALIGN_BYTES;
    const gpu_state state = {.bad_slot = ~0ull};
    self->world.heaps = (const uint64_t *)(uintptr_t)memory;
    self->world.state = (gpu_state *)(uintptr_t)at_state;
    self->expert_counts = (int32_t *)(uintptr_t)at_counts;
    expar_status status = CUDA_CALL(MemcpyHtoD, memory, device_heap_bases(self->heap), ranks * sizeof(cu_address));
    if (status == EXPAR_OK) status = CUDA_CALL(MemcpyHtoD, at_state, &state, sizeof state);
    if (status == EXPAR_OK) status = CUDA_CALL(MemsetD8, at_counts, 0, experts * sizeof(int32_t));
    return status == EXPAR_OK ? cuda_synchronize() : status;
}

/* That block, the pinned report with the counts behind it, and the event. */
static expar_status make_memory(gpu_executor *self)
{
    const ep_shape *shape = &self->world.shape;
    size_t ranks = (size_t)shape->ranks, experts = ranks * (size_t)shape->local_experts;
    size_t heaps_bytes = ep_round(ranks * sizeof(cu_address), EP_ALIGN_BYTES);
    size_t counts = ranks * ((size_t)shape->channels + 1) + (size_t)shape->local_experts;
    expar_status status = gpu_scratch_take(self->device, heaps_bytes + EP_ALIGN_BYTES + experts * sizeof(int32_t),
                                           sizeof(gpu_report) + counts * sizeof(int32_t), &self->scratch);
    if (status != EXPAR_OK) return status;
    self->report = self->scratch->pinned.host;
    self->world.report = (gpu_report *)(uintptr_t)self->scratch->pinned.device;
    status = fill_memory(self, self->scratch->memory, heaps_bytes);
    if (status == EXPAR_OK) status = gpu_counts_open(self);
    return status == EXPAR_OK ? gpu_order_hold(self) : status;
}

expar_status executor_cuda_create(device_heap *heap, sym *symmetric, const ep_shape *shape, uint64_t buffer,
                                  const executor_cuda_share *share, executor **out)
{
    gpu_executor *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    *self = (gpu_executor){.base.ops = &gpu_ops,
                           .heap = heap,
                           .device = device_heap_device(heap),
                           .sym = symmetric,
                           .num_sms = share->num_sms,
                           .shares_gpu = share->with_threads,
                           .world = {.shape = *shape,
                                     .space = ep_space_of(shape),
                                     .buffer = buffer,
                                     .timeout_ns = (uint64_t)symmetric->timeout_ms * 1000000u,
                                     .rank = symmetric->rank}};
    expar_status status = cuda_enter(self->device);
    if (status == EXPAR_OK) {
        status = make_memory(self);
        cuda_leave();
    }
    if (status == EXPAR_OK) status = gpu_programs_open(self);
    if (status != EXPAR_OK) {
        gpu_destroy(&self->base);
        return status;
    }
    gpu_listen(self);
    *out = &self->base;
    return EXPAR_OK;
}

uint64_t executor_cuda_routing_bytes(const ep_shape *shape, int64_t tokens)
{
    return gpu_routing_of(tokens, shape->ranks, shape->channels, shape->local_experts).total_bytes;
}

gpu_routing gpu_routing_at(const gpu_executor *self, const ep_routing *routing)
{
    const ep_shape *shape = &self->world.shape;
    return gpu_routing_of(routing->tokens, shape->ranks, shape->channels, shape->local_experts);
}
