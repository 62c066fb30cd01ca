/* SPDX-License-Identifier: Apache-2.0 */
/* Records and rings of buffers without limits. They grow to hold the forms of the calls that come.
 *
 * If they do not hold a call, it opens with headers that carry only its form. These run on a stream of the executor,
 * after the rank's earlier calls. If all forms are the same, all earlier calls of all ranks have ended by then. The
 * hosts of all ranks then take larger records together, and use them from then on. The old records stay unchanged until
 * the buffer is destroyed, since graphs that were captured before use them. */
#include "exec/cuda/normal/normal_gpu.h"

#include <stdlib.h>

static const char records_name[] = "the buffer's records";

bool gpu_fits(executor *base, const ep_form *form, int64_t row_bytes)
{
    const ep_shape *shape = &gpu_of(base)->shape;
    return row_bytes <= shape->row_bytes && form->scales <= shape->scales && form->topk <= shape->topk &&
           form->experts / shape->ranks <= shape->local_experts;
}

/* Returns the shape that holds both the present records and the call. */
static ep_shape gpu_shape_for(const gpu_executor *self, const ep_grow_step *step)
{
    ep_shape shape = ep_shape_with(&self->shape, step);
    if (shape.row_bytes > 0)
        shape.ring_slots = self->given_slots ? self->given_slots : ep_ring_slots_for(shape.row_bytes);
    return shape;
}

/* ---- all ranks together ------------------------------------------------------------------------------------------ */

/* Flags of old epochs must be cleared before anybody can post. */
static expar_status records_clear(gpu_executor *self, uint64_t offset, uint64_t bytes)
{
    expar_status status =
        CUDA_CALL(MemsetD8Async, device_heap_at(self->core.heap, offset), 0, bytes, self->core.own_stream);
    return status == EXPAR_OK ? gpu_own_stream_await(&self->core) : status;
}

/* Reserves the entry for the old records, and makes what a rank has by itself. */
static expar_status records_prepare(gpu_executor *self, const ep_shape *shape, gpu_counters **counters)
{
    uint64_t *old = realloc(self->old_records, (self->num_old_records + 1) * sizeof *old);
    if (!old) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    self->old_records = old;
    return gpu_counters_make(self, shape, counters);
}

/* Makes this rank's part. *counters is NULL on error, or if the present counters suffice. */
static expar_status records_make(gpu_executor *self, const ep_shape *shape, uint64_t offset, gpu_counters **counters)
{
    *counters = NULL;
    expar_status status = cuda_enter(self->core.device);
    if (status != EXPAR_OK) return status;
    status = records_clear(self, offset, ep_space_of(shape).slots);
    if (status == EXPAR_OK) status = records_prepare(self, shape, counters);
    cuda_leave();
    return status;
}

/* If one rank lacks memory, all ranks get the error. */
static expar_status records_agree(const gpu_executor *self, expar_status own)
{
    const boot_matter matter = {.what = records_name,
                                .rejected = "could not make its part",
                                .common = EXPAR_ERR_MEMORY,
                                .lacks = "has no memory for its part"};
    return sym_agree(self->core.sym, &matter, own);
}

static expar_status records_replace(gpu_executor *self, const ep_shape *shape)
{
    const ep_space space = ep_space_of(shape);
    uint64_t offset;
    expar_status status = device_heap_take(self->core.heap, records_name, space.pool, 4096, &offset);
    if (status != EXPAR_OK) return status;
    gpu_counters *counters;
    status = records_agree(self, records_make(self, shape, offset, &counters));
    if (status != EXPAR_OK) {
        error_kept kept;
        error_keep(&kept, status);
        gpu_counters_give(self, counters);
        device_heap_give(self->core.heap, records_name, offset, NULL);
        return error_restore(&kept);
    }
    gpu_counters_use(self, counters);
    self->old_records[self->num_old_records++] = self->core.place.buffer;
    self->core.place.buffer = offset;
    self->shape = *shape;
    self->space = space;
    return EXPAR_OK;
}

void gpu_records_give(gpu_executor *self, bool *quiet)
{
    for (size_t i = 0; i < self->num_old_records; i++)
        if (device_heap_give(self->core.heap, records_name, self->old_records[i], quiet) != EXPAR_OK)
            LOG(LOG_WARN, "expar_ep_destroy: %s", expar_last_error());
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static expar_status check_growth(const gpu_executor *self, const ep_grow_step *step)
{
    if (device_heap_grows(self->core.heap)) return EXPAR_OK;
    return error_set(EXPAR_ERR_LIMIT,
                     "rows of %lld bytes, top-k %d and %d experts: by CUDA IPC records do not grow; give "
                     "config.max_row_bytes, max_scales, max_topk and max_experts",
                     (long long)step->row_bytes, step->form.topk, step->form.experts);
}

/* Opens the growth, and ends its use of its stream, which is the buffer's own. The call that grows goes on with the
   caller's stream. */
static expar_status exchange_forms(gpu_executor *self, const ep_grow_step *step, ep_vote *vote)
{
    const expar_status own = check_growth(self, step);
    ep_rejection rejection = {0};
    exec_call call = {.asked = true};
    ep_notify_step notify = {.epoch = step->epoch, .form = step->form, .vote = {.rank = -1}};
    void *const called_on = self->core.called_on;
    if (own != EXPAR_OK) notify.rejection = rejection = ep_rejection_of(own);
    expar_status status = gpu_notify(&self->core.base, &call, &notify);
    expar_status ended = gpu_end(&self->core.base, &call);
    self->core.called_on = called_on;
    *vote = notify.vote;
    /* A rank that rejects the call reports its own error, even if others reject it, too. */
    if (own != EXPAR_OK) *vote = (ep_vote){.rank = self->core.place.rank, .reason = rejection};
    return status == EXPAR_OK ? ended : status;
}

/* Lack of memory is no failure of the executor: all ranks know of it. */
static void tell_lack(const gpu_executor *self, expar_status status, ep_vote *vote)
{
    *vote = (ep_vote){.rank = self->core.place.rank, .reason = ep_rejection_of(status)};
}

/* A call that waits for its counts grows the pool when it knows them. A call that does not wait must grow it now. */
static expar_status grow_pool_for(gpu_executor *self, const ep_grow_step *step)
{
    uint64_t bytes[MEM_POOL_MOST_REACHED];
    int32_t count = 0;
    if (step->count && step->tokens >= 0) bytes[count++] = gpu_routing_bytes(&self->shape, step->tokens);
    for (int32_t i = 0; i < step->count && count < MEM_POOL_MOST_REACHED; i++)
        bytes[count++] = step->bytes[i];
    return gpu_grow_pool(&self->core.base, bytes, count);
}

expar_status gpu_grow(executor *base, exec_call *call, const ep_grow_step *step, ep_vote *vote)
{
    (void)call;
    gpu_executor *self = gpu_of(base);
    if (self->core.capturing) return gpu_reject_growth(step);
    expar_status status = exchange_forms(self, step, vote);
    if (status != EXPAR_OK || vote->rank >= 0) return status;
    const ep_shape shape = gpu_shape_for(self, step);
    status = records_replace(self, &shape);
    if (status == EXPAR_OK) return grow_pool_for(self, step);
    if (status != EXPAR_ERR_MEMORY) return status;
    tell_lack(self, status, vote);
    return EXPAR_OK;
}
