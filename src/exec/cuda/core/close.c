/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a buffer on the GPU, in both modes. */
#include "base/knobs.h"
#include "exec/cuda/core/gpu.h"

void gpu_core_stop(gpu_core *self)
{
    gpu_order_await(self);
    gpu_endings_close(self);
    gpu_guard_release(self);
    if (cuda_enter(self->device) == EXPAR_OK) {
        gpu_order_release(self);
        if (self->own_stream) cuda_driver()->StreamDestroy(self->own_stream);
        cuda_leave();
    }
    sym_unlisten(self->sym, &self->listener);
}

void gpu_core_free(gpu_core *self)
{
    gpu_scratch_give(self->stamp_memory);
    if (!self->unsettled) gpu_scratch_give(self->scratch);
}

/* A rank that ends alone must not wait for work that is still on a stream. */
bool gpu_core_abandon(gpu_core *self, const char *what)
{
    if (gpu_endings_abandon(self, knob(KNOB_CUDA_ABANDON_NS))) return true;
    LOG(LOG_INFO, "%s is still on its stream: the buffer's memory stays", what);
    gpu_guard_release(self);
    sym_unlisten(self->sym, &self->listener);
    return false;
}
