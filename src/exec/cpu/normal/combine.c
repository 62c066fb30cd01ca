/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: the way back. A rank is provider of the rows that it received, and owner of the tokens that it sent.
 *
 * 1. Advertisements, with the headers. Each provider tells each owner where its rows lie, or that they come by the
 *    queue.
 * 2. Rows. Direct: the owner reads a token's rows where they are, adds them in the order of the call's sums (ep_sum)
 *    and writes the sum. That is one read for each row and one write for each token. Queue: the provider puts rows into
 *    the owner's ring, in the owner's token order. The owner adds a token as soon as all of its rows are there. Sums
 *    of each slot's row go through the rings in parts (ep_slot_part_bytes), and are added part by part.
 * 3. Completion flags. Each owner tells each provider that it has read all; only then may x be used again.
 *
 * Across nodes this is what happens inside a node. The data that other nodes return for a token are added with them,
 * and this node's rows for tokens of others go there (nodes.h). */
#include "exec/cpu/normal/nodes.h"

#include <string.h>

static cpu_combine_run combine_run_make(cpu_executor *self, const ep_combine_step *step)
{
    cpu_combine_run run = {
        .self = self, .step = step, .routing = step->routing, .sum = ep_sum_of(step->routing, step->form.sum_order)};
    run.joined = ep_channels_joined(step->routing->channels, self->shape.channels);
    run.part_bytes = ep_slot_part_bytes(self->slot.scales, &run.sum, step->row_bytes);
    run.parts = (uint32_t)((step->row_bytes + run.part_bytes - 1) / run.part_bytes);
    return run;
}

/* ---- advertisements ---------------------------------------------------------------------------------------------- */

const ep_advert *cpu_combine_advert(const cpu_combine_run *run, int32_t provider)
{
    return &cpu_header_from(run->self, run->step->epoch, provider)->advert;
}

static ep_advert *combine_header_advert(const cpu_executor *self, uint32_t epoch, int32_t rank)
{
    return &((ep_header *)(uintptr_t)cpu_header_from(self, epoch, rank))->advert;
}

/* As in a dispatch. */
static void combine_settle_carried(const cpu_executor *self, ep_combine_step *step)
{
    if (!self->nodes || cpu_settle_carried(self, combine_header_advert, step->epoch)) return;
    if (step->carried) step->mode = EP_MODE_QUEUE;
    step->carried = false;
}

static expar_status combine_exchange_adverts(cpu_executor *self, ep_combine_step *step)
{
    const cpu_adverts adverts = {.advert = {.x_offset = step->x_offset,
                                            .idx_offset = step->map_offset,
                                            .weights_offset = step->weights_offset,
                                            .x_pitch_bytes = step->x_pitch_bytes,
                                            .weights_pitch_bytes = step->weights_pitch * (int64_t)sizeof(float),
                                            .rows = step->rows,
                                            .mode = step->mode,
                                            .carried = step->carried}};
    if (self->nodes) self->nodes->admit(step->routing, true, &step->rejection);
    expar_status status = cpu_header_post(self, step->epoch, &step->form, &step->rejection, &adverts, NULL);
    if (status == EXPAR_OK) status = cpu_mailbox_await(self, EP_MAILBOX_HEADER, step->epoch, "combine: advertisements");
    if (status == EXPAR_OK) cpu_header_judge(self, step->epoch, &step->vote);
    if (status == EXPAR_OK && step->vote.rank < 0) combine_settle_carried(self, step);
    return status;
}

/* ---- rows that a rank returns for a token ------------------------------------------------------------------------ */

static bool is_queued(const cpu_combine_run *run, const cpu_given *given)
{
    return cpu_combine_advert(run, given->rank)->mode != EP_MODE_DIRECT;
}

bool cpu_given_ready(const cpu_combine_run *run, int32_t channel, const cpu_given *given)
{
    return !is_queued(run, given) || cpu_ring_ready(run->self, run->step->epoch, channel, given->peer);
}

void cpu_given_pop(const cpu_combine_run *run, int32_t channel, const cpu_given *given)
{
    if (is_queued(run, given)) cpu_ring_pop(run->self, run->step->epoch, channel, given->peer);
}

const void *cpu_given_row(const cpu_combine_run *run, const cpu_token_part *part, const cpu_given *given, int32_t slot)
{
    const ep_advert *advert = cpu_combine_advert(run, given->rank);
    const sym *memory = run->self->sym;
    int64_t row = given->row;
    if (advert->mode != EP_MODE_DIRECT) {
        const uint8_t *front = cpu_ring_front(run->self, part->channel, given->peer);
        if (slot < 0) return front;
        return ((const int32_t *)(front + run->self->slot.idx))[slot] < 0 ? NULL : front + slot * run->part_bytes;
    }
    if (slot >= 0) row = ((const int32_t *)sym_at(memory, given->rank, advert->idx_offset))[row * run->sum.topk + slot];
    if (row < 0) return NULL;
    const uint8_t *x = run->carrier ? cpu_carried_at(run->carrier, given->rank, advert->x_offset)
                                    : sym_at(memory, given->rank, advert->x_offset);
    return x + row * advert->x_pitch_bytes + part->begin;
}

const float *cpu_given_weights(const cpu_combine_run *run, int32_t channel, const cpu_given *given)
{
    const ep_advert *advert = cpu_combine_advert(run, given->rank);
    const uint8_t *weights;
    if (advert->mode == EP_MODE_DIRECT)
        weights = (const uint8_t *)sym_at(run->self->sym, given->rank, advert->weights_offset) +
                  given->row * advert->weights_pitch_bytes;
    else
        weights = cpu_ring_front(run->self, channel, given->peer) + run->self->slot.weights;
    return (const float *)weights;
}

int32_t cpu_rows_by_place(const cpu_combine_run *run, const cpu_token_part *part, const cpu_places *places,
                          const void **rows)
{
    const int32_t all = ep_sum_places(&places->sum);
    int32_t count = 0;
    for (int32_t i = 0; i < all; i++) {
        const ep_place place = ep_sum_place(&places->sum, places->owners, i);
        cpu_given given;
        if (place.rank < 0 || !places->find(run, part, place.rank, &given)) continue;
        rows[count] = cpu_given_row(run, part, &given, place.slot);
        if (rows[count]) count++;
    }
    return count;
}

void cpu_take_weights(const cpu_combine_run *run, const cpu_token_part *part, const cpu_places *places, float *out)
{
    for (int32_t k = 0; k < run->routing->topk; k++) {
        cpu_given given;
        out[k] = 0.0f;
        if (places->find(run, part, places->owners[k], &given))
            memcpy(&out[k], &cpu_given_weights(run, part->channel, &given)[k], sizeof *out);
    }
}

/* ---- owner: one token -------------------------------------------------------------------------------------------- */

int32_t cpu_find_biases(const ep_combine_step *step, const cpu_token_part *part, const void **rows)
{
    int32_t count = 0;
    for (int32_t i = 0; i < 2; i++)
        if (step->bias[i])
            rows[count++] = (const uint8_t *)step->bias[i] + part->token * step->bias_pitch_bytes[i] + part->begin;
    return count;
}

/* Finds the row that a target of this node returns; false for a target of another node, and if the row was dropped. */
static bool given_by(const cpu_combine_run *run, ep_target target, cpu_given *out)
{
    if (!cpu_is_near(run->self, target.rank)) return false;
    const int64_t row = (int64_t)run->routing->first_row[target.rank] + target.index;
    *out = (cpu_given){.rank = target.rank, .peer = target.rank, .row = row};
    return row < cpu_combine_advert(run, target.rank)->rows;
}

/* Searches the token's targets for the rank: these lists are short. */
static bool find_given(const cpu_combine_run *run, const cpu_token_part *part, int32_t rank, cpu_given *out)
{
    const ep_routing *routing = run->routing;
    for (int64_t i = routing->first[part->token]; i < routing->first[part->token + 1]; i++)
        if (routing->targets[i].rank == rank) return given_by(run, routing->targets[i], out);
    return false;
}

cpu_places cpu_places_of(const cpu_combine_run *run, int64_t token)
{
    const uint16_t *owners = run->routing->owners;
    return (cpu_places){
        .sum = run->sum, .owners = owners ? owners + token * run->routing->topk : NULL, .find = find_given};
}

/* Takes the targets in their order. */
static int32_t find_rows_by_rank(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    const ep_routing *routing = run->routing;
    int32_t count = 0;
    for (int64_t i = routing->first[part->token]; i < routing->first[part->token + 1]; i++) {
        cpu_given given;
        if (given_by(run, routing->targets[i], &given)) rows[count++] = cpu_given_row(run, part, &given, -1);
    }
    return count;
}

int32_t cpu_find_rows(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    if (run->sum.order == EP_SUM_BY_RANK) return find_rows_by_rank(run, part, rows);
    const cpu_places places = cpu_places_of(run, part->token);
    return cpu_rows_by_place(run, part, &places, rows);
}

int32_t cpu_find_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    const ep_routing *routing = run->routing;
    int32_t count = 0;
    for (int64_t i = routing->first[part->token]; i < routing->first[part->token + 1]; i++) {
        cpu_given given;
        if (given_by(run, routing->targets[i], &given)) rows[count++] = cpu_given_weights(run, part->channel, &given);
    }
    return count;
}

/* The first part carries the weights. */
float *cpu_weights_of(const cpu_combine_run *run, const cpu_token_part *part)
{
    const ep_combine_step *step = run->step;
    return step->out_weights && part->begin == 0 ? step->out_weights + part->token * step->out_weights_pitch : NULL;
}

/* Sums weights slot by slot over all ranks, in rank order. */
static void combine_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows)
{
    float *weights = cpu_weights_of(run, part);
    if (!weights) return;
    if (run->step->form.weights_of == EP_WEIGHTS_OF_OWNER) {
        const cpu_places places = cpu_places_of(run, part->token);
        cpu_take_weights(run, part, &places, weights);
    } else {
        cpu_sum_rows(EXPAR_F32, weights, rows, cpu_find_weights(run, part, rows), run->routing->topk);
    }
}

/* Adds a part whose rows are all there: biases, then rows in order. */
static void sum_part(const cpu_combine_run *run, int32_t worker, const cpu_token_part *part)
{
    const ep_combine_step *step = run->step;
    const void **rows = cpu_sources_of(run->self, worker);
    const expar_dtype dtype = (expar_dtype)step->form.dtype;
    const int64_t elements = part->bytes / (int64_t)expar_dtype_bytes(dtype);
    uint8_t *y = (uint8_t *)step->y + part->token * step->y_pitch_bytes + part->begin;
    const int32_t biases = cpu_find_biases(step, part, rows);
    const int32_t count = biases + cpu_find_rows(run, part, rows + biases);
    cpu_sum_rows(dtype, y, rows, count, elements);
    combine_weights(run, part, rows);
}

/* All rows are direct: every worker takes an equal share of the tokens, and there is nothing to wait for. */
static void sum_share_direct(const cpu_combine_run *run, int32_t worker)
{
    int32_t workers = run->self->active;
    int64_t end = ep_channel_begin(run->routing->tokens, workers, worker + 1);
    for (int64_t t = ep_channel_begin(run->routing->tokens, workers, worker); t < end; t++)
        sum_part(run, worker, &(cpu_token_part){.token = t, .bytes = run->step->row_bytes});
}

/* Says whether each of the token's rows of this node is in place or at the front of its ring. */
static bool rows_ready(const cpu_combine_run *run, int32_t channel, int64_t token)
{
    const ep_routing *routing = run->routing;
    for (int64_t i = routing->first[token]; i < routing->first[token + 1]; i++) {
        cpu_given given;
        if (given_by(run, routing->targets[i], &given) && !cpu_given_ready(run, channel, &given)) return false;
    }
    return true;
}

static void free_slots(const cpu_combine_run *run, const cpu_token_part *part)
{
    const ep_routing *routing = run->routing;
    for (int64_t i = routing->first[part->token]; i < routing->first[part->token + 1]; i++) {
        cpu_given given;
        if (given_by(run, routing->targets[i], &given)) cpu_given_pop(run, part->channel, &given);
    }
}

static void next_part(const cpu_combine_run *run, cpu_cursor *cursor)
{
    if (++cursor->part < run->parts) return;
    cursor->part = 0;
    cursor->token++;
}

static int64_t combine_ring_begin(const cpu_combine_run *run, int32_t channel)
{
    return ep_ring_begin(run->routing->tokens, run->routing->channels, run->joined, channel);
}

/* Adds the next part of the channel's tokens, or the rows of it that have come. Returns true when the part is complete.
   `*moved` becomes true if any row was added. */
static bool sum_next(const cpu_combine_run *run, int32_t worker, int32_t channel, bool *moved, expar_status *status)
{
    const cpu_nodes_ops *nodes = run->self->nodes;
    cpu_cursor *cursor = &run->self->cursors[channel];
    const int32_t before = cursor->place;
    cpu_token_part part = {.token = cursor->token, .channel = channel, .begin = cursor->part * run->part_bytes};
    part.bytes = cpu_part_bytes_at(run, part.begin);
    if (before == 0 && !rows_ready(run, channel, cursor->token)) return false;
    const bool whole = !nodes || nodes->add(run, worker, &part, &cursor->place, status);
    if (!nodes) sum_part(run, worker, &part);
    *moved |= whole || cursor->place > before;
    if (whole) free_slots(run, &part);
    return whole;
}

/* Adds the parts of the channel's tokens until a row is missing; returns true if any was added. */
static bool sum_some(const cpu_combine_run *run, int32_t worker, int32_t channel, expar_status *status)
{
    cpu_cursor *cursor = &run->self->cursors[channel];
    int64_t end = combine_ring_begin(run, channel + 1);
    bool moved = false;
    for (; cursor->token < end && sum_next(run, worker, channel, &moved, status); next_part(run, cursor))
        if (*status != EXPAR_OK) break;
    return moved;
}

/* ---- provider ---------------------------------------------------------------------------------------------------- */

/* Returns the number of the first row that came from the owner's channel. */
static int64_t first_row_of(const cpu_combine_run *run, int32_t channel, int32_t owner)
{
    const int32_t *prefix = run->routing->recv_channel_prefix + (int64_t)owner * run->routing->channels;
    return (int64_t)ep_prefix_before(run->routing->rank_prefix, owner) +
           ep_rows_before_ring(prefix, run->joined, channel);
}

/* Returns how many slots of the channel's ring this rank fills for the owner; rows that were dropped do not exist. */
static uint32_t slots_to_fill(const cpu_combine_run *run, int32_t channel, int32_t owner)
{
    if (run->step->mode == EP_MODE_DIRECT) return 0;
    const int32_t channels = run->routing->channels;
    const int32_t *prefix = run->routing->recv_channel_prefix + (int64_t)owner * channels;
    int64_t came = ep_rows_of_ring(prefix, channels, run->joined, channel);
    int64_t spare = run->step->rows - first_row_of(run, channel, owner);
    return (uint32_t)(spare < 0 ? 0 : came < spare ? came : spare) * run->parts;
}

/* Copies the same part of the row of each of the token's slots. */
static void put_slot_rows(const cpu_combine_run *run, uint8_t *slot, int64_t row, int64_t begin)
{
    const ep_combine_step *step = run->step;
    const int32_t *map = step->map + row * run->sum.topk;
    memcpy(slot + run->self->slot.idx, map, (size_t)run->sum.topk * sizeof *map);
    for (int32_t k = 0; k < run->sum.topk; k++)
        if (map[k] >= 0)
            cpu_copy_row(slot + k * run->part_bytes, (const uint8_t *)step->x + map[k] * step->x_pitch_bytes + begin,
                         (size_t)cpu_part_bytes_at(run, begin), false);
}

static bool fill_slot(const cpu_combine_run *run, int32_t channel, int32_t owner)
{
    cpu_executor *self = run->self;
    const ep_combine_step *step = run->step;
    uint8_t *slot = cpu_ring_slot_free(self, step->epoch, channel, owner);
    if (!slot) return false;
    uint32_t put = cpu_ring_of(self, channel, owner)->put, part = put % run->parts;
    int64_t row = first_row_of(run, channel, owner) + put / run->parts;
    if (run->sum.order == EP_SUM_EACH_SLOT)
        put_slot_rows(run, slot, row, part * run->part_bytes);
    else
        cpu_copy_row(slot, (const uint8_t *)step->x + row * step->x_pitch_bytes, (size_t)step->row_bytes, false);
    if (step->weights && part == 0)
        memcpy(slot + self->slot.weights, step->weights + row * step->weights_pitch,
               (size_t)run->routing->topk * sizeof(float));
    cpu_ring_push(self, step->epoch, channel, owner);
    return true;
}

/* Fills the channel's rings; returns true if any row went. *open counts the rows that are still to go. */
static bool return_some(const cpu_combine_run *run, int32_t channel, uint64_t *open)
{
    bool moved = false;
    for (int32_t owner = 0; owner < run->routing->ranks; owner++) {
        uint32_t all = slots_to_fill(run, channel, owner);
        cpu_ring *ring = cpu_ring_of(run->self, channel, owner);
        while (ring->put < all && fill_slot(run, channel, owner))
            moved = true;
        *open += all - ring->put;
    }
    return moved;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static int32_t combine_rings(const cpu_combine_run *run)
{
    return ep_rings_of(run->routing->channels, run->joined);
}

/* Looks once at all channels of a lane; returns true if anything moved. turn->open counts rows and tokens. */
static bool combine_lane_turn(const void *context, int32_t worker, cpu_lane_turn *turn)
{
    const cpu_combine_run *run = context;
    bool moved = false;
    for (int32_t c = worker; c < combine_rings(run) && turn->status == EXPAR_OK; c += run->self->active) {
        moved |= return_some(run, c, &turn->open);
        if (run->self->nodes) moved |= run->self->nodes->combine_turn(run, worker, c, turn);
        if (turn->status == EXPAR_OK) moved |= sum_some(run, worker, c, &turn->status);
        cpu_ring_flush(run->self, run->step->epoch, c);
        turn->open += (uint64_t)(combine_ring_begin(run, c + 1) - run->self->cursors[c].token);
    }
    return moved;
}

/* Reports for each peer the rows that came back by its rings, and those that went into the peer's rings. */
static expar_status combine_report_lane(const void *context, int32_t worker, expar_status status)
{
    const cpu_combine_run *run = context;
    cpu_report report = {0};
    for (int32_t r = 0; r < run->routing->ranks; r++) {
        uint64_t came = 0, expected = 0, put = 0, all = 0;
        const int32_t channels = run->routing->channels, *prefix = run->routing->channel_prefix + (int64_t)r * channels;
        const bool near = cpu_is_near(run->self, r);
        for (int32_t c = worker; c < combine_rings(run); c += run->self->active) {
            came += cpu_ring_of(run->self, c, r)->taken;
            expected += (uint64_t)ep_rows_of_ring(prefix, channels, run->joined, c) * run->parts;
            put += cpu_ring_of(run->self, c, r)->put;
            all += slots_to_fill(run, c, r);
        }
        if (near && cpu_combine_advert(run, r)->mode != EP_MODE_DIRECT)
            cpu_report_add(&report, r, "rows from", came, expected);
        cpu_report_add(&report, r, "rows into the ring of", put, all);
    }
    if (run->self->nodes) run->self->nodes->report(run->self, combine_rings(run), worker, &report);
    return cpu_report_finish(&report, status);
}

static expar_status combine_share(void *context, int32_t worker)
{
    const cpu_combine_run *run = context;
    static const cpu_lane lane = {.what = "combine: rows", .turn = combine_lane_turn, .report = combine_report_lane};
    if (!run->all_direct) return cpu_lane_run(run->self, &lane, run->step->epoch, run, worker);
    sum_share_direct(run, worker);
    return EXPAR_OK;
}

/* ---- send and receive -------------------------------------------------------------------------------------------- */

static bool takes_all_directly(const cpu_combine_run *run)
{
    if (run->step->mode != EP_MODE_DIRECT || run->self->nodes) return false;
    for (int32_t r = 0; r < run->routing->ranks; r++)
        if (ep_rows_to(run->routing, r) > 0 && cpu_combine_advert(run, r)->mode != EP_MODE_DIRECT) return false;
    return true;
}

/* Returns the bytes that this rank moves: the rows that it adds, and those that it puts into rings. */
static int64_t combine_bytes(const ep_combine_step *step)
{
    const ep_routing *routing = step->routing;
    int64_t put = step->mode == EP_MODE_QUEUE ? step->rows : 0;
    return (routing->first[routing->tokens] + put) * step->row_bytes;
}

/* Rows that are ready for their owners need only the advertisement. */
expar_status cpu_combine_send(executor *base, exec_call *call, ep_combine_step *step)
{
    (void)call;
    return combine_exchange_adverts(cpu_of(base), step);
}

expar_status cpu_combine_receive(executor *base, exec_call *call, ep_combine_step *step)
{
    cpu_executor *self = cpu_of(base);
    cpu_call_workers(self, call, combine_bytes(step));
    cpu_rings_form(self, &step->form, step->row_bytes);
    cpu_combine_run run = combine_run_make(self, step);
    run.all_direct = takes_all_directly(&run);
    cpu_carry_begin(self, step->carried, step->routing->topk);
    run.carrier = self->carrying;
    cpu_rings_reset(self);
    if (self->nodes) self->nodes->combine_begin(&run);
    for (int32_t c = 0; c < combine_rings(&run); c++)
        self->cursors[c] = (cpu_cursor){.token = combine_ring_begin(&run, c)};
    atomic_store_explicit(&self->moving, true, memory_order_relaxed);
    expar_status status = cpu_workers_run(self->workers, self->active, combine_share, &run);
    atomic_store_explicit(&self->moving, false, memory_order_relaxed);
    cpu_carry_end(self);
    if (status != EXPAR_OK) return status;
    status = cpu_done_post(self, step->epoch);
    if (status != EXPAR_OK) return status;
    status = cpu_mailbox_await(self, EP_MAILBOX_COMPLETION, step->epoch, "combine: rows");
    if (status == EXPAR_OK && self->nodes) self->nodes->end(self, step->routing);
    return status;
}
