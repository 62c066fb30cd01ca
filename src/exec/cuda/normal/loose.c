/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of calls without a buffer. Each GPU that was asked for has a program's kernels, which are kept until the
 * process ends. */
#include "exec/cuda/normal/normal_gpu.h"

#include <pthread.h>
#include <stdlib.h>

struct gpu_loose_program {
    const char *file;
    const char *kernels[GPU_LOOSE_KERNELS]; /* NULL: none */
    gpu_loose *loaded;                      /* guarded by lock; entries are complete and stay */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
gpu_loose_program gpu_loose_counts = {.file = "normal/counts.cu", .kernels = {"ep_count"}};
gpu_loose_program gpu_loose_sums = {.file = "normal/sums.cu", .kernels = {"ep_find_terms", "ep_sum_terms"}};

static gpu_loose *find_loaded(const gpu_loose_program *program, int32_t index)
{
    pthread_mutex_lock(&lock);
    gpu_loose *one = program->loaded;
    while (one && one->device->index != index)
        one = one->next;
    pthread_mutex_unlock(&lock);
    return one;
}

static expar_status load(const gpu_loose_program *program, gpu_loose *self)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    status = cuda_program_load(self->device, program->file, NULL, 0, &self->program);
    for (int i = 0; status == EXPAR_OK && i < GPU_LOOSE_KERNELS && program->kernels[i]; i++)
        status = cuda_program_kernel(self->program, program->kernels[i], 0, &self->kernels[i]);
    gpu_return_to_captures(mode);
    return status;
}

/* Frees kernels that are not in the list. Members that they lack are NULL. */
static void loose_free(gpu_loose *self)
{
    cuda_program_release(self->program);
    cuda_device_close(self->device);
    free(self);
}

/* Two threads may load a program for the same GPU. They share it, and both entries are valid. */
static expar_status make(gpu_loose_program *program, int32_t index, const gpu_loose **out)
{
    gpu_loose *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for the kernels of %s", program->file);
    expar_status status = cuda_device_open(index, &self->device);
    if (status == EXPAR_OK) status = load(program, self);
    if (status != EXPAR_OK) {
        loose_free(self);
        return status;
    }
    pthread_mutex_lock(&lock);
    self->next = program->loaded;
    program->loaded = self;
    pthread_mutex_unlock(&lock);
    *out = self;
    return EXPAR_OK;
}

expar_status gpu_loose_find(gpu_loose_program *program, int32_t device, const gpu_loose **out)
{
    *out = find_loaded(program, device);
    return *out ? EXPAR_OK : make(program, device, out);
}

uint32_t gpu_loose_blocks(const gpu_loose *self, int64_t wanted)
{
    const int64_t most = 8 * (int64_t)self->device->num_sms;
    return (uint32_t)(wanted < most ? wanted : most);
}
