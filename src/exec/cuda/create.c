/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor's object: its heap, its part of the GPU, its operations. */
#include "exec/cuda/create.h"
#include "exec/cuda/hosted/hosted.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "group/group.h"

#include <stdlib.h>

_Static_assert(EXPAR_STATUS_INDEX == EXPAR_ERR_INDEX, "kernels and library disagree");
_Static_assert(EXPAR_STATUS_ARGUMENT == EXPAR_ERR_ARGUMENT, "kernels and library disagree");
_Static_assert(EXPAR_BF16 == 1 && EXPAR_F16 == 2 && EXPAR_F32 == 3, "kernels know these values (number.h)");

static const char buffer_name[] = "the buffer";

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Ends all but the heap, also for a partly made executor. */
static void close_part(gpu_executor *self)
{
    gpu_core_stop(&self->core);
    gpu_counts_close(self);
    gpu_programs_close(self);
    gpu_counters_give(self, self->counters);
    gpu_core_free(&self->core);
    gpu_pool_close(self);
}

static void gpu_destroy(executor *base, bool sound, bool quiet)
{
    gpu_executor *self = gpu_of(base);
    const bool halted = atomic_load_explicit(&self->core.halted, memory_order_relaxed);
    if (halted && !gpu_core_abandon(&self->core, "expar_ep_abandon: a call of this rank's")) return;
    close_part(self);
    /* Peers' kernels may read here until all ranks have come and have waited for theirs. */
    bool all_quiet = sound && quiet && !self->core.unsettled;
    if (sound && device_heap_give(self->core.heap, buffer_name, self->core.place.buffer, &all_quiet) != EXPAR_OK)
        LOG(LOG_WARN, "expar_ep_destroy: %s", expar_last_error());
    if (sound) gpu_records_give(self, &all_quiet);
    free(self->old_records);
    gpu_device_state_leave(&self->core, all_quiet);
    free(self);
}

static const executor_ops gpu_ops = {
    GPU_CALL_OPS,       .name = "cuda",   .check = gpu_check,     .untold = gpu_untold, .retire = gpu_retire,
    .await = gpu_await, .time = gpu_time, .destroy = gpu_destroy, .take = gpu_take,
};

static const normal_ops gpu_normal_ops = {
    .stages = true,
    .unit_bytes = 16,
    .grows_apart = true,
    .times = gpu_times,
    .reach = gpu_reach,
    .unmap = gpu_unmap,
    .trim = gpu_trim,
    .routing_make = gpu_routing_make,
    .map_make = gpu_map_make,
    .prepare = gpu_prepare,
    .fits = gpu_fits,
    .grow = gpu_grow,
    .notify = gpu_notify,
    .grow_pool = gpu_grow_pool,
    .dispatch_send = gpu_dispatch_send,
    .dispatch_receive = gpu_dispatch_receive,
    .combine_send = gpu_combine_send,
    .combine_receive = gpu_combine_receive,
    .map = gpu_map,
    .arrange = gpu_arrange,
    .reduce = gpu_reduce,
    .sources = gpu_tell_sources,
    .tell_counts = gpu_tell_counts,
    .copy = gpu_copy,
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Clears the records. The heap's memory may have served another buffer: flags of old epochs must go before anybody can
   post. */
static expar_status clear_records(gpu_executor *self)
{
    expar_status status = cuda_enter(self->core.device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8Async, device_heap_at(self->core.heap, self->core.place.buffer), 0, self->space.slots,
                       self->core.own_stream);
    cuda_leave();
    return status == EXPAR_OK ? gpu_own_stream_await(&self->core) : status;
}

static expar_status make_memory(gpu_executor *self)
{
    expar_status status = cuda_enter(self->core.device);
    if (status != EXPAR_OK) return status;
    status = gpu_memory_open(self);
    cuda_leave();
    return status;
}

static expar_status gpu_make_part(gpu_executor *self, const executor_plan *plan, int32_t sharers)
{
    expar_status status = gpu_choose_sms(&self->core, plan->num_sms, KNOB_CUDA_SMS, sharers);
    self->core.base.sends_ahead = !self->core.shares_gpu;
    if (status == EXPAR_OK) status = gpu_read_orphan_time(&self->core.place);
    if (status == EXPAR_OK) status = gpu_own_stream_make(&self->core);
    if (status == EXPAR_OK) status = make_memory(self);
    if (status == EXPAR_OK) status = gpu_programs_open(self);
    if (status == EXPAR_OK) gpu_listen(&self->core);
    if (status == EXPAR_OK) status = gpu_guard_hold(&self->core);
    if (status == EXPAR_OK) status = gpu_pool_make(self, plan->pool_limit_bytes);
    return status == EXPAR_OK ? clear_records(self) : status;
}

/* Undoes a failed making. All ranks come here, or none. Other buffers may use the same per-GPU state. */
static void unmake(gpu_executor *self)
{
    bool quiet = !self->core.unsettled;
    close_part(self);
    if (self->core.place.buffer) device_heap_give(self->core.heap, buffer_name, self->core.place.buffer, &quiet);
    gpu_device_state_leave(&self->core, quiet);
}

/* Takes the memory, and makes all parts or none. On failure no kernel has used it on any rank. */
static expar_status gpu_make(gpu_executor *self, const executor_plan *plan)
{
    int32_t sharers = 0;
    expar_status status = gpu_device_state_enter(&self->core, plan->device.index, false);
    if (status != EXPAR_OK) return status;
    /* A pool that cannot grow needs at least one block. */
    if (!device_heap_grows(self->core.heap) && !self->shape.pool_bytes) {
        self->shape.pool_bytes = MEM_POOL_LARGE_BYTES;
        self->space = ep_space_of(&self->shape);
    }
    status = gpu_pool_take_records(self, "expar_ep_create");
    if (status == EXPAR_OK) status = gpu_count_sharers(&self->core, &sharers);
    if (status == EXPAR_OK) status = gpu_agree(&self->core, gpu_make_part(self, plan, sharers), NULL);
    if (status == EXPAR_OK) status = gpu_pool_start(self);
    if (status == EXPAR_OK) return EXPAR_OK;
    error_kept kept;
    error_keep(&kept, status);
    unmake(self);
    return error_restore(&kept);
}

static expar_status gpu_create(const executor_plan *plan, executor **out)
{
    sym *symmetric = plan->group->sym;
    if (!symmetric->all_mapped) return hosted_create(plan, out);
    gpu_executor *self = calloc(1, sizeof *self);
    if (!self) return sym_out_of_step(symmetric, buffer_name, error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory"));
    *self = (gpu_executor){.core = {.base = {.ops = &gpu_ops, .normal = &gpu_normal_ops},
                                    .group = plan->group,
                                    .sym = symmetric,
                                    .number = plan->number,
                                    .topic_kind = BOOT_KIND_BUFFER,
                                    .with_threads = plan->group->threads && plan->group->size > 1,
                                    .place = {.rank = symmetric->rank, .ranks = plan->shape->ranks}},
                           .given_slots = plan->ring_slots,
                           .shape = *plan->shape,
                           .space = ep_space_of(plan->shape)};
    expar_status status = gpu_make(self, plan);
    if (status != EXPAR_OK) {
        free(self);
        return status;
    }
    *out = &self->core.base;
    return EXPAR_OK;
}

/* The executor itself checks both bounds of num_sms, by the GPU's SMs (share_sms). */
const executor_kind executor_cuda = {.create = gpu_create,
                                     .count = gpu_count,
                                     .terms = gpu_terms,
                                     .sum = gpu_sum,
                                     .grows = true,
                                     .num_channels = KNOB_CUDA_CHANNELS,
                                     /* there the host carries calls out */
                                     .num_channels_across = KNOB_CPU_CHANNELS,
                                     .least_sms = INT32_MIN,
                                     .beside_outputs = gpu_beside_outputs,
                                     .hold_until = gpu_hold_until};
