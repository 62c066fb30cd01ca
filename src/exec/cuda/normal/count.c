/* SPDX-License-Identifier: Apache-2.0 */
/* The layout by itself, for callers without a buffer. */
#include "exec/cuda/normal/normal_gpu.h"

#define THREADS 256

/* The device has been entered. */
static expar_status clear(int32_t *counts, int32_t number, cu_stream stream)
{
    if (!counts) return EXPAR_OK;
    return CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)counts, 0, (size_t)number * sizeof *counts, stream);
}

static expar_status launch(const gpu_loose *self, gpu_count_args *args, cu_stream stream)
{
    const uint32_t blocks = gpu_loose_blocks(self, (args->tokens + THREADS - 1) / THREADS);
    void *parameters[] = {args};
    cuda_launch launch = {.function = self->kernels[0], .stream = stream, .blocks = blocks, .threads = THREADS};
    if (args->shared_counts) launch.shared_bytes = (uint32_t)args->experts * sizeof(int32_t);
    return blocks ? cuda_launch_kernel(&launch, parameters) : EXPAR_OK;
}

expar_status gpu_count(const ep_count_step *step)
{
    const gpu_loose *self;
    gpu_count_args args = {.route = gpu_route_of(&step->route),
                           .tokens = step->tokens,
                           .topk = step->topk,
                           .experts = step->experts,
                           .ranks = step->ranks,
                           .nodes = step->nodes,
                           .tokens_per_rank = step->tokens_per_rank,
                           .tokens_per_node = step->tokens_per_node,
                           .tokens_per_expert = step->tokens_per_expert,
                           .token_in_rank = step->token_in_rank};
    args.shared_counts = args.tokens_per_expert && (size_t)args.experts * sizeof(int32_t) <= GPU_SHARED_COUNTS;
    expar_status status = gpu_loose_find(&gpu_loose_counts, step->device.index, &self);
    if (status == EXPAR_OK) status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = clear(step->tokens_per_rank, step->ranks, step->stream);
    if (status == EXPAR_OK) status = clear(step->tokens_per_node, step->nodes, step->stream);
    if (status == EXPAR_OK) status = clear(step->tokens_per_expert, step->experts, step->stream);
    if (status == EXPAR_OK) status = launch(self, &args, step->stream);
    cuda_leave();
    return status;
}
