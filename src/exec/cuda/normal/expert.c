/* SPDX-License-Identifier: Apache-2.0 */
/* Expert-major rows on the GPU. All sizes are known on the device only: kernels are launched for the space of the
 * output, and stop at the rows that came. */
#include "exec/cuda/normal/normal_gpu.h"

#define THREADS 256

static uint8_t *part(const ep_routing *routing, uint64_t offset)
{
    return (uint8_t *)routing->own->data + offset;
}

/* Local work may use the whole GPU, with a warp for each row. */
static uint32_t blocks_for(const gpu_executor *self, int64_t rows)
{
    int64_t warps = THREADS / 32, blocks = (rows + warps - 1) / warps, most = 8 * (int64_t)self->core.device->num_sms;
    return (uint32_t)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

expar_status gpu_copy(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes)
{
    gpu_executor *self = gpu_of(base);
    if (bytes == 0) return EXPAR_OK;
    expar_status status = gpu_enter(&self->core, call);
    if (status != EXPAR_OK) return status;
    gpu_order_settle(&self->core, call);
    status =
        CUDA_CALL(MemcpyAsync, (cu_address)(uintptr_t)dest, (cu_address)(uintptr_t)source, (size_t)bytes, call->stream);
    gpu_leave(call);
    return status;
}

expar_status gpu_map(executor *base, exec_call *call, const ep_map_step *step)
{
    gpu_executor *self = gpu_of(base);
    const ep_routing *routing = step->routing;
    gpu_routing at = gpu_routing_at(routing);
    gpu_map_args args = {.idx = step->idx,
                         .idx_bytes = step->idx_bytes,
                         .topk = routing->topk,
                         .local_experts = routing->local_experts,
                         .alignment = step->alignment,
                         .expert_counts = (const int32_t *)part(routing, at.recv_expert_counts),
                         .rank_prefix = (const int32_t *)part(routing, at.rank_prefix),
                         .ranks = routing->ranks,
                         .rows = step->rows,
                         .expert_rows = step->expert_rows,
                         .first_expert = step->first_expert,
                         .map = step->map,
                         .brought = step->again ? &self->core.place.state->brought : NULL};
    return gpu_launch(&self->core, call, self->map_kernel, blocks_for(self, routing->local_experts), THREADS, 0, &args);
}

static expar_status launch_expand(gpu_executor *self, const exec_call *call, const ep_arrange_step *step)
{
    const ep_routing *routing = step->routing;
    gpu_expand_args args = {.map = step->map,
                            .rows = step->rows,
                            .rank_prefix = (const int32_t *)part(routing, gpu_routing_at(routing).rank_prefix),
                            .ranks = routing->ranks,
                            .topk = step->topk,
                            .x = step->x,
                            .scales = step->scales,
                            .out_x = step->out_x,
                            .out_scales = step->out_scales,
                            .row_bytes = step->row_bytes,
                            .scale_bytes = step->scale_bytes,
                            .weights = (const uint32_t *)step->weights,
                            .out_weights = (uint32_t *)step->out_weights,
                            .out_pitch = step->out_pitch};
    return gpu_launch(&self->core, call, self->expand_kernel, blocks_for(self, step->rows), THREADS, 0, &args);
}

static expar_status launch_columns(gpu_executor *self, const exec_call *call, const ep_arrange_step *step)
{
    const ep_routing *routing = step->routing;
    gpu_columns_args args = {.scales = step->scales,
                             .out = step->out_scales,
                             .rows = step->rows,
                             .pitch = step->out_pitch,
                             .rank_prefix = (const int32_t *)part(routing, gpu_routing_at(routing).rank_prefix),
                             .ranks = routing->ranks,
                             .num_scales = (int32_t)(step->scale_bytes / 4)};
    return gpu_launch(&self->core, call, self->columns_kernel, blocks_for(self, step->rows), THREADS, 0, &args);
}

static expar_status launch_padding(gpu_executor *self, const exec_call *call, const ep_arrange_step *step)
{
    const ep_routing *routing = step->routing;
    gpu_routing at = gpu_routing_at(routing);
    gpu_padding_args args = {.expert_counts = (const int32_t *)part(routing, at.recv_expert_counts),
                             .local_experts = routing->local_experts,
                             .alignment = step->alignment,
                             .map = step->map,
                             .map_rows = step->rows,
                             .rank_prefix = (const int32_t *)part(routing, at.rank_prefix),
                             .ranks = routing->ranks,
                             .topk = routing->topk,
                             .rows = step->out_rows,
                             .x = step->out_x,
                             .scales = step->out_scales,
                             .row_bytes = step->row_bytes,
                             .scale_bytes = step->scale_bytes,
                             .weights = (uint8_t *)step->out_weights,
                             .scales_pitch = step->out_pitch};
    return gpu_launch(&self->core, call, self->padding_kernel, (uint32_t)routing->local_experts, THREADS, 0, &args);
}

expar_status gpu_arrange(executor *base, exec_call *call, const ep_arrange_step *step)
{
    gpu_executor *self = gpu_of(base);
    if (!step->map) return launch_columns(self, call, step);
    expar_status status = launch_expand(self, call, step);
    return status == EXPAR_OK && step->pads ? launch_padding(self, call, step) : status;
}

expar_status gpu_tell_sources(executor *base, exec_call *call, const ep_sources_step *step)
{
    gpu_executor *self = gpu_of(base);
    const ep_routing *routing = step->routing;
    gpu_sources_args args = {.src = step->src,
                             .map = step->map,
                             .rows = step->rows,
                             .rank_prefix = (const int32_t *)part(routing, gpu_routing_at(routing).rank_prefix),
                             .ranks = routing->ranks,
                             .topk = step->topk,
                             .stride = step->stride,
                             .out = step->out};
    return gpu_launch(&self->core, call, self->sources_kernel, blocks_for(self, step->rows), THREADS, 0, &args);
}

expar_status gpu_reduce(executor *base, exec_call *call, const ep_reduce_step *step)
{
    gpu_executor *self = gpu_of(base);
    const ep_routing *routing = step->routing;
    gpu_reduce_args args = {.map = step->map,
                            .rows = step->rows,
                            .rank_prefix = (const int32_t *)part(routing, gpu_routing_at(routing).rank_prefix),
                            .ranks = routing->ranks,
                            .topk = step->topk,
                            .x = step->x,
                            .x_pitch_bytes = step->x_pitch_bytes,
                            .row_bytes = step->row_bytes,
                            .weights = step->weights,
                            .weights_pitch = step->weights_pitch,
                            .out = step->out,
                            .row_weights = step->row_weights,
                            .row_weights_pitch = step->row_weights_pitch,
                            .out_weights = step->out_weights,
                            .dtype = step->dtype};
    return gpu_launch(&self->core, call, self->reduce_kernel, blocks_for(self, step->rows), THREADS, 0, &args);
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

#define TELL_THREADS 32

gpu_tell_args gpu_tell_args_of(const ep_counts_step *step)
{
    const ep_routing *routing = step->routing;
    gpu_routing at = gpu_routing_at(routing);
    return (gpu_tell_args){.expert_counts = (const int32_t *)part(routing, at.recv_expert_counts),
                           .routing_prefix = (const int32_t *)part(routing, at.rank_prefix),
                           .local_experts = routing->local_experts,
                           .ranks = routing->ranks,
                           .alignment = step->alignment,
                           .rows = step->rows,
                           .tokens_per_expert = step->tokens_per_expert,
                           .expert_prefix = step->expert_prefix,
                           .rank_prefix = step->rank_prefix,
                           .num_recv_tokens = step->num_recv_tokens,
                           .expert_ends = step->expert_ends};
}

expar_status gpu_tell_counts(executor *base, exec_call *call, const ep_counts_step *step)
{
    gpu_executor *self = gpu_of(base);
    gpu_tell_args args = gpu_tell_args_of(step);
    return gpu_launch(&self->core, call, self->tell_kernel, 1, TELL_THREADS, 0, &args);
}
