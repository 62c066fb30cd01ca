/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer's pool in the store of its per-GPU state (core/store.c), and its records in the symmetric part of the
 * heap. */
#include "base/knobs.h"
#include "exec/cuda/core/device_state.h"
#include "exec/cuda/normal/normal_gpu.h"

/* ---- with the buffer --------------------------------------------------------------------------------------------- */

expar_status gpu_pool_take_records(gpu_executor *self, const char *what)
{
    gpu_core *core = &self->core;
    const uint64_t bytes = device_heap_grows(core->heap) ? self->space.pool : self->space.total_bytes;
    return device_heap_take(core->heap, what, bytes, 4096, &core->place.buffer);
}

expar_status gpu_pool_make(gpu_executor *self, uint64_t limit_bytes)
{
    gpu_core *core = &self->core;
    expar_status status = gpu_store_open(core->device_state, gpu_order_places(core->order),
                                         core->place.buffer + self->space.pool, self->shape.pool_bytes);
    self->limit_bytes = limit_bytes;
    return status == EXPAR_OK ? mem_pool_create_in(core->device_state->store, limit_bytes, 0, &core->base.pool)
                              : status;
}

uint64_t gpu_pool_bytes(const gpu_executor *self)
{
    return self->limit_bytes ? self->limit_bytes : gpu_store_bytes(self->core.device_state);
}

expar_status gpu_pool_start(gpu_executor *self)
{
    gpu_device_state *device_state = self->core.device_state;
    if (!device_heap_grows(device_state->heap)) return EXPAR_OK;
    const uint64_t held = device_heap_own_bytes(device_state->heap);
    self->core.base.grows = true;
    self->start_bytes = self->shape.pool_bytes;
    device_state->start_bytes += self->start_bytes;
    return gpu_store_grow(device_state, device_state->start_bytes > held ? device_state->start_bytes - held : 0);
}

void gpu_pool_close(gpu_executor *self)
{
    gpu_core *core = &self->core;
    mem_pool_close(core->base.pool);
    core->base.pool = NULL;
    if (core->device_state) core->device_state->start_bytes -= self->start_bytes;
    self->start_bytes = 0;
}

/* ---- calls that need not wait ---------------------------------------------------------------------------------------
 *
 * Pools grow in a call in which all hosts wait. A rank that requests growth waits. The others learn of the request when
 * their kernels have read its header, and then wait in their next calls. The request is repeated until it is met, so it
 * does not matter how late they learn of it. */

bool gpu_pool_requests(const gpu_executor *self)
{
    return gpu_store_requests(self->core.device_state);
}

bool gpu_pool_awaits_growth(gpu_executor *self, ep_growth growth)
{
    const uint64_t requested = __atomic_load_n(&self->core.report->requested, __ATOMIC_RELAXED);
    if (requested != self->request_seen) self->waits = (int32_t)knob(KNOB_CUDA_REQUEST_CALLS);
    self->request_seen = requested;
    if (growth == EP_GROWTH_NONE) return false;
    if (growth == EP_GROWTH_REQUESTED) return true;
    return self->waits > 0 && self->waits--;
}

bool gpu_pool_lacks(const gpu_executor *self, uint64_t bytes)
{
    return gpu_store_lacks(&self->core, bytes);
}

void gpu_pool_note_vain(gpu_executor *self)
{
    if (++self->vain < knob(KNOB_CUDA_VAIN_REQUESTS)) return;
    self->vain = self->waits = 0;
    self->request_seen = __atomic_load_n(&self->core.report->requested, __ATOMIC_RELAXED);
    gpu_store_be_patient(self->core.device_state);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

expar_status gpu_grow_pool(executor *base, const uint64_t *bytes, int32_t count)
{
    gpu_executor *self = gpu_of(base);
    bool failed = false;
    self->waits = self->vain = 0;
    return gpu_store_grow_pool(&self->core, self->limit_bytes != 0, bytes, count, &failed);
}

void gpu_trim(executor *base)
{
    gpu_store_trim(gpu_of(base)->core.device_state);
}
