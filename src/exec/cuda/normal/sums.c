/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows that came back by themselves, for callers without a buffer: a kernel each on the caller's stream. */
#include "exec/cuda/normal/normal_gpu.h"

#define TERMS_THREADS 1024
#define SUM_THREADS   256

/* Launches kernel `number` with these arguments. */
static expar_status sums_launch(const gpu_loose *self, int number, void *args, uint32_t blocks, uint32_t threads,
                                cu_stream stream)
{
    void *parameters[] = {args};
    const cuda_launch launch = {
        .function = self->kernels[number], .stream = stream, .blocks = blocks, .threads = threads};
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = cuda_launch_kernel(&launch, parameters);
    cuda_leave();
    return status;
}

expar_status gpu_terms(const ep_terms_step *step)
{
    const gpu_loose *self;
    gpu_terms_args args = {.route = gpu_route_of(&step->route),
                           .tokens = step->tokens,
                           .topk = step->topk,
                           .experts = step->experts,
                           .key_experts = step->key_experts,
                           .node_experts = step->node_experts,
                           .each_slot = step->each_slot,
                           .terms = step->terms,
                           .terms_pitch = step->terms_pitch};
    expar_status status = gpu_loose_find(&gpu_loose_sums, step->device.index, &self);
    if (status != EXPAR_OK) return status;
    const uint32_t blocks = gpu_loose_blocks(self, step->experts / step->key_experts);
    return sums_launch(self, 0, &args, blocks, TERMS_THREADS, step->stream);
}

expar_status gpu_sum(const ep_sum_step *step)
{
    const gpu_loose *self;
    gpu_sum_args args = {.x = step->x,
                         .rows = step->rows,
                         .x_pitch_bytes = step->x_pitch_bytes,
                         .row_bytes = step->row_bytes,
                         .terms = step->terms,
                         .term_bytes = step->term_bytes,
                         .topk = step->topk,
                         .terms_pitch = step->terms_pitch,
                         .tokens = step->tokens,
                         .bias = {step->bias[0], step->bias[1]},
                         .bias_pitch_bytes = {step->bias_pitch_bytes[0], step->bias_pitch_bytes[1]},
                         .y = step->y,
                         .y_pitch_bytes = step->y_pitch_bytes,
                         .dtype = step->dtype};
    expar_status status = gpu_loose_find(&gpu_loose_sums, step->device.index, &self);
    if (status != EXPAR_OK) return status;
    return sums_launch(self, 1, &args, gpu_loose_blocks(self, step->tokens), SUM_THREADS, step->stream);
}
