/* SPDX-License-Identifier: Apache-2.0 */
/* Where a buffer's records and rings lie, and how they grow.
 *
 * The first ones lie in the symmetric heap, at one offset on all ranks. A call for which they are too small opens with
 * headers that carry only its form. If all forms are equal, each rank takes larger records from the memory after its
 * heap, which needs no other rank. It empties them, and says by a reply in the old records where they lie.
 *
 * If all ranks could do that, all go over to the new records. There the call opens in the same epoch, which is on no
 * flag yet. No rank writes to the old ones again, except to the counters of those replies. So the old ones are freed
 * when later headers have shown that the replies have come, too.
 *
 * Across nodes this holds for the ranks of one node. Memory that the network reaches does not grow (nodes/scratch.c).
 * */
#include "base/knobs.h"
#include "exec/cpu/normal/nodes.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a call needs ------------------------------------------------------------------------------------------- */

static int32_t slots_wanted(const cpu_executor *self, int64_t row_bytes)
{
    return self->given_slots ? self->given_slots : ep_ring_slots_for(row_bytes);
}

static int32_t slots_least(const cpu_executor *self)
{
    return self->given_slots ? self->given_slots : EP_LEAST_RING_SLOTS;
}

static uint64_t ring_bytes(const cpu_executor *self)
{
    return (uint64_t)self->shape.ring_slots * self->space.slot_bytes;
}

void cpu_rings_form(cpu_executor *self, const ep_form *form, int64_t row_bytes)
{
    self->slot = ep_slot_of(row_bytes, form->scales, form->topk);
    const uint64_t spare = ring_bytes(self) / self->slot.bytes, wanted = (uint64_t)slots_wanted(self, row_bytes);
    self->slots = (uint32_t)(wanted < spare ? wanted : spare);
}

void cpu_records_heard(cpu_executor *self)
{
    if (!self->old_records) return;
    mem_block_release(self->old_records);
    self->old_records = NULL;
}

bool cpu_fits(executor *base, const ep_form *form, int64_t row_bytes)
{
    cpu_executor *self = cpu_of(base);
    const ep_shape *shape = &self->shape;
    const ep_slot slot = ep_slot_of(row_bytes, form->scales, form->topk);
    const bool rows_fit = row_bytes == 0 || ring_bytes(self) / slot.bytes >= (uint64_t)slots_least(self);
    const bool counts_fit = form->topk <= shape->topk && form->experts / shape->ranks <= shape->local_experts;
    return rows_fit && counts_fit && (!self->nodes || self->nodes->fits(self, form, row_bytes));
}

/* Returns the shape that holds both the present one and the call. */
static ep_shape shape_for(const cpu_executor *self, const ep_grow_step *step)
{
    ep_shape shape = ep_shape_with(&self->shape, step);
    if (shape.row_bytes > 0) shape.ring_slots = slots_wanted(self, shape.row_bytes);
    return shape;
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

expar_status cpu_sources_make(const ep_shape *shape, int32_t workers, cpu_sources *out)
{
    const int64_t of_combine = 2 + 2 * (int64_t)shape->ranks + shape->topk, of_reduce = 2 * (int64_t)shape->topk;
    const int64_t each = of_combine > of_reduce ? of_combine : of_reduce;
    const void **rows = calloc((size_t)workers * (size_t)each, sizeof *rows);
    if (!rows) return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory for %lld rows a token", (long long)each);
    *out = (cpu_sources){.rows = rows, .each = each, .workers = workers};
    return EXPAR_OK;
}

/* A worker takes some 15 µs to wake. One thread moves cpu.worker bytes in that time (measured:
   docs/internals/measurements/cpu.md). */
static int32_t workers_for(const cpu_executor *self, const exec_call *call, int64_t bytes)
{
    if (call->num_sms) return call->num_sms;
    const int64_t worth = 1 + bytes / knob(KNOB_CPU_WORKER_BYTES);
    return self->chose_workers && worth < self->num_workers ? (int32_t)worth : self->num_workers;
}

void cpu_call_workers(cpu_executor *self, const exec_call *call, int64_t bytes)
{
    cpu_sources more;
    const int32_t wanted = workers_for(self, call, bytes);
    self->active = cpu_workers_grow(self->workers, wanted);
    if (self->active > self->sources.workers && cpu_sources_make(&self->shape, self->active, &more) == EXPAR_OK) {
        free(self->sources.rows);
        self->sources = more;
    }
    if (self->active > self->sources.workers) self->active = self->sources.workers;
    if (self->active < wanted) LOG(LOG_WARN, "a call on %d worker threads goes on with %d", wanted, self->active);
}

bool cpu_settle_carried(const cpu_executor *self, ep_advert *(*advert_of)(const cpu_executor *, uint32_t, int32_t),
                        uint32_t epoch)
{
    bool all = self->carrier != NULL;
    for (int32_t r = self->near_first; r < self->near_first + self->near_ranks; r++)
        all = all && advert_of(self, epoch, r)->carried;
    for (int32_t r = self->near_first; !all && r < self->near_first + self->near_ranks; r++)
        if (advert_of(self, epoch, r)->carried) advert_of(self, epoch, r)->mode = EP_MODE_QUEUE;
    return all;
}

void cpu_carry_begin(cpu_executor *self, bool carries, int32_t topk)
{
    self->carrying = carries ? self->carrier : NULL;
    if (carries) self->active = self->carrier->ops->begin(self->carrier, self->active, cpu_most_rows(self, topk));
}

expar_status cpu_carry_await(const cpu_executor *self, int32_t worker)
{
    cpu_carrier *carrier = self->carrying;
    expar_status status = EXPAR_OK;
    uint64_t complete = 0;
    if (!carrier) return EXPAR_OK;
    carrier->ops->hand_over(carrier, worker, false);
    for (;;) {
        status = carrier->ops->complete(carrier, worker, &complete);
        if (status != EXPAR_OK || complete == carrier->ops->asked(carrier, worker)) return status;
        sched_yield();
    }
}

/* ---- growing ----------------------------------------------------------------------------------------------------- */

/* The memory that this rank has made, and that not all ranks use yet. */
typedef struct growth {
    ep_shape shape;
    ep_space space;
    mem_block *records;
    cpu_sources sources;
    uint8_t **bases;
} growth;

static void growth_free(cpu_executor *self, growth *grown)
{
    mem_block_release(grown->records);
    free(grown->sources.rows);
    free(grown->bases);
    if (self->nodes) self->nodes->grown(self, 0, false);
    *grown = (growth){0};
}

static expar_status growth_take(cpu_executor *self, growth *grown)
{
    grown->bases = calloc((size_t)self->shape.ranks, sizeof *grown->bases);
    if (!grown->bases) return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory");
    expar_status status = cpu_sources_make(&grown->shape, self->sources.workers, &grown->sources);
    if (status == EXPAR_OK && self->nodes) status = self->nodes->grow(self, &grown->shape);
    return status == EXPAR_OK ? mem_pool_take(self->record_pool, grown->space.total_bytes, &grown->records) : status;
}

static expar_status growth_make(cpu_executor *self, const ep_grow_step *step, growth *out)
{
    *out = (growth){.shape = shape_for(self, step)};
    out->space = ep_space_of(&out->shape);
    expar_status status = growth_take(self, out);
    if (status == EXPAR_OK) {
        memset(out->records->data, 0, out->space.slots);
        return EXPAR_OK;
    }
    growth_free(self, out);
    return error_prefix(status, "records and rings for rows of %lld bytes, top-k %d and %d experts",
                        (long long)step->row_bytes, step->form.topk, step->form.experts);
}

/* All ranks of the node have said where their new records lie. */
static void go_over(cpu_executor *self, const ep_grow_step *step, growth *grown)
{
    for (int32_t r = self->near_first; r < self->near_first + self->near_ranks; r++)
        grown->bases[r] = sym_at(self->sym, r, cpu_reply_from(self, step->epoch, r)->advert.x_offset);
    if (self->nodes) self->nodes->grown(self, step->epoch, true);
    mem_block_release(self->old_records);
    free(self->sources.rows);
    free(self->bases);
    self->old_records = self->records;
    self->records = grown->records;
    self->sources = grown->sources;
    self->bases = grown->bases;
    self->shape = grown->shape;
    self->space = grown->space;
}

static expar_status exchange_places(cpu_executor *self, const ep_grow_step *step, ep_vote *vote)
{
    growth grown;
    ep_rejection rejection = {0};
    expar_status status = growth_make(self, step, &grown);
    if (status != EXPAR_OK) rejection = ep_rejection_of(status);
    const cpu_adverts adverts = {.advert.x_offset = grown.records ? grown.records->offset : 0};
    status = cpu_reply_post(self, step->epoch, &rejection, &adverts);
    if (status == EXPAR_OK) status = cpu_mailbox_await(self, EP_MAILBOX_REPLY, step->epoch, "larger records");
    if (status == EXPAR_OK) cpu_reply_judge(self, step->epoch, vote);
    if (status == EXPAR_OK && vote->rank < 0)
        go_over(self, step, &grown);
    else
        growth_free(self, &grown);
    return status;
}

expar_status cpu_grow(executor *base, exec_call *call, const ep_grow_step *step, ep_vote *vote)
{
    (void)call;
    cpu_executor *self = cpu_of(base);
    const ep_rejection none = {0};
    expar_status status = cpu_header_post(self, step->epoch, &step->form, &none, NULL, NULL);
    if (status == EXPAR_OK) status = cpu_mailbox_await(self, EP_MAILBOX_HEADER, step->epoch, "larger records");
    if (status != EXPAR_OK) return status;
    cpu_header_judge(self, step->epoch, vote);
    return vote->rank < 0 ? exchange_places(self, step, vote) : EXPAR_OK;
}
