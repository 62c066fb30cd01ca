/* SPDX-License-Identifier: Apache-2.0 */
/* Combine across nodes.
 *
 * Forwarder: takes the records that its rail has sent here, in that order. For each it adds the rows of this node's
 * ranks, in place or from the rings that they fill for it, and sends one row back. Source: adds a token's biases, then
 * the sums of the nodes that had it, its own node's at its place, as soon as all of them are ready.
 *
 * Both add in the order of the call's sums. By rank, ranks and then nodes ascend. By slots, ranks (or slots) of a node
 * follow their slots, and nodes follow their last ones. Each node's sum is FP32 from +0, rounded once to the payload's
 * type unless it must stay exact. Sums of weights stay FP32, and those of owners come unchanged. With the own node
 * first, its rows are added one by one, and the other nodes' sums follow. In one order over all nodes, rows go back in
 * place of their sum, and the source adds them in another way (one_order.c). */
#include "exec/cpu/nodes/rails.h"

#include <string.h>

static int64_t elements_of(const cpu_combine_run *run, int64_t bytes)
{
    return bytes / (int64_t)expar_dtype_bytes((expar_dtype)run->step->form.dtype);
}

/* Returns how many bytes the sums take for so many bytes of a row. */
static int64_t sum_bytes_of(const cpu_combine_run *run, int64_t bytes)
{
    return rail_is_exact(run) ? elements_of(run, bytes) * (int64_t)sizeof(float) : bytes;
}

void rail_combine_begin(const cpu_combine_run *run)
{
    const ep_combine_step *step = run->step;
    const int64_t bytes = rail_is_one_order(run) ? run->part_bytes : sum_bytes_of(run, step->row_bytes);
    const ep_rail_slot slot = ep_rail_slot_of(0, bytes, 0, step->form.topk);
    rail_begin(run->self, &slot, run->routing, run->joined, true);
    run->self->rails->holds = run->carrier && rail_is_one_order(run);
    if (rail_is_one_order(run)) rail_count_rows(run);
}

/* Has the carrier add the rows of a record, rounded to their type or not. */
static void carry_node(const cpu_combine_run *run, int32_t channel, void *sum, const void *const *rows, int32_t count,
                       int64_t bytes)
{
    const cpu_carried_sum node = {.dtype = (expar_dtype)run->step->form.dtype,
                                  .sum = sum,
                                  .wide = rail_is_exact(run),
                                  .bytes = bytes,
                                  .rows = rows,
                                  .count = count,
                                  .wide_from = count};
    run->carrier->ops->sum(run->carrier, cpu_worker_of(run->self, channel), &node);
}

/* Makes the sum of a node's rows, rounded to their type or not. */
static void sum_node(const cpu_combine_run *run, void *sum, const void *const *rows, int32_t count, int64_t bytes)
{
    const expar_dtype dtype = (expar_dtype)run->step->form.dtype;
    if (rail_is_exact(run))
        rail_sum_wide(dtype, sum, rows, count, elements_of(run, bytes));
    else
        cpu_sum_rows(dtype, sum, rows, count, elements_of(run, bytes));
}

/* ---- forwarder --------------------------------------------------------------------------------------------------- */

/* Finds the row that the local rank returns for the record; false if it does not have the record, or has dropped the
   row. */
static bool given_locally(const cpu_combine_run *run, const cpu_token_part *part, int32_t local, cpu_given *out)
{
    const cpu_executor *self = run->self;
    const struct cpu_origin *record = part->origin;
    if (!rail_mask_has(record->kept, local)) return false;
    const int32_t rank = self->near_first + local, next = rail_next_of(self, part->channel, record->node)[local];
    *out = (cpu_given){.rank = rank,
                       .peer = ep_rail_of(&self->rails->shape, record->node, rank),
                       .row = (int64_t)rail_first_row(run->routing, record->node, local) + next};
    return out->row < cpu_combine_advert(run, rank)->rows;
}

static bool find_local(const cpu_combine_run *run, const cpu_token_part *part, int32_t rank, cpu_given *out)
{
    return rank < run->self->near_ranks && given_locally(run, part, rank, out);
}

/* Returns the local ranks of the record's slots; slots of other nodes have no owner here. */
static const uint16_t *local_owners(const cpu_combine_run *run, const cpu_token_part *part)
{
    const cpu_executor *self = run->self;
    uint16_t *owners = rail_scratch_of(run, part->channel, self->rails->spare.map.owners);
    const int32_t mask_words = ep_mask_words(self->near_ranks);
    for (int32_t i = mask_words; i < run->routing->rails->kept_words; i++) {
        const uint64_t four = atomic_load_explicit(&part->origin->kept[i], memory_order_relaxed);
        memcpy(owners + 4 * (i - mask_words), &four, sizeof four);
    }
    for (int32_t k = 0; k < run->routing->topk; k++)
        owners[k] = cpu_is_near(self, owners[k]) ? (uint16_t)(owners[k] - self->near_first) : (uint16_t)EP_NO_OWNER;
    return owners;
}

/* Returns the places as on one node, but only of this node's ranks. Their source may have routed by hand. */
cpu_places rail_places(const cpu_combine_run *run, const cpu_token_part *part)
{
    const ep_sum sum = {
        .order = run->sum.order, .ranks = run->self->near_ranks, .topk = run->routing->topk, .strangers = 1};
    const uint16_t *owners = run->routing->keeps_slots ? local_owners(run, part) : NULL;
    return (cpu_places){.sum = sum, .owners = owners, .find = find_local};
}

static bool record_is_ready(const cpu_combine_run *run, const cpu_token_part *part)
{
    for (int32_t l = 0; l < run->self->near_ranks; l++) {
        cpu_given given;
        if (given_locally(run, part, l, &given) && !cpu_given_ready(run, part->channel, &given)) return false;
    }
    return true;
}

static int32_t record_rows(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    int32_t count = 0;
    if (run->sum.order != EP_SUM_BY_RANK) {
        const cpu_places places = rail_places(run, part);
        return cpu_rows_by_place(run, part, &places, rows);
    }
    for (int32_t l = 0; l < run->self->near_ranks; l++) {
        cpu_given given;
        if (given_locally(run, part, l, &given)) rows[count++] = cpu_given_row(run, part, &given, -1);
    }
    return count;
}

static void fill_weights(const cpu_combine_run *run, float *out, const cpu_token_part *part, const void **rows)
{
    int32_t count = 0;
    if (run->step->form.weights_of == EP_WEIGHTS_OF_OWNER) {
        const cpu_places places = rail_places(run, part);
        cpu_take_weights(run, part, &places, out);
        return;
    }
    for (int32_t l = 0; l < run->self->near_ranks; l++) {
        cpu_given given;
        if (given_locally(run, part, l, &given)) rows[count++] = cpu_given_weights(run, part->channel, &given);
    }
    cpu_sum_rows(EXPAR_F32, out, rows, count, run->routing->topk);
}

/* The first part carries the weights, and of its rows the first one. */
static void back_slot_fill(const cpu_combine_run *run, uint8_t *slot, const rail_ring *ring, const cpu_token_part *part,
                           const void **rows)
{
    const ep_rail_slot *at = &run->self->rails->slot;
    if (rail_is_one_order(run)) {
        rail_fill_row(run, slot, part, ring->row);
    } else {
        const int32_t count = record_rows(run, part, rows);
        uint8_t *sum = slot + at->x + sum_bytes_of(run, part->begin);
        if (run->carrier)
            carry_node(run, part->channel, sum, rows, count, part->bytes);
        else
            sum_node(run, sum, rows, count, part->bytes);
    }
    memcpy(slot + at->number, &ring->put, sizeof ring->put);
    if (run->step->form.weights && part->begin == 0 && ring->row == 0)
        fill_weights(run, (float *)(slot + at->weights), part, rows);
}

/* The part's rows have been added, and with the last part those of the record. */
static void pop_rows(const cpu_combine_run *run, const cpu_token_part *part, bool last)
{
    int32_t *next = rail_next_of(run->self, part->channel, part->origin->node);
    for (int32_t l = 0; l < run->self->near_ranks; l++) {
        cpu_given given;
        if (given_locally(run, part, l, &given)) cpu_given_pop(run, part->channel, &given);
        if (last && rail_mask_has(part->origin->kept, l)) next[l]++;
    }
}

/* Moves on after the slot's contents: to the ring's next row, part and record. Returns true if the slot is full. */
static bool go_on(const cpu_combine_run *run, rail_ring *ring, const cpu_token_part *part)
{
    const bool one_order = rail_is_one_order(run);
    if (one_order && ++ring->row < rail_rows_of_record(run, part)) return true;
    const bool last = ++ring->part == run->parts;
    ring->row = 0;
    pop_rows(run, part, last);
    if (!last) return one_order;
    ring->part = 0;
    ring->record++;
    return true;
}

/* Sends back the sums of the channel's records from the node, or their rows, until rows or a place are missing. */
static bool return_sums(const cpu_combine_run *run, int32_t worker, int32_t channel, int32_t node, cpu_lane_turn *turn)
{
    cpu_executor *self = run->self;
    const int64_t first = ep_rows_before_ring(rail_records_in(run->routing, node), run->joined, channel);
    rail_ring *ring = rail_ring_of(self, channel, node);
    bool moved = rail_slot_go_on(self, run->step->epoch, channel, node, &turn->status);
    while (ring->put < ring->goes && turn->status == EXPAR_OK) {
        const struct cpu_origin record = {node, rail_mask_at(run->routing->rails, node, first + ring->record)};
        cpu_token_part part = {.channel = channel, .origin = &record, .begin = ring->part * run->part_bytes};
        part.bytes = cpu_part_bytes_at(run, part.begin);
        if (!record_is_ready(run, &part)) break;
        uint8_t *slot = rail_slot_free(self, run->step->epoch, channel, node, &turn->status);
        if (!slot) break;
        back_slot_fill(run, slot, ring, &part, cpu_sources_of(self, worker));
        moved = true;
        if (go_on(run, ring, &part)) turn->status = rail_slot_push(self, run->step->epoch, channel, node);
    }
    turn->open += rail_slots_left(ring) + rail_places_held(ring);
    return moved;
}

bool rail_combine_turn(const cpu_combine_run *run, int32_t worker, int32_t channel, cpu_lane_turn *turn)
{
    const cpu_rails *rails = run->self->rails;
    bool moved = false;
    for (int32_t i = 0; i < rails->shape.nodes - 1 && turn->status == EXPAR_OK; i++)
        moved |= return_sums(run, worker, channel, rail_node_in_turn(rails, i), turn);
    return moved;
}

/* ---- source ------------------------------------------------------------------------------------------------------ */

const uint8_t *rail_sum_front(const cpu_combine_run *run, int32_t channel, int32_t node, expar_status *status)
{
    cpu_executor *self = run->self;
    const uint8_t *slot = rail_slot_front(self, run->step->epoch, channel, node, status);
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

/* Says whether the sums of all other nodes that had the token are ready. */
static bool sums_are_ready(const cpu_combine_run *run, int32_t channel, int64_t token, expar_status *status)
{
    const cpu_rails *rails = run->self->rails;
    for (int32_t node = 0; node < rails->shape.nodes; node++)
        if (node != rails->node && has_target(run, token, node) && !rail_sum_front(run, channel, node, status))
            return false;
    return true;
}

static expar_status pop_sums(const cpu_combine_run *run, int32_t channel, int64_t token)
{
    const cpu_rails *rails = run->self->rails;
    expar_status status = EXPAR_OK;
    for (int32_t node = 0; node < rails->shape.nodes && status == EXPAR_OK; node++)
        if (node != rails->node && has_target(run, token, node))
            status = rail_slot_pop(run->self, run->step->epoch, channel, node);
    return status;
}

/* ---- source: the order of nodes ---------------------------------------------------------------------------------- */

/* By slots nodes follow their last ones, as ranks do inside a node. */
static ep_sum sum_of_nodes(const cpu_combine_run *run, int32_t order)
{
    return (ep_sum){.order = order == EP_SUM_BY_RANK ? EP_SUM_BY_RANK : EP_SUM_BY_SLOT,
                    .ranks = run->self->rails->shape.nodes,
                    .topk = run->routing->topk,
                    .strangers = 1};
}

/* Returns the nodes of the token's slots. */
static const uint16_t *owning_nodes(const cpu_combine_run *run, const cpu_token_part *part)
{
    const cpu_rails *rails = run->self->rails;
    const uint16_t *ranks = run->routing->owners + part->token * run->routing->topk;
    uint16_t *nodes = rail_scratch_of(run, part->channel, rails->spare.map.owners);
    for (int32_t k = 0; k < run->routing->topk; k++)
        nodes[k] = ranks[k] == EP_NO_OWNER ? (uint16_t)EP_NO_OWNER : (uint16_t)ep_node_of(&rails->shape, ranks[k]);
    return nodes;
}

/* Gathers the other nodes' sums: the part of their slots that begins at `at`. own: this node's row at its place, NULL
   for none. */
static int32_t gather_sums(const cpu_combine_run *run, const cpu_token_part *part, const ep_sum *sum, uint64_t at,
                           const void *own, const void **rows)
{
    const int32_t this_node = run->self->rails->node, places = ep_sum_places(sum);
    const uint16_t *owners = sum->order == EP_SUM_BY_RANK ? NULL : owning_nodes(run, part);
    int32_t count = 0;
    for (int32_t i = 0; i < places; i++) {
        const int32_t node = ep_sum_place(sum, owners, i).rank;
        expar_status unused;
        if (node == this_node && own) rows[count++] = own;
        if (node >= 0 && node != this_node && has_target(run, part->token, node))
            rows[count++] = rail_sum_front(run, part->channel, node, &unused) + at;
    }
    return count;
}

/* Finds the rows of the token's own node, then the sums of the nodes before it, from the nearest on. Node numbers go
   round. Returns how many there are. */
static int32_t find_own_first(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    const cpu_rails *rails = run->self->rails;
    const int32_t nodes = rails->shape.nodes;
    const uint64_t at = rails->slot.x + (uint64_t)part->begin;
    int32_t count = cpu_find_rows(run, part, rows);
    for (int32_t i = 1; i < nodes; i++) {
        const int32_t node = (rails->node + nodes - i) % nodes;
        expar_status unused;
        if (has_target(run, part->token, node)) rows[count++] = rail_sum_front(run, part->channel, node, &unused) + at;
    }
    return count;
}

/* Finds the sums of nodes in the order of the call; `own` stands for that of the own node. Returns how many there
   are. */
static int32_t find_sums(const cpu_combine_run *run, const cpu_token_part *part, const void *own, const void **rows)
{
    const ep_sum sum = sum_of_nodes(run, run->sum.order);
    const uint64_t at = run->self->rails->slot.x + (uint64_t)sum_bytes_of(run, part->begin);
    return gather_sums(run, part, &sum, at, own, rows);
}

/* The same, after making the sum of the own node. */
static int32_t make_sums(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    if (run->step->form.options & EP_OPTION_OWN_FIRST) return find_own_first(run, part, rows);
    void *own = rail_scratch_of(run, part->channel, 0);
    const int32_t count = cpu_find_rows(run, part, rows);
    sum_node(run, own, rows, count, part->bytes);
    return find_sums(run, part, count > 0 ? own : NULL, rows);
}

/* Finds the sums of their weights, nodes ascending. */
static int32_t find_node_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    const cpu_rails *rails = run->self->rails;
    float *own = rail_scratch_of(run, part->channel, rails->spare.map.weights);
    const ep_sum sum = sum_of_nodes(run, EP_SUM_BY_RANK);
    const int32_t count = cpu_find_weights(run, part, rows);
    cpu_sum_rows(EXPAR_F32, own, rows, count, run->routing->topk);
    return gather_sums(run, part, &sum, rails->slot.weights, count > 0 ? own : NULL, rows);
}

/* Takes the weights that the owners of slots on other nodes gave for them. */
static void take_far_weights(const cpu_combine_run *run, const cpu_token_part *part, float *out)
{
    const cpu_rails *rails = run->self->rails;
    const uint16_t *owners = owning_nodes(run, part);
    for (int32_t k = 0; k < run->routing->topk; k++) {
        const int32_t node = owners[k];
        expar_status unused;
        if (node == EP_NO_OWNER || node == rails->node || !has_target(run, part->token, node)) continue;
        const uint8_t *sum = rail_sum_front(run, part->channel, node, &unused);
        memcpy(&out[k], sum + rails->slot.weights + (size_t)k * sizeof *out, sizeof *out);
    }
}

void rail_add_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    float *weights = cpu_weights_of(run, part);
    if (!weights) return;
    if (run->step->form.weights_of == EP_WEIGHTS_OF_OWNER) {
        const cpu_places places = cpu_places_of(run, part->token);
        cpu_take_weights(run, part, &places, weights);
        take_far_weights(run, part, weights);
    } else {
        cpu_sum_rows(EXPAR_F32, weights, rows, find_node_weights(run, part, rows), run->routing->topk);
    }
}

/* ---- source: with a carrier -------------------------------------------------------------------------------------- */

/* Has the rows of the own node, which follow the biases, added as a group at the place of the own node's sum. */
static void group_own_rows(const cpu_combine_run *run, const cpu_token_part *part, const void **rows, int32_t biases,
                           cpu_carried_sum *out)
{
    static const char own = 0;
    const void **group = rows + 2 + run->self->shape.ranks; /* after biases, and a sum of each node */
    const int32_t count = cpu_find_rows(run, part, group);
    const int32_t all = biases + find_sums(run, part, count > 0 ? &own : NULL, rows + biases);
    out->group = group;
    out->group_count = count;
    out->wide_group = rail_is_exact(run);
    for (int32_t i = biases; i < all; i++) {
        if (rows[i] == &own)
            out->group_at = i;
        else
            rows[out->count++] = rows[i];
    }
}

static void carry_sums(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    const ep_combine_step *step = run->step;
    const int32_t biases = cpu_find_biases(step, part, rows);
    cpu_carried_sum sum = {.dtype = (expar_dtype)step->form.dtype,
                           .sum = (uint8_t *)step->y + part->token * step->y_pitch_bytes + part->begin,
                           .bytes = part->bytes,
                           .rows = rows,
                           .count = biases};
    if (step->form.options & EP_OPTION_OWN_FIRST)
        sum.count += find_own_first(run, part, rows + biases);
    else
        group_own_rows(run, part, rows, biases, &sum);
    sum.wide_from = rail_is_exact(run) ? biases : sum.count;
    run->carrier->ops->sum(run->carrier, cpu_worker_of(run->self, part->channel), &sum);
}

/* ---- source: one part -------------------------------------------------------------------------------------------- */

/* Adds biases, then the nodes' sums in order. */
static void add_sums(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    const ep_combine_step *step = run->step;
    const expar_dtype dtype = (expar_dtype)step->form.dtype;
    uint8_t *y = (uint8_t *)step->y + part->token * step->y_pitch_bytes + part->begin;
    const int32_t biases = cpu_find_biases(step, part, rows);
    const int32_t count = biases + make_sums(run, part, rows + biases);
    if (rail_is_exact(run))
        rail_sum_exact(dtype, y, rows, biases, count, elements_of(run, part->bytes));
    else
        cpu_sum_rows(dtype, y, rows, count, elements_of(run, part->bytes));
}

/* Sums come with all parts of a row; rows that come by themselves are popped as they are added. */
bool rail_add(const cpu_combine_run *run, int32_t worker, const cpu_token_part *part, int32_t *place,
              expar_status *status)
{
    const void **rows = cpu_sources_of(run->self, worker);
    if (*place == 0 && !sums_are_ready(run, part->channel, part->token, status)) return false;
    if (rail_is_one_order(run)) return rail_add_rows(run, part, rows, place, status);
    if (run->carrier)
        carry_sums(run, part, rows);
    else
        add_sums(run, part, rows);
    rail_add_weights(run, part, rows);
    if (part->begin + part->bytes == run->step->row_bytes) *status = pop_sums(run, part->channel, part->token);
    return true;
}
