/* SPDX-License-Identifier: Apache-2.0 */
/* The object: its place in the group's heap, its operations. */
#include "base/knobs.h"
#include "exec/cpu/core/calls.h"
#include "exec/cpu/low_latency/far/links.h"

#include <stdlib.h>
#include <string.h>

static const char ll_buffer_name[] = "the low-latency buffer";

/* ---- operations that are not steps ------------------------------------------------------------------------------- */

static void ll_cpu_halt(executor *base)
{
    ll_cpu *self = ll_cpu_of(base);
    atomic_store_explicit(&self->halted, true, memory_order_relaxed);
    sym_ring(self->sym, self->sym->rank);
}

static expar_status ll_cpu_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    (void)from;
    return ll_cache_take(ll_cpu_of(base)->cache, bytes, out);
}

/* The counts are raised as calls are made. */
static const ll_counts *ll_cpu_count(executor *base)
{
    return &ll_cpu_of(base)->totals;
}

/* There is nothing to do: worker threads belong to the buffer. */
static expar_status ll_cpu_begin(executor *base, exec_call *call, void *stream)
{
    (void)base, (void)call, (void)stream;
    return EXPAR_OK;
}

/* There is nothing to do: ranks without a shape are met when headers are posted. */
static expar_status ll_cpu_prepare(executor *base, ll_call *call)
{
    (void)base, (void)call;
    return EXPAR_OK;
}

static expar_status ll_cpu_time(executor *base, bool on)
{
    (void)base, (void)on;
    return error_set(EXPAR_ERR_UNSUPPORTED, "calls on the CPU take no times");
}

static bool ll_cpu_times(executor *base, ll_times *out)
{
    (void)base, (void)out;
    return false;
}

/* Frees everything that depends on the shape. */
static void free_shaped(ll_cpu *self)
{
    for (int kind = 0; kind < LL_KINDS; kind++)
        for (int slot = 0; slot < LL_SLOTS; slot++) {
            free(self->records[kind][slot].told);
            free(self->records[kind][slot].counts);
        }
    ll_workers_free(self);
    free(self->sends.arrays);
    free(self->banks);
    free(self->progress);
    free(self->waiting);
    free(self->own_messages);
    memset(self->records, 0, sizeof self->records);
    self->sends = (ll_sends){0};
    self->banks = NULL;
    self->progress = self->waiting = self->own_messages = NULL;
}

/* Frees everything but the buffer's place in the heap. */
static void ll_free_arrays(ll_cpu *self)
{
    free_shaped(self);
    ll_cache_close(self->cache);
    ll_masks_free(self->masks);
    free(self->meeting.met);
    free(self->bases);
}

/* A failed group frees its heap as a whole, when it is destroyed. */
static void ll_cpu_destroy(executor *base, bool sound, bool quiet)
{
    (void)quiet;
    ll_cpu *self = ll_cpu_of(base);
    ll_far_end(self, sound);
    ll_free_arrays(self);
    if (sound && sym_give(self->sym, ll_buffer_name, self->buffer) != EXPAR_OK)
        LOG(LOG_WARN, "expar_ll_destroy: %s", expar_last_error());
    free(self);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static expar_status report_no_memory(void)
{
    return error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
}

static expar_status ll_cpu_make_shaped(ll_cpu *self)
{
    const size_t n = (size_t)self->shape.ranks, locals = (size_t)self->shape.local_experts;
    const size_t tokens = (size_t)self->shape.tokens;
    bool made = true;
    for (int kind = 0; kind < LL_KINDS; kind++)
        for (int slot = 0; slot < LL_SLOTS; slot++) {
            ll_record *record = &self->records[kind][slot];
            record->told = calloc(n, sizeof *record->told);
            record->counts = calloc(n * locals, sizeof *record->counts);
            made = made && record->told && record->counts;
        }
    self->banks = calloc(n, sizeof *self->banks);
    self->progress = calloc(n, sizeof *self->progress);
    self->waiting = calloc(tokens, sizeof *self->waiting);
    self->own_messages = calloc(tokens, sizeof *self->own_messages);
    made = made && self->banks && self->progress && self->waiting && self->own_messages;
    return made ? ll_sends_make(&self->shape, &self->sends) : report_no_memory();
}

/* Makes everything that does not depend on the shape. */
static expar_status make_unshaped(ll_cpu *self)
{
    self->cache = ll_cache_make();
    bool made = self->cache != NULL;
    if (self->shape.masking) {
        self->masks = ll_masks_make(self);
        made = made && self->masks;
    }
    return made ? EXPAR_OK : report_no_memory();
}

/* Memory of the heap may have served others: words must be zero before any rank can write one. */
static void clear_words(const ll_cpu *self)
{
    memset(ll_here(self, 0), 0, (size_t)self->space.words_bytes);
    for (int32_t slot = 0; slot < LL_SLOTS; slot++) {
        if (self->far) self->far->clear(self, LL_DISPATCH, slot, 0);
        for (int32_t region = 0; self->far && region < self->shape.regions; region++)
            self->far->clear(self, LL_COMBINE, slot, region);
    }
}

/* Makes everything that depends on the shape. */
static expar_status lay_out(ll_cpu *self)
{
    expar_status status = ll_cpu_make_shaped(self);
    if (status == EXPAR_OK) status = ll_workers_make(self, &self->plan);
    if (status == EXPAR_OK) clear_words(self);
    return status;
}

/* Makes a buffer without a shape. */
static expar_status ll_cpu_make_reserve(ll_cpu *self)
{
    const ll_reserved *reserve = &self->reserve;
    if (self->far)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "config.reserve_bytes is given; expected 0 where ranks are reached through a network: such "
                         "buffers are made for a shape");
    self->meeting.met = calloc((size_t)self->shape.ranks, sizeof *self->meeting.met);
    if (!self->meeting.met) return report_no_memory();
    self->meeting.met[self->sym->rank] = true;
    self->meeting.missing = self->shape.ranks - 1;
    memset(ll_here(self, reserve->bytes), 0, (size_t)(reserve->total_bytes - reserve->bytes));
    return EXPAR_OK;
}

static expar_status ll_make_part(ll_cpu *self, bool unmapped)
{
    expar_status status = ll_far_make(self, unmapped);
    if (status == EXPAR_OK) status = make_unshaped(self);
    if (status != EXPAR_OK) return status;
    return self->reserve.bytes ? ll_cpu_make_reserve(self) : lay_out(self);
}

static expar_status ll_cpu_lay_out(executor *base, const ll_shape *shape)
{
    ll_cpu *self = ll_cpu_of(base);
    const ll_shape unshaped = self->shape;
    self->shape = *shape;
    self->space = ll_reserved_space(&self->reserve, shape);
    expar_status status = lay_out(self);
    if (status == EXPAR_OK) {
        ll_meet_say(self);
        return EXPAR_OK;
    }
    error_kept kept;
    error_keep(&kept, status);
    free_shaped(self);
    self->shape = unshaped;
    self->space = ll_reserved_space(&self->reserve, &unshaped);
    return error_restore(&kept);
}

/* Makes all parts, or none. */
static expar_status agree_on_parts(ll_cpu *self, const ll_plan *plan)
{
    const boot_matter matter = {.what = ll_buffer_name, .rejected = "could not make its part"};
    expar_status status = sym_agree(self->sym, &matter, ll_make_part(self, plan->shape->unmapped));
    if (status == EXPAR_OK) return EXPAR_OK;
    error_kept kept;
    error_keep(&kept, status);
    ll_far_end(self, false);
    sym_give(self->sym, ll_buffer_name, self->buffer);
    return error_restore(&kept);
}

static const executor_ops ll_cpu_ops = {
    CPU_CALL_OPS,        .name = "cpu",
    .halt = ll_cpu_halt, .retire = ll_cpu_retire,
    .time = ll_cpu_time, .destroy = ll_cpu_destroy,
    .take = ll_cpu_take, .begin = ll_cpu_begin,
};

static const ll_ops ll_cpu_phases = {
    .prepare = ll_cpu_prepare,
    .await_signals = ll_cpu_await_signals,
    .send = ll_cpu_send,
    .receive = ll_cpu_receive,
    .count = ll_cpu_count,
    .times = ll_cpu_times,
    .mask_set = ll_cpu_mask_set,
    .mask_query = ll_cpu_mask_query,
    .mask_clean = ll_cpu_mask_clean,
    .lay_out = ll_cpu_lay_out,
};

expar_status ll_executor_cpu_create(const ll_plan *plan, executor **out)
{
    sym *symmetric = plan->group->sym;
    ll_cpu *self = calloc(1, sizeof *self);
    if (!self)
        return sym_out_of_step(symmetric, ll_buffer_name,
                               error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer"));
    self->base = (executor){.ops = &ll_cpu_ops, .ll = &ll_cpu_phases};
    self->sym = symmetric;
    self->number = plan->number;
    self->shape = *plan->shape;
    self->shape.unmapped = plan->shape->unmapped || !link_all_mapped(symmetric);
    self->plan = *plan;
    self->plan.shape = NULL;
    self->reserve = ll_reserved_of(self->shape.ranks, plan->reserve_bytes);
    self->space = self->reserve.bytes ? ll_reserved_space(&self->reserve, &self->shape) : ll_space_of(&self->shape);
    self->totals.heap_bytes = self->space.total_bytes;
    self->stream_bytes = (uint64_t)knob(KNOB_CPU_LL_STREAM_BYTES);
    expar_status status = sym_take(symmetric, ll_buffer_name, self->space.total_bytes, 4096, &self->buffer);
    if (status == EXPAR_OK) status = agree_on_parts(self, plan);
    if (status != EXPAR_OK) {
        ll_free_arrays(self);
        free(self);
        return status;
    }
    *out = &self->base;
    return EXPAR_OK;
}

/* ---- for tests --------------------------------------------------------------------------------------------------- */

void ll_executor_cpu_delay(executor *base, executor_delay_fn delay, void *context)
{
    ll_cpu *self = ll_cpu_of(base);
    self->delay_context = context;
    self->delay = delay;
    if (!self->masks) return;
    self->masks->cleaner->delay_context = context;
    self->masks->cleaner->delay = delay;
}

void ll_executor_cpu_skip(executor *base, uint64_t calls)
{
    ll_cpu *self = ll_cpu_of(base);
    for (int kind = 0; kind < LL_KINDS; kind++)
        self->epochs[kind] += calls;
}

void ll_executor_cpu_stream(executor *base, uint64_t bytes)
{
    ll_cpu_of(base)->stream_bytes = bytes;
}
