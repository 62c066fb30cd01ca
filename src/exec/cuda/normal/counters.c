/* SPDX-License-Identifier: Apache-2.0 */
/* The memory in which notify counts for each expert on the GPU, and by which it tells the host. Graphs have its
 * addresses. So larger counters are made in addition, and the smaller ones stay until the buffer is destroyed. */
#include "base/knobs.h"
#include "exec/cuda/normal/normal_gpu.h"

#include <stdlib.h>

static int64_t experts_of(const ep_shape *shape)
{
    const int64_t experts = (int64_t)shape->ranks * shape->local_experts;
    const int64_t least = knob(KNOB_CUDA_FIRST_EXPERTS);
    return experts > least ? experts : least;
}

static expar_status counters_fill(gpu_executor *self, gpu_counters *one)
{
    const ep_shape *shape = &self->shape;
    const uint64_t bytes = (uint64_t)one->experts * sizeof(int32_t);
    const uint64_t told = (uint64_t)shape->ranks * ((uint64_t)shape->channels + 1) +
                          ((uint64_t)one->experts + (uint64_t)shape->ranks - 1) / (uint64_t)shape->ranks;
    expar_status status = gpu_scratch_take(self->core.device, bytes, told * sizeof(int32_t), &one->scratch);
    if (status == EXPAR_OK) status = CUDA_CALL(MemsetD8Async, one->scratch->memory, 0, bytes, self->core.own_stream);
    if (status == EXPAR_OK) status = gpu_own_stream_await(&self->core);
    return status == EXPAR_OK ? gpu_counts_open(self, one->experts) : status;
}

expar_status gpu_counters_make(gpu_executor *self, const ep_shape *shape, gpu_counters **out)
{
    *out = NULL;
    if (self->counters && experts_of(shape) <= self->counters->experts) return EXPAR_OK;
    gpu_counters *one = calloc(1, sizeof *one);
    if (!one) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of counters");
    one->experts = (int32_t)experts_of(shape);
    expar_status status = counters_fill(self, one);
    if (status == EXPAR_OK)
        *out = one;
    else
        gpu_counters_give(self, one);
    return status;
}

void gpu_counters_use(gpu_executor *self, gpu_counters *one)
{
    if (!one) return;
    one->before = self->counters;
    self->counters = one;
}

void gpu_counters_give(gpu_executor *self, gpu_counters *one)
{
    while (one) {
        gpu_counters *const before = one->before;
        if (!self->core.unsettled) gpu_scratch_give(one->scratch);
        free(one);
        one = before;
    }
}
