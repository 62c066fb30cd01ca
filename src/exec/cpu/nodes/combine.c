/* SPDX-License-Identifier: Apache-2.0 */
/* Combine across nodes.
 *
 * Forwarder: for each record that its rail has sent here, in that order, it adds the rows of this node's ranks, in
 * place or from the rings that they fill for it, in rank order, and sends one row back. Source: adds a token's biases,
 * then the sums of the nodes that had it, ascending, its own node's at its place, as soon as all of them lie ready.
 * Each node's sum is FP32 from +0, rounded once to the payload's type unless it is to stay exact; sums of weights stay
 * FP32. */
#include "exec/cpu/nodes/rails.h"

#include <string.h>

static int64_t elements_of(const cpu_combine_run *run)
{
    return run->step->row_bytes / (int64_t)expar_dtype_bytes((expar_dtype)run->step->form.dtype);
}

void rail_combine_begin(const cpu_combine_run *run)
{
    const int64_t bytes = rail_is_exact(run) ? elements_of(run) * (int64_t)sizeof(float) : run->step->row_bytes;
    rail_begin(run->self, &run->step->form, bytes, run->routing, run->joined);
}

static uint32_t sums_of(const cpu_combine_run *run, const int32_t *prefix, int32_t channel)
{
    return (uint32_t)ep_rows_of_ring(prefix, run->routing->channels, run->joined, channel);
}

/* What a node's rows add up to: rounded to their type, or not. */
static void sum_node(const cpu_combine_run *run, void *sum, const void *const *rows, int32_t count)
{
    const expar_dtype dtype = (expar_dtype)run->step->form.dtype;
    if (rail_is_exact(run))
        rail_sum_wide(dtype, sum, rows, count, elements_of(run));
    else
        cpu_sum_rows(dtype, sum, rows, count, elements_of(run));
}

/* ---- forwarder --------------------------------------------------------------------------------------------------- */

/* One record's rows at this node's ranks, ranks ascending; scratch of a worker's. */
typedef struct node_rows {
    const void **rows, **weights;
    int32_t count;
} node_rows;

/* The row of a local rank that has the record: false while it has not come. */
static bool find_node_row(const cpu_combine_run *run, int32_t channel, int32_t node, int32_t local, node_rows *found)
{
    cpu_executor *self = run->self;
    const sym *memory = self->sym;
    const int32_t rank = self->near_first + local, peer = ep_rail_of(&self->rails->shape, node, rank);
    const ep_offer *offer = cpu_combine_offer(run, rank);
    const int64_t row = (int64_t)rail_first_row(run->routing, node, local) + rail_next_of(self, channel, node)[local];
    if (row >= offer->rows) return true;
    if (offer->mode == EP_MODE_DIRECT) {
        found->rows[found->count] = (const uint8_t *)sym_at(memory, rank, offer->x_offset) + row * offer->x_pitch_bytes;
        found->weights[found->count++] =
            (const uint8_t *)sym_at(memory, rank, offer->weights_offset) + row * offer->weights_pitch_bytes;
        return true;
    }
    if (!cpu_ring_ready(self, run->step->epoch, channel, peer)) return false;
    const uint8_t *front = cpu_ring_front(self, channel, peer);
    found->rows[found->count] = front;
    found->weights[found->count++] = front + self->slot.weights;
    return true;
}

static bool find_node_rows(const cpu_combine_run *run, int32_t channel, int32_t node, const _Atomic uint64_t *mask,
                           node_rows *found)
{
    for (int32_t l = 0; l < run->self->rails->shape.each; l++)
        if (rail_mask_has(mask, l) && !find_node_row(run, channel, node, l, found)) return false;
    return true;
}

/* They have been added. */
static void pop_node_rows(const cpu_combine_run *run, int32_t channel, int32_t node, const _Atomic uint64_t *mask)
{
    cpu_executor *self = run->self;
    int32_t *next = rail_next_of(self, channel, node);
    for (int32_t l = 0; l < self->rails->shape.each; l++) {
        if (!rail_mask_has(mask, l)) continue;
        const ep_offer *offer = cpu_combine_offer(run, self->near_first + l);
        const int64_t row = (int64_t)rail_first_row(run->routing, node, l) + next[l]++;
        if (row < offer->rows && offer->mode != EP_MODE_DIRECT)
            cpu_ring_pop(self, run->step->epoch, channel, ep_rail_of(&self->rails->shape, node, self->near_first + l));
    }
}

static void fill_sum(const cpu_combine_run *run, uint8_t *slot, uint32_t number, const node_rows *found)
{
    const ep_rail_slot *at = &run->self->rails->slot;
    memcpy(slot + at->number, &number, sizeof number);
    sum_node(run, slot + at->x, found->rows, found->count);
    if (run->step->form.weights)
        cpu_sum_rows(EXPAR_F32, slot + at->weights, found->weights, found->count, run->routing->topk);
}

/* Sends back the sums of the channel's records from the node, until rows or a place are missing. */
static bool return_sums(const cpu_combine_run *run, int32_t worker, int32_t channel, int32_t node, cpu_lane_turn *turn)
{
    cpu_executor *self = run->self;
    const int32_t *prefix = rail_records_in(run->routing, node);
    const uint32_t all = sums_of(run, prefix, channel), before = rail_ring_of(self, channel, node)->put;
    const int64_t first = ep_rows_before_ring(prefix, run->joined, channel);
    rail_ring *ring = rail_ring_of(self, channel, node);
    while (ring->put < all && turn->status == EXPAR_OK) {
        const void **scratch = cpu_sources_of(self, worker);
        node_rows found = {.rows = scratch, .weights = scratch + self->near_ranks};
        const _Atomic uint64_t *mask = rail_mask_at(run->routing->rails, node, first + ring->put);
        if (!find_node_rows(run, channel, node, mask, &found)) break;
        uint8_t *slot = rail_slot_free(self, run->step->epoch, channel, node, &turn->status);
        if (!slot) break;
        fill_sum(run, slot, ring->put, &found);
        pop_node_rows(run, channel, node, mask);
        turn->status = rail_slot_push(self, run->step->epoch, channel, node, all);
    }
    turn->open += all - ring->put;
    return ring->put != before;
}

bool rail_return_turn(const cpu_combine_run *run, int32_t worker, int32_t channel, cpu_lane_turn *turn)
{
    const cpu_rails *rails = run->self->rails;
    bool moved = false;
    for (int32_t i = 0; i < rails->shape.nodes - 1 && turn->status == EXPAR_OK; i++)
        moved |= return_sums(run, worker, channel, rail_node_in_turn(rails, i), turn);
    return moved;
}

/* ---- source ------------------------------------------------------------------------------------------------------ */

/* The oldest sum from a node, which has to be the ring's next one. */
static const uint8_t *sum_front(const cpu_combine_run *run, int32_t channel, int32_t node, expar_status *status)
{
    cpu_executor *self = run->self;
    const uint32_t all = sums_of(run, rail_records_out(run->routing, node), channel);
    const uint8_t *slot = rail_slot_front(self, run->step->epoch, channel, node, all, status);
    uint32_t number;
    if (!slot) return NULL;
    memcpy(&number, slot + self->rails->slot.number, sizeof number);
    if (number == rail_ring_of(self, channel, node)->taken) return slot;
    *status = error_set(EXPAR_ERR_PEER, "rank %d has sent sum %u where %u was to come",
                        ep_rail_of(&self->rails->shape, node, self->sym->rank), number,
                        rail_ring_of(self, channel, node)->taken);
    return NULL;
}

static bool has_target(const cpu_combine_run *run, int64_t token, int32_t node)
{
    const ep_target *end;
    return rail_targets(run->routing, token, node, &end) != NULL;
}

bool rail_sums_ready(const cpu_combine_run *run, int32_t channel, int64_t token, expar_status *status)
{
    const cpu_rails *rails = run->self->rails;
    for (int32_t node = 0; node < rails->shape.nodes; node++)
        if (node != rails->node && has_target(run, token, node) && !sum_front(run, channel, node, status)) return false;
    return true;
}

expar_status rail_sums_pop(const cpu_combine_run *run, int32_t channel, int64_t token)
{
    const cpu_rails *rails = run->self->rails;
    expar_status status = EXPAR_OK;
    for (int32_t node = 0; node < rails->shape.nodes && status == EXPAR_OK; node++)
        if (node != rails->node && has_target(run, token, node))
            status = rail_slot_pop(run->self, run->step->epoch, channel, node,
                                   sums_of(run, rail_records_out(run->routing, node), channel));
    return status;
}

/* Room for what this node's ranks add up to: a row, and weights behind it. */
static uint8_t *own_sum(const cpu_combine_run *run, int32_t channel)
{
    return run->self->rails->sums + (uint64_t)channel * run->self->rails->sum_bytes;
}

/* Of the other nodes' slots: the part that begins at `at`; own: what this node has at its place, NULL for none. */
static int32_t gather_sums(const cpu_combine_run *run, const cpu_token_part *part, uint64_t at, const void *own,
                           const void **rows)
{
    const cpu_rails *rails = run->self->rails;
    int32_t count = 0;
    for (int32_t node = 0; node < rails->shape.nodes; node++) {
        expar_status unused;
        if (node == rails->node && own) rows[count++] = own;
        if (node != rails->node && has_target(run, part->token, node))
            rows[count++] = sum_front(run, part->channel, node, &unused) + at;
    }
    return count;
}

int32_t rail_find_sums(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    uint8_t *own = own_sum(run, part->channel);
    const int32_t count = cpu_rows_by_rank(run, part, rows);
    sum_node(run, own, rows, count);
    return gather_sums(run, part, run->self->rails->slot.x, count > 0 ? own : NULL, rows);
}

int32_t rail_find_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    const int64_t behind_row = (int64_t)run->self->rails->sum_bytes - 4 * (int64_t)run->self->shape.topk;
    float *own = (float *)(own_sum(run, part->channel) + behind_row);
    const int32_t count = cpu_weights_by_rank(run, part, rows);
    cpu_sum_rows(EXPAR_F32, own, rows, count, run->routing->topk);
    return gather_sums(run, part, run->self->rails->slot.weights, count > 0 ? own : NULL, rows);
}

void rail_combine_report(const cpu_combine_run *run, int32_t worker, cpu_report *report)
{
    const cpu_executor *self = run->self;
    const int32_t rings = ep_rings_of(run->routing->channels, run->joined);
    for (int32_t i = 0; i < self->rails->shape.nodes - 1; i++) {
        const int32_t node = rail_node_in_turn(self->rails, i);
        uint64_t came = 0, expected = 0, put = 0, all = 0;
        for (int32_t c = worker; c < rings; c += self->active) {
            came += rail_ring_of(self, c, node)->taken;
            expected += sums_of(run, rail_records_out(run->routing, node), c);
            put += rail_ring_of(self, c, node)->put;
            all += sums_of(run, rail_records_in(run->routing, node), c);
        }
        const int32_t rank = ep_rail_of(&self->rails->shape, node, self->sym->rank);
        cpu_report_add(report, rank, "sums from", came, expected);
        cpu_report_add(report, rank, "sums to", put, all);
    }
}
