/* SPDX-License-Identifier: Apache-2.0 */
/* The layout by itself, for callers without a buffer. Each GPU that was asked for has one kernel, which is kept until
 * the process ends. */
#include "exec/cuda/normal/normal_gpu.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS 256

typedef struct counter {
    struct counter *next;
    cuda_device *device;
    cuda_program *program;
    cu_function kernel;
} counter;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static counter *counters; /* guarded by lock; entries are complete and stay */

static counter *counter_find(int32_t index)
{
    pthread_mutex_lock(&lock);
    counter *one = counters;
    while (one && one->device->index != index)
        one = one->next;
    pthread_mutex_unlock(&lock);
    return one;
}

static expar_status counter_load(counter *self)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    status = cuda_program_load(self->device, "normal/counts.cu", NULL, 0, &self->program);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->program, "ep_count", 0, &self->kernel);
    gpu_return_to_captures(mode);
    return status;
}

/* Frees a counter that is not in the list. Members that it lacks are NULL. */
static void counter_free(counter *self)
{
    cuda_program_release(self->program);
    cuda_device_close(self->device);
    free(self);
}

/* Makes a counter for a GPU. Two threads may make one for the same GPU. They share the program, and both entries are
   valid. */
static expar_status counter_make(int32_t index, counter **out)
{
    counter *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for a layout's kernel");
    expar_status status = cuda_device_open(index, &self->device);
    if (status == EXPAR_OK) status = counter_load(self);
    if (status != EXPAR_OK) {
        counter_free(self);
        return status;
    }
    pthread_mutex_lock(&lock);
    self->next = counters;
    counters = self;
    pthread_mutex_unlock(&lock);
    *out = self;
    return EXPAR_OK;
}

static expar_status counter_for(int32_t index, counter **out)
{
    *out = counter_find(index);
    return *out ? EXPAR_OK : counter_make(index, out);
}

expar_status gpu_count_open(int32_t index)
{
    counter *unused;
    return counter_for(index, &unused);
}

/* The device has been entered. */
static expar_status clear(int32_t *counts, int32_t number, cu_stream stream)
{
    if (!counts) return EXPAR_OK;
    return CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)counts, 0, (size_t)number * sizeof *counts, stream);
}

static expar_status launch(const counter *self, gpu_count_args *args, cu_stream stream)
{
    int64_t blocks = (args->tokens + THREADS - 1) / THREADS, most = 8 * (int64_t)self->device->num_sms;
    void *parameters[] = {args};
    cuda_launch launch = {.function = self->kernel,
                          .stream = stream,
                          .blocks = (uint32_t)(blocks < most ? blocks : most),
                          .threads = THREADS};
    if (args->shared_counts) launch.shared_bytes = (uint32_t)args->experts * sizeof(int32_t);
    return blocks ? cuda_launch_kernel(&launch, parameters) : EXPAR_OK;
}

expar_status gpu_count(const ep_count_step *step)
{
    counter *self;
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
    expar_status status = counter_for(step->device.index, &self);
    if (status == EXPAR_OK) status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = clear(step->tokens_per_rank, step->ranks, step->stream);
    if (status == EXPAR_OK) status = clear(step->tokens_per_node, step->nodes, step->stream);
    if (status == EXPAR_OK) status = clear(step->tokens_per_expert, step->experts, step->stream);
    if (status == EXPAR_OK) status = launch(self, &args, step->stream);
    cuda_leave();
    return status;
}
