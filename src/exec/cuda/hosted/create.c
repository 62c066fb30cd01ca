/* SPDX-License-Identifier: Apache-2.0 */
/* The executor whose host carries out calls on GPUs: an executor on the CPU, and this rank's memory on its GPU. */
#include "exec/cuda/hosted/hosted.h"
#include "group/group.h"

#include <stdlib.h>

static const char buffer_name[] = "the buffer";

/* ---- operations that the CPU executor answers -------------------------------------------------------------------- */

static executor *inner_of(executor *base)
{
    return hosted_of(base)->inner;
}

static expar_status hosted_check(executor *base, const char *what)
{
    return inner_of(base)->ops->check(inner_of(base), what);
}

static bool hosted_untold(executor *base, ep_vote *vote, int64_t *dropped)
{
    return inner_of(base)->ops->untold(inner_of(base), vote, dropped);
}

static void hosted_halt(executor *base)
{
    atomic_store_explicit(&hosted_of(base)->core.halted, true, memory_order_relaxed);
    inner_of(base)->ops->halt(inner_of(base));
}

/* Hosts do not know how often graphs run, so the caller's number may not be that of the next call. A rank that has
   broken off a call of a graph is not at its next call. */
static void hosted_retire(executor *base, uint32_t epoch, const ep_rejection *rejection)
{
    hosted_executor *self = hosted_of(base);
    (void)epoch;
    if (hosted_replays_stop(self, knob(KNOB_CUDA_ABANDON_NS)))
        self->inner->ops->retire(self->inner, self->epoch + 1, rejection);
}

/* Launches of graphs end by themselves, unless the group fails. */
static expar_status hosted_await(executor *base, const char *what)
{
    hosted_executor *self = hosted_of(base);
    bool ended = !self->replays;
    expar_status status = EXPAR_OK;
    int64_t asked_ns = 0;
    for (int64_t looks = 0; status == EXPAR_OK && !ended; looks++) {
        if (looks > 0) gpu_rest_between(looks);
        status = gpu_order_query(&self->core, &ended);
        if (status == EXPAR_OK && !ended) status = hosted_look(self, &asked_ns);
    }
    return status == EXPAR_OK ? hosted_check(base, what) : status;
}

static expar_status hosted_time(executor *base, bool on)
{
    (void)base;
    if (!on) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED, "calls on GPUs whose ranks do not map each other take no times of their "
                                            "own: the host carries them out");
}

static bool hosted_follows(const executor *base, const exec_call *call, expar_event *event)
{
    const executor *inner = ((const hosted_executor *)base)->inner;
    return inner->ops->follows(inner, call, event);
}

static expar_status hosted_place(executor *base, exec_call *call)
{
    return inner_of(base)->ops->place(inner_of(base), call);
}

static expar_status hosted_join(executor *base, const exec_call *call, expar_event *event)
{
    return inner_of(base)->ops->join(inner_of(base), call, event);
}

static expar_status hosted_tell(executor *base, const exec_call *call, executor_done_fn done, void *context,
                                event_keeper *keeper)
{
    return inner_of(base)->ops->tell(inner_of(base), call, done, context, keeper);
}

static bool hosted_times(executor *base, executor_times *out)
{
    return inner_of(base)->normal->times(inner_of(base), out);
}

static void hosted_unmap(executor *base, exec_mapping *mapping)
{
    inner_of(base)->normal->unmap(inner_of(base), mapping);
}

static expar_status hosted_routing_make(executor *base, ep_routing *routing, int32_t most_targets)
{
    return inner_of(base)->normal->routing_make(inner_of(base), routing, most_targets);
}

static expar_status hosted_prepare(executor *base, const ep_form *form, int64_t row_bytes)
{
    return inner_of(base)->normal->prepare(inner_of(base), form, row_bytes);
}

static bool hosted_fits(executor *base, const ep_form *form, int64_t row_bytes)
{
    return inner_of(base)->normal->fits(inner_of(base), form, row_bytes);
}

/* The call itself opens with the same number, unless it has ended here. */
static expar_status hosted_grow(executor *base, exec_call *call, const ep_grow_step *step, ep_vote *vote)
{
    hosted_executor *self = hosted_of(base);
    hosted_run alone;
    if (call->captured) return gpu_reject_growth(step);
    expar_status status = hosted_turn_begin(self, call, &alone);
    if (status == EXPAR_OK) {
        ep_grow_step here = *step;
        here.epoch = self->epoch + 1;
        status = self->inner->normal->grow(self->inner, call, &here, vote);
        if (status != EXPAR_OK || vote->rank >= 0) self->epoch++;
    }
    hosted_turn_end(self, &alone);
    return status;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void close_stream(hosted_executor *self)
{
    if (!self->core.own_stream || cuda_enter(self->device) != EXPAR_OK) return;
    cuda_driver()->StreamDestroy(self->core.own_stream);
    cuda_leave();
}

/* Ends all but the CPU executor, also for a partly made object. sound: all ranks do. */
static void close_gpu_part(hosted_executor *self, bool sound, bool quiet)
{
    close_stream(self);
    hosted_pool_close(self);
    hosted_mover_close(self);
    hosted_pool_unmap(self, sound, quiet && !self->mover.on);
    if (!self->mover.on) hosted_stages_close(self);
    /* With the mover it is that of the order of calls. */
    if (self->core.fallback && !self->core.order) {
        gpu_fallback_settle(self->core.fallback, true);
        gpu_fallback_drop(self->core.fallback);
    }
    cuda_device_close(self->device);
}

static void hosted_destroy(executor *base, bool sound, bool quiet)
{
    hosted_executor *self = hosted_of(base);
    if (!sound) (void)hosted_replays_stop(self, knob(KNOB_CUDA_ABANDON_NS));
    hosted_mover_close(self);
    self->inner->ops->destroy(self->inner, sound, quiet);
    close_gpu_part(self, sound, quiet);
    if (!self->mover.on) free(self);
}

/* `streams` is not set: a step has been carried out when it returns. If the mover did not end, the object stays. */
static const executor_ops hosted_ops = {
    .name = "cuda",
    .check = hosted_check,
    .untold = hosted_untold,
    .halt = hosted_halt,
    .retire = hosted_retire,
    .await = hosted_await,
    .time = hosted_time,
    .destroy = hosted_destroy,
    .take = hosted_take,
    .begin = hosted_begin,
    .keep = gpu_keep,
    .follows = hosted_follows,
    .place = hosted_place,
    .join = hosted_join,
    .depart = hosted_depart,
    .record = hosted_record,
    .end = hosted_end,
    .tell = hosted_tell,
};

static const normal_ops hosted_normal_ops = {
    .unit_bytes = 1,
    .times = hosted_times,
    .reach = hosted_reach,
    .unmap = hosted_unmap,
    .trim = hosted_trim,
    .routing_make = hosted_routing_make,
    .map_make = hosted_map_make,
    .prepare = hosted_prepare,
    .fits = hosted_fits,
    .grow = hosted_grow,
    .notify = hosted_notify,
    .grow_pool = hosted_grow_pool,
    .dispatch_send = hosted_dispatch_send,
    .dispatch_receive = hosted_dispatch_receive,
    .combine_send = hosted_combine_send,
    .combine_receive = hosted_combine_receive,
    .map = hosted_map,
    .arrange = hosted_arrange,
    .reduce = hosted_reduce,
    .sources = hosted_sources,
    .tell_counts = hosted_tell_counts,
    .copy = hosted_copy_bytes,
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

static expar_status make_part(hosted_executor *self, const executor_plan *plan)
{
    expar_status status = cuda_device_open(plan->device.index, &self->device);
    if (status != EXPAR_OK) return status;
    self->core.device = self->device;
    status = hosted_check_sms(self, "config.num_sms", plan->num_sms);
    return status == EXPAR_OK ? gpu_own_stream_make(&self->core) : status;
}

/* Chooses how calls copy, which each rank does by itself: other ranks need not know it. */
static expar_status make_copies(hosted_executor *self, const executor_plan *plan, int32_t sharers)
{
    if (!self->core.with_threads || sharers == 1) hosted_mover_make(self, plan->num_sms);
    self->core.base.ends_first = !self->mover.on;
    if (self->mover.on) return EXPAR_OK;
    const expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    const expar_status made = gpu_fallback_make(self->device, &self->core.fallback);
    cuda_leave();
    return made;
}

/* Counts the ranks of this node that map this one's host memory, itself included: all of them, or no other one. */
static int32_t count_near_ranks(const expar_group *group)
{
    int32_t near_ranks = 0;
    for (int32_t r = 0; r < group->size; r++)
        near_ranks += group->nodes[r] == group->nodes[group->rank] && sym_at(group->sym, r, 0);
    return near_ranks == group->ranks_per_node ? near_ranks : 1;
}

/* Makes the parts in steps, each on all ranks or on none. */
static expar_status make_rest(hosted_executor *self, const executor_plan *plan, int32_t sharers)
{
    const boot_matter matter = {.what = buffer_name, .rejected = "could not make its part"};
    self->near_ranks = count_near_ranks(plan->group);
    expar_status status = sym_agree(self->core.sym, &matter, make_copies(self, plan, sharers));
    if (status == EXPAR_OK) status = hosted_pool_map(self);
    if (status == EXPAR_OK) status = sym_agree(self->core.sym, &matter, hosted_pool_make(self, plan));
    return status == EXPAR_OK ? hosted_pool_start(self, plan) : status;
}

/* Makes the CPU executor, on all ranks or on none. Its pool has no limit, because it holds rows only during calls. */
static expar_status make_inner(hosted_executor *self, const executor_plan *plan)
{
    executor_plan host = *plan;
    host.device = (expar_device){.type = EXPAR_CPU};
    host.num_sms = 0;
    host.pool_bytes = host.pool_limit_bytes = 0;
    const expar_status status = executor_cpu.create(&host, &self->inner);
    if (status != EXPAR_OK) return status;
    self->core.base.sent = self->inner->sent;
    self->core.base.by_node = self->inner->by_node;
    return EXPAR_OK;
}

expar_status hosted_create(const executor_plan *plan, executor **out)
{
    sym *symmetric = plan->group->sym;
    const boot_matter matter = {.what = buffer_name, .rejected = "could not make its part"};
    int32_t sharers = 0;
    hosted_executor *self = calloc(1, sizeof *self);
    if (!self) return sym_out_of_step(symmetric, buffer_name, error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory"));
    self->normal = hosted_normal_ops;
    self->core.base = (executor){.ops = &hosted_ops, .normal = &self->normal};
    self->core.group = plan->group;
    self->core.sym = symmetric;
    self->core.with_threads = plan->group->threads && plan->group->size > 1;
    hosted_stages_make(self);
    expar_status status = sym_agree(symmetric, &matter, make_part(self, plan));
    if (status == EXPAR_OK) status = gpu_count_sharers(&self->core, &sharers);
    if (status == EXPAR_OK) status = make_rest(self, plan, sharers);
    if (status == EXPAR_OK) status = make_inner(self, plan);
    if (status != EXPAR_OK) {
        error_kept kept;
        error_keep(&kept, status);
        close_gpu_part(self, sym_check(symmetric, buffer_name) == EXPAR_OK, true);
        free(self);
        return error_restore(&kept);
    }
    self->normal.stages = self->normal.x_alone = self->mapped;
    hosted_carrier_make(self);
    *out = &self->core.base;
    return EXPAR_OK;
}
