/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor's object: its heap, its part of the GPU, its operations. */
#include "exec/cuda/create.h"
#include "exec/cuda/core/gpu.h"
#include "group/group.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(EXPAR_STATUS_INDEX == EXPAR_ERR_INDEX, "kernels and library disagree");
_Static_assert(EXPAR_STATUS_ARGUMENT == EXPAR_ERR_ARGUMENT, "kernels and library disagree");
_Static_assert(EXPAR_BF16 == 1 && EXPAR_F16 == 2 && EXPAR_F32 == 3, "kernels know these values (number.h)");

/* A channel is what keeps a block busy that moves rows by the queue. */
#define DEFAULT_CHANNELS 24
/* Enough to saturate the links (docs/performance.md). */
#define DEFAULT_SMS 24
/* Of kernels whose own host has stopped. */
#define ORPHAN_MS ((int64_t)3600 * 1000)

static const char buffer_name[] = "the buffer";

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* All but the heap; of one that was made in part, too. */
static void close_part(gpu_executor *self)
{
    gpu_order_await(self);
    gpu_endings_close(self);
    gpu_guard_release(self);
    if (cuda_enter(self->device) == EXPAR_OK) {
        gpu_order_release(self);
        if (self->own_stream) cuda_driver()->StreamDestroy(self->own_stream);
        gpu_counts_free(self);
        cuda_leave();
    }
    sym_unlisten(self->sym, &self->listener);
    gpu_programs_close(self);
    gpu_scratch_give(self->stamp_memory);
    gpu_counters_give(self, self->counters);
    if (!self->unsettled) gpu_scratch_give(self->scratch);
    mem_pool_close(self->base.pool);
    self->base.pool = NULL;
}

/* Of a buffer that was abandoned: nobody may be kept waiting for what is still on a stream. */
#define ABANDONED_NS ((int64_t)100 * 1000 * 1000)

static void gpu_destroy(executor *base, bool sound, bool quiet)
{
    gpu_executor *self = gpu_of(base);
    if (atomic_load_explicit(&self->halted, memory_order_relaxed) && !gpu_endings_abandon(self, ABANDONED_NS)) {
        LOG(LOG_INFO, "expar_ep_abandon: a call of this rank's is still on its stream: the buffer's memory stays");
        gpu_guard_release(self);
        sym_unlisten(self->sym, &self->listener);
        return;
    }
    close_part(self);
    /* Peers' kernels may still read here until all ranks have come, and waited for theirs. */
    bool all_quiet = sound && quiet && !self->unsettled;
    if (sound && device_heap_give(self->heap, buffer_name, self->world.buffer, &all_quiet) != EXPAR_OK)
        LOG(LOG_WARN, "expar_ep_destroy: %s", expar_last_error());
    if (sound) gpu_records_give(self, &all_quiet);
    free(self->old_records);
    gpu_home_leave(self, all_quiet);
    free(self);
}

static const executor_ops gpu_ops = {
    .name = "cuda",
    .streams = true,
    .stages = true,
    .unit_bytes = 16,
    .grows_apart = true,
    .check = gpu_check,
    .untold = gpu_untold,
    .halt = gpu_halt,
    .retire = gpu_retire,
    .await = gpu_await,
    .time = gpu_time,
    .times = gpu_times,
    .destroy = gpu_destroy,
    .reaches = gpu_reaches,
    .map_caller = gpu_map_caller,
    .unmap_caller = gpu_unmap_caller,
    .take = gpu_take,
    .lacks = gpu_lacks,
    .trim = gpu_trim,
    .routing_make = gpu_routing_make,
    .map_make = gpu_map_make,
    .begin = gpu_begin,
    .prepare = gpu_prepare,
    .fits = gpu_fits,
    .grow = gpu_grow,
    .keep = gpu_keep,
    .follows = gpu_follows,
    .join = gpu_join,
    .place = gpu_place,
    .notify = gpu_notify,
    .grow_pool = gpu_grow_pool,
    .dispatch_send = gpu_dispatch_send,
    .dispatch_receive = gpu_dispatch_receive,
    .combine_send = gpu_combine_send,
    .combine_receive = gpu_combine_receive,
    .map = gpu_map,
    .expand = gpu_expand,
    .pad = gpu_pad,
    .reduce = gpu_reduce,
    .columns = gpu_columns,
    .sources = gpu_tell_sources,
    .tell_counts = gpu_tell_counts,
    .copy = gpu_copy,
    .end = gpu_end,
    .tell = gpu_tell,
};

/* ---- this rank's share of its GPU -------------------------------------------------------------------------------- */

expar_status gpu_agree(const gpu_executor *self, expar_status own, cu_uuid *uuids)
{
    const boot_matter matter = {.what = buffer_name,
                                .refused = "could not make its part",
                                .mine = &self->device->uuid,
                                .all = uuids,
                                .bytes = uuids ? sizeof *uuids : 0};
    return sym_agree(self->sym, &matter, own);
}

expar_status gpu_count_sharers(const gpu_executor *self, int32_t *sharers)
{
    const int32_t size = self->sym->size;
    cu_uuid *uuids = calloc((size_t)size, sizeof *uuids);
    if (!uuids) return sym_out_of_step(self->sym, buffer_name, error_set(EXPAR_ERR_MEMORY, "no memory"));
    expar_status status = gpu_agree(self, EXPAR_OK, uuids);
    *sharers = 0;
    for (int32_t r = 0; r < size && status == EXPAR_OK; r++)
        *sharers += memcmp(&uuids[r], &uuids[self->sym->rank], sizeof *uuids) == 0;
    free(uuids);
    return status;
}

/* Kernels of ranks on one GPU wait for each other, so they must run side by side. */
static expar_status share_sms(gpu_executor *self, int32_t asked, int32_t usual, int32_t sharers)
{
    const int32_t index = self->device->index, all = self->device->num_sms, most = all / sharers;
    self->most_sms = most;
    self->num_sms = asked ? asked : most < usual ? most : usual;
    if (self->num_sms >= 1 && self->num_sms <= most) return EXPAR_OK;
    if (most < 1)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "%d ranks share GPU %d, which has %d SM%s; expected at most one rank an SM", sharers, index,
                         all, all == 1 ? "" : "s");
    return error_set(EXPAR_ERR_ARGUMENT,
                     "config.num_sms is %d; expected 1 to %d, or 0 for the library's choice: GPU %d has %d SMs for %d "
                     "rank%s",
                     asked, most, index, all, sharers, sharers == 1 ? "" : "s");
}

/* Streams of one process share the queues to a GPU, 8 unless its environment says more: kernels in one queue would wait
   for those behind them. */
static expar_status check_queues(const gpu_executor *self, int32_t sharers)
{
    int64_t queues = 8;
    expar_status status = env_foreign_int("CUDA_DEVICE_MAX_CONNECTIONS", 1, INT32_MAX, &queues);
    if (status != EXPAR_OK || !self->group->threads || sharers <= queues) return status;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "%d ranks of this process share GPU %d, but its streams only %lld queues; set "
                     "CUDA_DEVICE_MAX_CONNECTIONS to %d or more (32 at most) before the process first uses CUDA",
                     sharers, self->device->index, (long long)queues, sharers);
}

expar_status gpu_choose_sms(gpu_executor *self, int32_t asked, int32_t usual, int32_t sharers)
{
    self->shares_gpu = self->group->threads && sharers > 1;
    expar_status status = check_queues(self, sharers);
    return status == EXPAR_OK ? share_sms(self, asked, usual, sharers) : status;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Memory of the heap may have served another buffer: flags of old epochs must go before anybody can post. */
static expar_status clear_records(gpu_executor *self)
{
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8Async, device_heap_at(self->heap, self->world.buffer), 0, self->world.space.slots,
                       self->own_stream);
    cuda_leave();
    return status == EXPAR_OK ? gpu_own_stream_await(self) : status;
}

static expar_status make_memory(gpu_executor *self)
{
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = gpu_memory_open(self);
    cuda_leave();
    return status;
}

expar_status gpu_read_orphan_time(gpu_world *world)
{
    int64_t orphan_ms = ORPHAN_MS;
    expar_status status = env_seconds_ms("EXPAR_CUDA_ORPHAN_TIMEOUT", &orphan_ms);
    world->orphan_ns = (uint64_t)orphan_ms * 1000000;
    return status;
}

static expar_status gpu_make_part(gpu_executor *self, const executor_plan *plan, int32_t sharers)
{
    expar_status status = gpu_choose_sms(self, plan->num_sms, DEFAULT_SMS, sharers);
    self->base.offers_room = !self->shares_gpu;
    if (status == EXPAR_OK) status = gpu_read_orphan_time(&self->world);
    if (status == EXPAR_OK) status = gpu_own_stream_make(self);
    if (status == EXPAR_OK) status = make_memory(self);
    if (status == EXPAR_OK) status = gpu_programs_open(self);
    if (status == EXPAR_OK) gpu_listen(self);
    if (status == EXPAR_OK) status = gpu_guard_hold(self);
    if (status == EXPAR_OK) status = gpu_home_pool(self, plan->pool_limit_bytes);
    return status == EXPAR_OK ? clear_records(self) : status;
}

/* All ranks come here, or none. Other buffers may be in the home. */
static void unmake(gpu_executor *self)
{
    bool quiet = !self->unsettled;
    close_part(self);
    if (self->world.buffer) device_heap_give(self->heap, buffer_name, self->world.buffer, &quiet);
    gpu_home_leave(self, quiet);
}

/* Takes the memory, and makes all parts or none: no kernel has used it then, on any rank. */
static expar_status gpu_make(gpu_executor *self, const executor_plan *plan)
{
    int32_t sharers = 0;
    expar_status status = gpu_home_enter(self, plan->device.index);
    if (status != EXPAR_OK) return status;
    /* What does not grow has at least one block. */
    if (!device_heap_grows(self->heap) && !self->world.shape.pool_bytes) {
        self->world.shape.pool_bytes = MEM_POOL_LARGE_BYTES;
        self->world.space = ep_space_of(&self->world.shape);
    }
    status = gpu_home_take(self, "expar_ep_create", &self->world.buffer);
    if (status == EXPAR_OK) status = gpu_count_sharers(self, &sharers);
    if (status == EXPAR_OK) status = gpu_agree(self, gpu_make_part(self, plan, sharers), NULL);
    if (status == EXPAR_OK) status = gpu_home_start(self);
    if (status == EXPAR_OK) return EXPAR_OK;
    error_kept kept;
    error_keep(&kept, status);
    unmake(self);
    return error_restore(&kept);
}

static expar_status gpu_create(const executor_plan *plan, executor **out)
{
    sym *symmetric = plan->group->sym;
    gpu_executor *self = calloc(1, sizeof *self);
    if (!self) return sym_out_of_step(symmetric, buffer_name, error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory"));
    *self =
        (gpu_executor){.base.ops = &gpu_ops,
                       .group = plan->group,
                       .sym = symmetric,
                       .number = plan->number,
                       .topic_kind = BOOT_KIND_BUFFER,
                       .with_threads = plan->group->threads && plan->group->size > 1,
                       .given_slots = plan->ring_slots,
                       .world = {.shape = *plan->shape, .space = ep_space_of(plan->shape), .rank = symmetric->rank}};
    expar_status status = gpu_make(self, plan);
    if (status != EXPAR_OK) {
        free(self);
        return status;
    }
    *out = &self->base;
    return EXPAR_OK;
}

/* The GPU's own SMs bound num_sms, on either side (share_sms). */
const executor_kind executor_cuda = {.create = gpu_create,
                                     .count = gpu_count,
                                     .grows = true,
                                     .num_channels = DEFAULT_CHANNELS,
                                     .least_sms = INT32_MIN,
                                     .beside_outputs = gpu_beside_outputs,
                                     .hold_until = gpu_hold_until};
