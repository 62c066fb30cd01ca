/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU executor's object: its place in the group's heap, its pools, its operations. */
#include "exec/cpu/create.h"
#include "exec/cpu/core/calls.h"
#include "exec/cpu/nodes/rails.h"

#include <stdlib.h>
#include <string.h>

static const char buffer_name[] = "the buffer";

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static exec_reach cpu_reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                            exec_mapping *out)
{
    (void)call, (void)maps;
    const sym *symmetric = cpu_of(base)->sym;
    const bool reaches = sym_offset(symmetric, data, (size_t)bytes, &out->offset) ||
                         sym_store_offset(symmetric, data, (size_t)bytes, &out->offset);
    return reaches ? EXEC_REACH_HEAP : EXEC_REACH_NONE;
}

static void unmap_nothing(executor *base, exec_mapping *mapping)
{
    (void)base, (void)mapping;
}

/* Returns the pool of private memory, which is made when it is first needed, or NULL if there are no addresses for one.
   Its blocks keep it. */
static mem_pool *private_pool(cpu_executor *self)
{
    const sym *symmetric = self->sym;
    mem_region region;
    mem_backing *backing;
    mem_store *store;
    mem_pool *pool = atomic_load_explicit(&self->private_pool, memory_order_acquire);
    if (pool) return pool;
    if (mem_region_create(symmetric->backing->region.bytes, false, &region) != EXPAR_OK) return NULL;
    if (mem_backing_create(&region, self->host_ranks, &backing) != EXPAR_OK) return NULL;
    if (mem_backing_store(backing, 0, &store) == EXPAR_OK) {
        if (mem_pool_create_in(store, 0, 0, &pool) != EXPAR_OK) pool = NULL;
        atomic_store_explicit(&self->private_pool, pool, memory_order_release);
        mem_store_close(store);
    }
    mem_backing_drop(backing);
    return pool;
}

static expar_status take_from_caller(const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    void *data;
    expar_status status = mem_allocate((expar_device){.type = EXPAR_CPU}, from, bytes, NULL, &data);
    if (status != EXPAR_OK) return status;
    status = mem_block_foreign(from, data, bytes, out);
    if (status != EXPAR_OK) from->free(from->context, data, (size_t)bytes, NULL);
    return status;
}

/* Private memory stays mapped from one dispatch to the next, like that of the pool. If it is full, the block is
   allocated by itself. */
static expar_status cpu_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    if (from) return take_from_caller(from, bytes, out);
    mem_pool *pool = private_pool(cpu_of(base));
    if (pool && mem_pool_take(pool, bytes, out) == EXPAR_OK) return EXPAR_OK;
    return mem_block_private(bytes, out);
}

static void cpu_trim(executor *base)
{
    mem_pool_trim(base->pool);
    mem_pool *apart = atomic_load_explicit(&cpu_of(base)->private_pool, memory_order_acquire);
    if (apart) mem_pool_trim(apart);
}

static expar_status routing_make(executor *base, ep_routing *routing, int32_t most_targets)
{
    expar_status status = cpu_routing_make(routing, most_targets);
    if (status != EXPAR_OK || !cpu_of(base)->rails) return status;
    status = rail_routing_make(cpu_of(base), routing);
    if (status != EXPAR_OK) ep_routing_free(routing);
    return status;
}

static expar_status map_make(executor *base, int64_t slots, mem_block **out)
{
    (void)base;
    uint64_t bytes = (uint64_t)slots * sizeof(int32_t);
    expar_status status = mem_block_private(bytes, out);
    if (status != EXPAR_OK) return error_set(status, "no memory for a row map of %lld slots", (long long)slots);
    memset((*out)->data, 0xff, (size_t)bytes); /* the handle of a dispatch that fails later names no row */
    return EXPAR_OK;
}

/* ---- calls: nothing is queued here, and all is known when a step returns ----------------------------------------- */

static expar_status time_nothing(executor *base, bool on)
{
    (void)base;
    return on ? error_set(EXPAR_ERR_UNSUPPORTED, "calls on the CPU take no times of their own") : EXPAR_OK;
}

static bool no_times(executor *base, executor_times *out)
{
    (void)base, (void)out;
    return false;
}

static void cpu_halt(executor *base)
{
    cpu_executor *self = cpu_of(base);
    atomic_store_explicit(&self->halted, true, memory_order_relaxed);
    sym_ring(self->sym, self->sym->rank);
}

static void cpu_retire(executor *base, uint32_t epoch, const ep_rejection *rejection)
{
    cpu_retirement_post(cpu_of(base), epoch, rejection);
}

static expar_status cpu_call_begin(executor *base, exec_call *call, void *stream)
{
    (void)stream;
    if (call->num_sms >= 0 && call->num_sms <= CPU_MOST_WORKERS) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "num_sms is %d; expected 1 to %d worker threads, or 0 for the buffer's %d",
                     call->num_sms, CPU_MOST_WORKERS, cpu_of(base)->num_workers);
}

static expar_status prepare_nothing(executor *base, const ep_form *form, int64_t row_bytes)
{
    (void)base, (void)form, (void)row_bytes;
    return EXPAR_OK;
}

static expar_status cpu_call_copy(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes)
{
    (void)base, (void)call;
    if (bytes) memcpy(dest, source, (size_t)bytes);
    return EXPAR_OK;
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

/* Frees everything but the buffer's place in the heap. */
static void free_part(cpu_executor *self)
{
    mem_pool_close(self->record_pool);
    cpu_workers_destroy(self->workers);
    mem_pool_close(self->base.pool);
    mem_pool_close(self->private_pool);
    free(self->sources.rows);
    free(self->bases);
    free(self->cursors);
    free(self->rings);
}

/* Peers of a failed group may still write to these records, so they stay with the group. */
static void give_records(cpu_executor *self, mem_block *records, bool sound)
{
    if (!records) return;
    if (sound)
        mem_block_release(records);
    else
        sym_strand(self->sym, records);
}

/* A failed group frees its heap as a whole, when it is destroyed. */
static void cpu_destroy(executor *base, bool sound, bool quiet)
{
    (void)quiet;
    cpu_executor *self = cpu_of(base);
    rail_free(self, sound);
    free_part(self);
    if (sound && sym_give(self->sym, buffer_name, self->buffer) != EXPAR_OK) {
        LOG(LOG_WARN, "expar_ep_destroy: %s", expar_last_error());
        sound = false;
    }
    give_records(self, self->records, sound);
    give_records(self, self->old_records, sound);
    free(self);
}

/* There is nothing to do: the pool grows by itself. */
static expar_status cpu_grow_pool(executor *base, const uint64_t *bytes, int32_t count)
{
    (void)base, (void)bytes, (void)count;
    return EXPAR_OK;
}

static const executor_ops cpu_ops = {
    CPU_CALL_OPS,         .name = "cpu",          .halt = cpu_halt, .retire = cpu_retire,
    .time = time_nothing, .destroy = cpu_destroy, .take = cpu_take, .begin = cpu_call_begin,
};

static const normal_ops cpu_normal_ops = {
    .unit_bytes = 1,
    .times = no_times,
    .reach = cpu_reach,
    .unmap = unmap_nothing,
    .trim = cpu_trim,
    .routing_make = routing_make,
    .map_make = map_make,
    .prepare = prepare_nothing,
    .fits = cpu_fits,
    .grow = cpu_grow,
    .notify = cpu_notify,
    .grow_pool = cpu_grow_pool,
    .dispatch_send = cpu_dispatch_send,
    .dispatch_receive = cpu_dispatch_receive,
    .combine_send = cpu_combine_send,
    .combine_receive = cpu_combine_receive,
    .map = cpu_map,
    .arrange = cpu_arrange,
    .reduce = cpu_reduce,
    .sources = cpu_tell_sources,
    .tell_counts = cpu_tell_counts,
    .copy = cpu_call_copy,
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Finds the addresses of the ranks of this node, which are mapped here. */
static expar_status find_bases(cpu_executor *self)
{
    self->bases = calloc((size_t)self->shape.ranks, sizeof *self->bases);
    if (!self->bases) return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory");
    for (int32_t r = self->near_first; r < self->near_first + self->near_ranks; r++)
        self->bases[r] = sym_at(self->sym, r, self->buffer);
    return EXPAR_OK;
}

/* Chooses the number of worker threads of this rank: the caller's, that of the environment, or its share of the host's
   cores. */
static expar_status choose_threads(cpu_executor *self, const executor_plan *plan)
{
    const expar_group *group = plan->group;
    int64_t given = plan->num_threads;
    expar_status status = given ? EXPAR_OK : env_int("EXPAR_THREADS", 1, CPU_MOST_WORKERS, &given);
    int32_t shared = group->host_ranks >= group->host_cores ? 1 : group->host_cores / group->host_ranks;
    self->num_workers = given ? (int32_t)given : shared;
    self->chose_workers = !given;
    return status;
}

static expar_status make_lanes(cpu_executor *self)
{
    size_t ranks = (size_t)self->shape.ranks, channels = (size_t)self->shape.channels;
    self->rings = calloc(ranks * channels, sizeof *self->rings);
    self->cursors = calloc(channels, sizeof *self->cursors);
    if (!self->rings || !self->cursors)
        return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory for %zu rings", ranks * channels);
    expar_status status = cpu_sources_make(&self->shape, self->num_workers, &self->sources);
    return status != EXPAR_OK ? status : cpu_workers_create(self->num_workers, &self->workers);
}

/* Makes this rank's own part of a buffer that has its place in the heap. */
static expar_status cpu_make_part(cpu_executor *self, const executor_plan *plan)
{
    expar_status status = find_bases(self);
    if (status == EXPAR_OK) status = choose_threads(self, plan);
    if (status == EXPAR_OK) status = make_lanes(self);
    if (status == EXPAR_OK)
        status = mem_pool_create_in(self->sym->store, plan->pool_limit_bytes, plan->pool_bytes, &self->base.pool);
    if (status == EXPAR_OK) status = mem_pool_create_in(self->sym->store, 0, 0, &self->record_pool);
    if (status != EXPAR_OK) return status;
    /* Memory of the heap may have served another buffer: flags of old epochs must go before any rank can post. */
    memset(sym_at(self->sym, self->sym->rank, self->buffer), 0, self->space.slots);
    if (self->rails) rail_clear(self);
    return EXPAR_OK;
}

/* Makes all parts, or none. A rank that cannot make its own tells the others, and all free the place. */
static expar_status cpu_make_parts(cpu_executor *self, const executor_plan *plan)
{
    const boot_matter matter = {.what = buffer_name, .rejected = "could not make its part"};
    expar_status status = sym_agree(self->sym, &matter, cpu_make_part(self, plan));
    if (status == EXPAR_OK) return EXPAR_OK;
    error_kept kept;
    error_keep(&kept, status);
    free_part(self);
    sym_give(self->sym, buffer_name, self->buffer);
    return error_restore(&kept);
}

/* Comes before the buffer's size is known. All ranks have rails, or none has. */
static expar_status make_rails(cpu_executor *self, const executor_plan *plan)
{
    const boot_matter matter = {.what = buffer_name, .rejected = "could not make its rails"};
    return self->sym->all_mapped ? EXPAR_OK : sym_agree(self->sym, &matter, rail_make(self, plan));
}

static expar_status take_place(cpu_executor *self)
{
    const uint64_t bytes = self->rails ? self->rails->space.total_bytes : self->space.total_bytes;
    return sym_take(self->sym, buffer_name, bytes, 4096, &self->buffer);
}

static expar_status cpu_create(const executor_plan *plan, executor **out)
{
    sym *symmetric = plan->group->sym;
    cpu_executor *self = calloc(1, sizeof *self);
    if (!self) return sym_out_of_step(symmetric, buffer_name, error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory"));
    *self = (cpu_executor){.base = {.ops = &cpu_ops, .normal = &cpu_normal_ops},
                           .sym = symmetric,
                           .number = plan->number,
                           .host_ranks = plan->group->host_ranks,
                           .shape = *plan->shape,
                           .near_ranks = plan->shape->ranks,
                           .given_slots = plan->ring_slots,
                           .space = ep_space_of(plan->shape)};
    expar_status status = make_rails(self, plan);
    if (status == EXPAR_OK) status = take_place(self);
    if (status == EXPAR_OK) status = cpu_make_parts(self, plan);
    if (status != EXPAR_OK) {
        error_kept kept;
        error_keep(&kept, status);
        rail_free(self, false);
        free(self);
        error_restore(&kept);
        return status;
    }
    *out = &self->base;
    return EXPAR_OK;
}

/* Nothing is queued here, so there is nothing to hold. */
static expar_status hold_until_nothing(expar_device device, void *stream, mem_block *const *blocks, int32_t count)
{
    (void)device, (void)stream, (void)blocks, (void)count;
    return EXPAR_OK;
}

/* The pool belongs to the group. */
const executor_kind executor_cpu = {.create = cpu_create,
                                    .count = cpu_count,
                                    .terms = cpu_terms,
                                    .sum = cpu_sum,
                                    .grows = true,
                                    .num_channels = KNOB_CPU_CHANNELS,
                                    .num_channels_across = KNOB_CPU_CHANNELS,
                                    .hold_until = hold_until_nothing};

/* ---- carriers ---------------------------------------------------------------------------------------------------- */

bool executor_cpu_rail_memory(const executor *base, void **data, uint64_t *bytes)
{
    const cpu_executor *self = (const cpu_executor *)base;
    if (!self->rails) return false;
    const ep_rail_space *space = &self->rails->space;
    *data = rail_at(self, space->places);
    *bytes = space->outgoing - space->places;
    return true;
}

void executor_cpu_carry(executor *base, cpu_carrier *carrier)
{
    cpu_of(base)->carrier = carrier;
}

bool executor_cpu_carries_sums(const executor *base, int32_t topk)
{
    const cpu_executor *self = (const cpu_executor *)base;
    return self->carrier && cpu_most_rows(self, topk) <= self->carrier->most_rows;
}

bool executor_cpu_carries(const executor *base, const ep_routing *routing, const ep_form *form, int64_t row_bytes,
                          bool back)
{
    const cpu_executor *self = (const cpu_executor *)base;
    if (!executor_cpu_carries_sums(base, routing->topk)) return false;
    if (!rail_slots_fit(self, routing, form, row_bytes, back)) return false;
    return !back || !(form->options & EP_OPTION_ONE_ORDER) || rail_tokens_fit(self, form, row_bytes);
}

void executor_cpu_note_graphs(executor *base)
{
    atomic_store_explicit(&cpu_of(base)->in_graphs, true, memory_order_relaxed);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

void executor_cpu_delay(executor *base, executor_delay_fn delay, void *context)
{
    cpu_executor *self = cpu_of(base);
    self->delay_context = context;
    self->delay = delay;
}
