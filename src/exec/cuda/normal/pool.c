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
    const executor *base = &self->core.base;
    const gpu_device_state *device_state = self->core.device_state;
    return bytes && base->grows && gpu_store_may_grow(device_state) &&
           mem_pool_reach(base->pool, &bytes, 1) > gpu_store_end(device_state);
}

void gpu_pool_note_vain(gpu_executor *self)
{
    if (++self->vain < knob(KNOB_CUDA_VAIN_REQUESTS)) return;
    self->vain = self->waits = 0;
    self->request_seen = __atomic_load_n(&self->core.report->requested, __ATOMIC_RELAXED);
    gpu_store_be_patient(self->core.device_state);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 3 }; /* that a call takes at a time */

/* Returns how far the store reaches with the blocks of a call and one more of the largest. Dispatches with a handle
   cannot let the store grow, and the output of an earlier dispatch is mostly still in use then. */
static uint64_t reach_with_spare(const gpu_executor *self, const uint64_t *bytes, int32_t count)
{
    uint64_t all[MOST_BLOCKS + 1] = {0};
    for (int32_t i = 0; i < count; i++) {
        all[i] = bytes[i];
        all[count] = bytes[i] > all[count] ? bytes[i] : all[count];
    }
    return mem_pool_reach(self->core.base.pool, all, (size_t)count + 1);
}

expar_status gpu_grow_pool(executor *base, const uint64_t *bytes, int32_t count)
{
    gpu_executor *self = gpu_of(base);
    gpu_core *core = &self->core;
    int mode;
    const uint64_t end = mem_pool_reach(base->pool, bytes, (size_t)count);
    const bool takes_spare = count && !self->limit_bytes && end > gpu_store_end(core->device_state);
    const uint64_t wanted = takes_spare ? reach_with_spare(self, bytes, count) : end;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return sym_out_of_step(core->sym, "the pool", status);
    status = gpu_store_resize(core->device_state, wanted);
    /* All ranks have agreed on this failure, and try again without spare memory. */
    if (status == EXPAR_ERR_MEMORY) status = gpu_store_resize(core->device_state, end);
    gpu_return_to_captures(mode);
    self->waits = self->vain = 0;
    if (status != EXPAR_ERR_MEMORY) {
        gpu_store_forget_patience(core->device_state);
        return status;
    }
    gpu_store_be_patient(core->device_state);
    LOG(LOG_INFO, "outputs come by the queue: %s", expar_last_error());
    return EXPAR_OK;
}

void gpu_trim(executor *base)
{
    gpu_store_trim(gpu_of(base)->core.device_state);
}
