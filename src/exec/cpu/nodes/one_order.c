/* SPDX-License-Identifier: Apache-2.0 */
/* Combine across nodes in one order: rows of all nodes are added as on one node, to the bit.
 *
 * There are no sums of nodes. Forwarder: each row of a record goes back by itself, in the order of its node's places.
 * If rows come in parts, all rows' first parts go first, then all rows' second parts. Both sides know from the routing
 * how many rows there are: one for each rank that had the token, or for each of its slots there. It is at least one,
 * which carries the node's weights. A row that was dropped goes as a slot that says so.
 *
 * Source: a part begins when the first row from each node has come, and all rows of this node. Then rows are added as
 * far as they have come, place by place over all nodes, to FP32 sums in the channel's scratch; the cursor keeps the
 * place. With a carrier their addresses are gathered, and all are added when the last one has come. Until then their
 * places are held, so all of a token's rows from a node must find places (rail_tokens_fit). It waits for the oldest
 * slot of one ring, and that ring is empty before it. So there is a place for that slot. */
#include "exec/cpu/nodes/rails.h"

#include <string.h>

static bool has_row_of_slots(const cpu_combine_run *run)
{
    return run->sum.order == EP_SUM_EACH_SLOT;
}

/* Returns the offset of the word after the number, which says whether there is a row. */
static uint64_t presence_at(const ep_rail_slot *slot)
{
    return slot->number + sizeof(uint32_t);
}

/* ---- forwarder --------------------------------------------------------------------------------------------------- */

/* Says whether the record has a row at the place, dropped or not. */
static bool is_at_place(const cpu_token_part *part, ep_place place)
{
    return place.rank >= 0 && rail_mask_has(part->origin->kept, place.rank);
}

int32_t rail_rows_of_record(const cpu_combine_run *run, const cpu_token_part *part)
{
    const cpu_places places = rail_places(run, part);
    const int32_t all = ep_sum_places(&places.sum);
    int32_t count = 0;
    for (int32_t i = 0; i < all; i++)
        count += is_at_place(part, ep_sum_place(&places.sum, places.owners, i));
    return count > 0 ? count : 1;
}

/* Returns the row that the place's rank returns, or NULL. */
static const void *row_at_place(const cpu_combine_run *run, const cpu_token_part *part, const cpu_places *places,
                                ep_place place)
{
    cpu_given given;
    if (place.rank < 0 || !places->find(run, part, place.rank, &given)) return NULL;
    return cpu_given_row(run, part, &given, place.slot);
}

void rail_fill_row(const cpu_combine_run *run, uint8_t *slot, const cpu_token_part *part, int32_t row)
{
    const ep_rail_slot *at = &run->self->rails->slot;
    const cpu_places places = rail_places(run, part);
    const int32_t all = ep_sum_places(&places.sum);
    const void *bytes = NULL;
    for (int32_t i = 0; i < all && row >= 0; i++) {
        const ep_place place = ep_sum_place(&places.sum, places.owners, i);
        if (is_at_place(part, place) && row-- == 0) bytes = row_at_place(run, part, &places, place);
    }
    const uint32_t present = bytes != NULL;
    memcpy(slot + presence_at(at), &present, sizeof present);
    if (bytes && run->carrier)
        run->carrier->ops->copy(run->carrier, cpu_worker_of(run->self, part->channel), slot + at->x, bytes,
                                part->bytes);
    else if (bytes)
        cpu_copy_row(slot + at->x, bytes, (size_t)part->bytes, false);
}

/* ---- both: how many ---------------------------------------------------------------------------------------------- */

/* Says whether the token goes to a rank of another node. */
static bool goes_across(const cpu_combine_run *run, int64_t token, int32_t rank)
{
    const int32_t node = ep_node_of(&run->self->rails->shape, rank);
    const ep_target *end, *target = rail_targets(run->routing, token, node, &end);
    for (; target && target < end; target++)
        if (target->rank == rank) return true;
    return false;
}

/* Returns how many of the token's rows have a place on that node, for each part. */
static int32_t rows_from(const cpu_combine_run *run, int64_t token, int32_t node)
{
    const ep_target *end, *target = rail_targets(run->routing, token, node, &end);
    int32_t count = 0;
    if (!target) return 0;
    if (!has_row_of_slots(run)) return (int32_t)(end - target);
    const uint16_t *owners = run->routing->owners + token * run->routing->topk;
    for (; target < end; target++)
        for (int32_t k = 0; k < run->routing->topk; k++)
            count += owners[k] == target->rank;
    return count;
}

/* Says whether the node has the token, but none of its slots. */
static bool has_no_row(const cpu_combine_run *run, int64_t token, int32_t node)
{
    const ep_target *end;
    return rail_targets(run->routing, token, node, &end) && rows_from(run, token, node) == 0;
}

static uint32_t slots_from(const cpu_combine_run *run, int32_t channel, int32_t node)
{
    const ep_routing *routing = run->routing;
    const int64_t end = ep_ring_begin(routing->tokens, routing->channels, run->joined, channel + 1);
    int64_t t = ep_ring_begin(routing->tokens, routing->channels, run->joined, channel), count = 0;
    for (; t < end; t++)
        count += has_no_row(run, t, node) ? 1 : rows_from(run, t, node);
    return (uint32_t)count * run->parts;
}

static uint32_t slots_towards(const cpu_combine_run *run, int32_t channel, int32_t node)
{
    const int32_t *prefix = rail_records_in(run->routing, node);
    const int64_t first = ep_rows_before_ring(prefix, run->joined, channel);
    const int64_t end = first + ep_rows_of_ring(prefix, run->routing->channels, run->joined, channel);
    int64_t count = 0;
    for (int64_t r = first; r < end; r++) {
        const struct cpu_origin record = {node, rail_mask_at(run->routing->rails, node, r)};
        count += rail_rows_of_record(run, &(cpu_token_part){.channel = channel, .origin = &record});
    }
    return (uint32_t)count * run->parts;
}

void rail_count_rows(const cpu_combine_run *run)
{
    const cpu_rails *rails = run->self->rails;
    for (int32_t c = 0; c < ep_rings_of(run->routing->channels, run->joined); c++)
        for (int32_t i = 0; i < rails->shape.nodes - 1; i++) {
            const int32_t node = rail_node_in_turn(rails, i);
            rail_ring *ring = rail_ring_of(run->self, c, node);
            ring->goes = slots_towards(run, c, node);
            ring->comes = slots_from(run, c, node);
        }
}

/* ---- source ------------------------------------------------------------------------------------------------------ */

static int64_t elements_in(const cpu_combine_run *run, const cpu_token_part *part)
{
    return part->bytes / (int64_t)expar_dtype_bytes((expar_dtype)run->step->form.dtype);
}

static rail_gathered *gathered_of(const cpu_combine_run *run, int32_t channel)
{
    return rail_scratch_of(run, channel, run->self->rails->spare.map.gathered);
}

/* Adds the row, or gathers it for the carrier. */
static void add(const cpu_combine_run *run, const cpu_token_part *part, const void *row)
{
    float *sums = rail_scratch_of(run, part->channel, 0);
    rail_gathered *gathered = gathered_of(run, part->channel);
    if (!row) return;
    if (run->carrier)
        gathered->rows[gathered->count++] = row;
    else
        rail_add_row((expar_dtype)run->step->form.dtype, sums, row, elements_in(run, part));
}

/* Adds the oldest slot from the node. Returns false if it has not come. */
static bool add_next(const cpu_combine_run *run, const cpu_token_part *part, int32_t node, expar_status *status)
{
    const ep_rail_slot *at = &run->self->rails->slot;
    const uint8_t *slot = rail_sum_front(run, part->channel, node, status);
    uint32_t present;
    if (!slot) return false;
    memcpy(&present, slot + presence_at(at), sizeof present);
    add(run, part, present ? slot + at->x : NULL);
    *status = rail_slot_pop(run->self, run->step->epoch, part->channel, node);
    return *status == EXPAR_OK;
}

/* Pops slots that carry only weights, which have been taken. */
static void pop_without_row(const cpu_combine_run *run, const cpu_token_part *part, expar_status *status)
{
    const cpu_rails *rails = run->self->rails;
    for (int32_t i = 0; i < rails->shape.nodes - 1 && *status == EXPAR_OK; i++) {
        const int32_t node = rail_node_in_turn(rails, i);
        if (has_no_row(run, part->token, node)) add_next(run, part, node, status);
    }
}

/* The sum begins with the biases. */
static void begin_part(const cpu_combine_run *run, const cpu_token_part *part, const void **rows, expar_status *status)
{
    const int32_t biases = cpu_find_biases(run->step, part, rows);
    gathered_of(run, part->channel)->count = 0;
    if (!run->carrier)
        memset(rail_scratch_of(run, part->channel, 0), 0, (size_t)elements_in(run, part) * sizeof(float));
    for (int32_t i = 0; i < biases; i++)
        add(run, part, rows[i]);
    rail_add_weights(run, part, rows);
    if (has_row_of_slots(run)) pop_without_row(run, part, status);
}

/* All rows are there. Afterwards the places of those from other nodes may go. */
static void finish_part(const cpu_combine_run *run, const cpu_token_part *part)
{
    const ep_combine_step *step = run->step;
    const expar_dtype dtype = (expar_dtype)step->form.dtype;
    const rail_gathered *gathered = gathered_of(run, part->channel);
    uint8_t *y = (uint8_t *)step->y + part->token * step->y_pitch_bytes + part->begin;
    const cpu_carried_sum sum = {.dtype = dtype,
                                 .sum = y,
                                 .bytes = part->bytes,
                                 .rows = gathered->rows,
                                 .count = (int32_t)gathered->count,
                                 .wide_from = (int32_t)gathered->count};
    if (!run->carrier) {
        rail_round_sums(dtype, y, rail_scratch_of(run, part->channel, 0), elements_in(run, part));
        return;
    }
    run->carrier->ops->sum(run->carrier, cpu_worker_of(run->self, part->channel), &sum);
    rail_places_settle(run->self, part->channel);
}

/* Chunks that have rows of one token begin at any slot of the first one. */
bool rail_tokens_fit(const cpu_executor *self, const ep_form *form, int64_t row_bytes)
{
    const ep_rails *shape = &self->rails->shape;
    const uint64_t slots = shape->chunk_bytes / ep_rail_slot_of(0, row_bytes, 0, form->topk).bytes;
    const int32_t most = form->sum_order == EP_SUM_EACH_SLOT ? form->topk : shape->each;
    return (uint64_t)most <= slots * (uint64_t)(shape->chunks - 1) + 1;
}

bool rail_add_rows(const cpu_combine_run *run, const cpu_token_part *part, const void **rows, int32_t *place,
                   expar_status *status)
{
    const cpu_places places = cpu_places_of(run, part->token);
    const int32_t all = ep_sum_places(&places.sum);
    if (*place == 0) begin_part(run, part, rows, status);
    for (; *place < all && *status == EXPAR_OK; ++*place) {
        const ep_place at = ep_sum_place(&places.sum, places.owners, *place);
        if (at.rank < 0) continue;
        if (cpu_is_near(run->self, at.rank))
            add(run, part, row_at_place(run, part, &places, at));
        else if (goes_across(run, part->token, at.rank) &&
                 !add_next(run, part, ep_node_of(&run->self->rails->shape, at.rank), status))
            return false;
    }
    if (*status != EXPAR_OK) return false;
    finish_part(run, part);
    *place = 0;
    return true;
}
