/* SPDX-License-Identifier: Apache-2.0 */
/* Small memory that one executor after another uses. */
#include "exec/cuda/core/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpu_scratch *all; /* guarded by lock */

static void scratch_destroy(gpu_scratch *self)
{
    if (cuda_enter(self->device) == EXPAR_OK) {
        if (self->memory) cuda_driver()->MemFree(self->memory);
        mem_pinned_free(&self->pinned);
        cuda_leave();
    }
    cuda_device_close(self->device);
    free(self);
}

static expar_status scratch_create(const cuda_device *device, uint64_t memory_bytes, uint64_t pinned_bytes,
                                   gpu_scratch **out)
{
    gpu_scratch *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for an executor's scratch");
    expar_status status = cuda_device_open(device->index, &self->device);
    if (status != EXPAR_OK) {
        free(self);
        return status;
    }
    status = cuda_enter(self->device);
    if (status == EXPAR_OK) {
        self->memory_bytes = memory_bytes;
        status = CUDA_CALL(MemAlloc, &self->memory, memory_bytes);
        if (status == EXPAR_OK) status = mem_pinned_create(pinned_bytes, &self->pinned);
        cuda_leave();
    }
    if (status == EXPAR_OK)
        *out = self;
    else
        scratch_destroy(self);
    return status;
}

expar_status gpu_scratch_take(const cuda_device *device, uint64_t memory_bytes, uint64_t pinned_bytes,
                              gpu_scratch **out)
{
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&lock);
    gpu_scratch *found = all;
    while (found && (found->used || found->device->index != device->index || found->memory_bytes < memory_bytes ||
                     found->pinned.bytes < pinned_bytes))
        found = found->next;
    if (!found) {
        status = scratch_create(device, memory_bytes, pinned_bytes, &found);
        if (status == EXPAR_OK) {
            found->next = all;
            all = found;
        }
    }
    if (status == EXPAR_OK) {
        memset(found->pinned.host, 0, found->pinned.bytes);
        found->used = true;
        *out = found;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void gpu_scratch_give(gpu_scratch *self)
{
    if (!self) return;
    const int32_t index = self->device->index;
    bool used = false;
    pthread_mutex_lock(&lock);
    self->used = false;
    for (const gpu_scratch *s = all; s; s = s->next)
        used |= s->used && s->device->index == index;
    for (gpu_scratch **place = &all; *place && !used;) {
        gpu_scratch *s = *place;
        if (s->device->index != index) {
            place = &s->next;
            continue;
        }
        *place = s->next;
        scratch_destroy(s);
    }
    pthread_mutex_unlock(&lock);
}
