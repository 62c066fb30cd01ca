/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer's rails. They are made with it if its ranks do not all map each other. */
#include "exec/cpu/nodes/rails.h"
#include "base/interrupt.h"
#include "base/knobs.h"

#include <stdlib.h>
#include <string.h>

/* ---- which ranks are a node -------------------------------------------------------------------------------------- */

/* Counts the ranks of the group's node that are mapped here, this one included. */
static int32_t ranks_mapped(const sym *symmetric, const expar_group *group)
{
    int32_t mapped = 0;
    for (int32_t r = 0; r < group->size; r++)
        mapped += group->nodes[r] == group->nodes[group->rank] && sym_at(symmetric, r, 0) != NULL;
    return mapped;
}

/* Either all ranks of the node are mapped, or only this one, as when mapped memory is switched off. */
static expar_status ranks_a_node(const expar_group *group, int32_t *out)
{
    const int32_t mapped = ranks_mapped(group->sym, group);
    *out = mapped == 1 ? 1 : group->ranks_per_node;
    if (mapped == 1 || mapped == group->ranks_per_node) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "rank %d maps the memory of %d of the %d ranks of its node; expected all of them, or none but "
                     "its own",
                     group->rank, mapped, group->ranks_per_node);
}

static const cpu_nodes_ops rail_ops = {
    .fits = rail_fits,
    .grow = rail_grow,
    .grown = rail_grown,
    .forget = rail_forget,
    .admit = rail_admit,
    .header_post = rail_header_post,
    .retire = rail_retirement_post,
    .post = rail_post,
    .relay = rail_relay,
    .done_is_here = rail_done_is_here,
    .owes_done = rail_owes_done,
    .collect = rail_collect,
    .end = rail_end,
    .dispatch_begin = rail_dispatch_begin,
    .combine_begin = rail_combine_begin,
    .dispatch_turn = rail_dispatch_turn,
    .combine_turn = rail_combine_turn,
    .add = rail_add,
    .report = rail_report,
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

static expar_status rail_open_links(cpu_executor *self)
{
    cpu_rails *rails = self->rails;
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rails->shape.nodes - 1 && status == EXPAR_OK; i++) {
        const int32_t node = rail_node_in_turn(rails, i), pe = ep_rail_of(&rails->shape, node, self->sym->rank);
        status = link_open(self->sym, pe, true, &rails->counts, &rails->links[node]);
    }
    return status;
}

static bool rail_take_arrays(cpu_rails *rails, const ep_shape *shape)
{
    const size_t nodes = (size_t)rails->shape.nodes, channels = (size_t)shape->channels, rings = nodes * channels;
    rails->links = calloc(nodes, sizeof *rails->links);
    rails->batches = calloc(rings * (size_t)rails->shape.chunks, sizeof *rails->batches);
    rails->work = calloc(2 * rings * (size_t)rails->shape.chunks, sizeof *rails->work);
    rails->passed = calloc(6 * nodes, sizeof *rails->passed);
    rails->rings = calloc(rings, sizeof *rails->rings);
    rails->next = calloc(rings * (size_t)rails->shape.each, sizeof *rails->next);
    return rails->links && rails->batches && rails->work && rails->passed && rails->rings && rails->next;
}

/* Makes the part of the object on which its place in the heap depends. */
expar_status rail_make(cpu_executor *self, const executor_plan *plan)
{
    int32_t each;
    expar_status status = ranks_a_node(plan->group, &each);
    if (status != EXPAR_OK) return status;
    self->rails = calloc(1, sizeof *self->rails);
    if (!self->rails) return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory");
    cpu_rails *rails = self->rails;
    rails->shape = ep_rails_of(plan->group->size / each, each, plan->shape, plan->ring_slots);
    rails->space = ep_rail_space_of(&rails->shape, plan->shape);
    rails->node = ep_node_of(&rails->shape, self->sym->rank);
    rails->local = ep_local_of(&rails->shape, self->sym->rank);
    self->nodes = &rail_ops;
    self->near_first = rails->node * each;
    self->near_ranks = each;
    self->base.by_node = true;
    self->base.sent = &rails->counts;
    if (!rail_take_arrays(rails, plan->shape)) return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory for rails");
    status = rail_space_make(self, plan->shape, &rails->spare);
    return status == EXPAR_OK ? rail_open_links(self) : status;
}

/* Clears only the flags of headers and places: the rest may be large, and is never touched. */
void rail_clear(cpu_executor *self)
{
    cpu_rails *rails = self->rails;
    const ep_rail_space *space = &rails->space;
    rails->here = sym_at(self->sym, self->sym->rank, self->buffer);
    for (uint32_t parity = 0; parity < 2; parity++)
        for (int32_t node = 0; node < rails->shape.nodes; node++)
            memset(rail_at(self, ep_rail_header_at(space, rails->shape.nodes, parity, node)), 0,
                   sizeof(ep_rail_header));
    memset(rail_at(self, space->replies), 0, space->places - space->replies);
    for (uint64_t ring = 0; ring < (uint64_t)rails->shape.nodes * (uint64_t)self->shape.channels; ring++)
        for (int32_t place = 0; place < rails->shape.chunks; place++)
            memset(rail_at(self, space->places + ep_rail_chunk_end(&rails->shape, ring, place)), 0,
                   sizeof(ep_rail_end));
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void rail_linger_begin(cpu_executor *self)
{
    cpu_rails *rails = self->rails;
    if (rails->gone_ns == 0) rails->gone_ns = clock_ns() + knob(KNOB_LINK_LINGER_NS);
    interrupt_at(rails->gone_ns);
}

void rail_linger_end(void)
{
    interrupt_at(0);
}

/* For a call that has not come to its end: when this word has arrived, all of its chunks and heads have, too. */
static void rail_send_last(const cpu_executor *self)
{
    cpu_rails *rails = self->rails;
    const link_flag last = {.offset = self->buffer + ep_rail_last_at(&rails->space, rails->shape.nodes, rails->node),
                            .word = 1};
    for (int32_t i = 0; i < rails->shape.nodes - 1; i++)
        link_set_flag(&rails->links[rail_node_in_turn(rails, i)], &last, &rails->flags);
}

/* Comes before the memory of the batches is freed and, if sound, that of the buffer. Data that are still under way when
   the wait ends are dropped. */
static void rail_settle(const cpu_executor *self, bool sound)
{
    cpu_rails *rails = self->rails;
    const size_t batches = (size_t)rails->shape.nodes * (size_t)self->shape.channels * (size_t)rails->shape.chunks;
    if (sound && rails->unconfirmed) rail_send_last(self);
    link_quiet(self->sym, &rails->headers[0]);
    link_quiet(self->sym, &rails->headers[1]);
    link_quiet(self->sym, &rails->flags);
    for (size_t i = 0; rails->batches && i < batches; i++)
        link_quiet(self->sym, &rails->batches[i]);
}

void rail_free(cpu_executor *self, bool sound)
{
    error_kept kept;
    cpu_rails *rails = self->rails;
    if (!rails) return;
    error_save(&kept);
    if (!sound) rail_linger_begin(self);
    rail_settle(self, sound);
    rail_linger_end();
    error_put_back(&kept);
    rail_space_free(&rails->spare);
    free(rails->next);
    free(rails->rings);
    free(rails->passed);
    free(rails->work);
    free(rails->batches);
    free(rails->links);
    free(rails);
    self->nodes = NULL;
    self->rails = NULL;
}

expar_status rail_ended(const cpu_executor *self, expar_status status)
{
    error_kept kept;
    if (status != EXPAR_ERR_PEER) return status;
    error_keep(&kept, status);
    const expar_status failed = sym_check(self->sym, "rows across nodes");
    return failed != EXPAR_OK ? failed : error_restore(&kept);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* Sets how many slots move by the ring of the channel: records from their sources, or sums back to them. */
static void ring_begin(const cpu_executor *self, const ep_routing *routing, int32_t joined, bool back, int32_t channel,
                       int32_t node)
{
    rail_ring *ring = rail_ring_of(self, channel, node);
    const int32_t *out = rail_records_out(routing, node), *in = rail_records_in(routing, node);
    ring->goes = (uint32_t)ep_rows_of_ring(back ? in : out, routing->channels, joined, channel);
    ring->comes = (uint32_t)ep_rows_of_ring(back ? out : in, routing->channels, joined, channel);
    ring->token = ep_ring_begin(routing->tokens, routing->channels, joined, channel);
    for (int32_t l = 0; l < self->rails->shape.each; l++)
        rail_next_of(self, channel, node)[l] = ep_rows_before_ring(rail_rows_in(routing, node, l), joined, channel);
}

void rail_begin(cpu_executor *self, const ep_rail_slot *slot, const ep_routing *routing, int32_t joined, bool back)
{
    cpu_rails *rails = self->rails;
    const size_t rings = (size_t)rails->shape.nodes * (size_t)self->shape.channels;
    rails->unconfirmed = true;
    rails->back = back;
    rails->holds = false;
    rails->slot = *slot;
    rails->slots = (uint32_t)(rails->shape.chunk_bytes / rails->slot.bytes);
    if (rails->slots == 0) rails->slots = 1;
    rails->pieces = (uint32_t)((rails->slot.bytes + rails->shape.chunk_bytes - 1) / rails->shape.chunk_bytes);
    memset(rails->rings, 0, rings * sizeof *rails->rings);
    for (int32_t c = 0; c < ep_rings_of(routing->channels, joined); c++)
        for (int32_t i = 0; i < rails->shape.nodes - 1; i++)
            ring_begin(self, routing, joined, back, c, rail_node_in_turn(rails, i));
}
