/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch: rows from their source to their receivers.
 *
 * 1. Advertisements. Each receiver tells each sender where its rows belong, or that they go through a ring (the queue).
 *    No rank sends rows before it has all advertisements.
 * 2. Rows. Direct: the sender reads each row once and writes it to its final place at each destination. Queue: the
 *    sender puts records into the receiver's ring, and the receiver copies them out. Each worker has a lane: it sends
 *    and receives in turn, and never waits for one ring alone. So two ranks with a single thread each cannot wait for
 *    each other.
 * 3. Completion flags. Each rank tells each receiver that it has written all its rows.
 *
 * With several nodes, these steps carry rows between the ranks of one node. A lane then also sends records of its
 * channels to other nodes, and forwards records that come from other nodes (nodes.h). */
#include "base/knobs.h"
#include "exec/cpu/normal/nodes.h"

#include <string.h>

/* Force inlining for the work on each of this rank's rows: a call and its argument struct cost 10 % on rows of 512
   bytes. */
#define ROW_FUNC static inline __attribute__((always_inline))

/* ---- advertisements ---------------------------------------------------------------------------------------------- */

ROW_FUNC const ep_advert *advert_of(const cpu_dispatch_run *run, int32_t receiver)
{
    if (run->step->form.kind == EP_DISPATCH_CACHED)
        return &cpu_header_from(run->self, run->step->epoch, receiver)->advert;
    return &cpu_reply_from(run->self, run->step->epoch, receiver)->advert;
}

const ep_advert *cpu_dispatch_advert(const cpu_dispatch_run *run, int32_t receiver)
{
    return advert_of(run, receiver);
}

static cpu_adverts adverts_of(const ep_dispatch_step *step)
{
    const ep_arrival *arrival = &step->arrival;
    return (cpu_adverts){.advert = {.x_offset = arrival->x_offset,
                                    .scales_offset = arrival->scales_offset,
                                    .idx_offset = arrival->idx_offset,
                                    .weights_offset = arrival->weights_offset,
                                    .src_offset = arrival->src_offset,
                                    .rows = arrival->rows,
                                    .mode = arrival->mode,
                                    .carried = arrival->carried},
                         .rank_prefix = step->routing ? step->routing->rank_prefix : NULL};
}

/* Posts this rank's advertisements, or its rejection, and waits for those of all others. */
static expar_status dispatch_exchange_adverts(cpu_executor *self, ep_dispatch_step *step)
{
    const cpu_adverts adverts = adverts_of(step);
    bool cached = step->form.kind == EP_DISPATCH_CACHED;
    if (cached && step->rejection.status == EXPAR_OK && cpu_check_range(&step->route, step->routing) != EXPAR_OK)
        step->rejection = ep_rejection_of(EXPAR_ERR_INDEX);
    if (self->nodes) self->nodes->admit(step->routing, false, &step->rejection);
    expar_status status = cached ? cpu_header_post(self, step->epoch, &step->form, &step->rejection, &adverts, NULL)
                                 : cpu_reply_post(self, step->epoch, &step->rejection, &adverts);
    if (status == EXPAR_OK)
        status = cpu_mailbox_await(self, cached ? EP_MAILBOX_HEADER : EP_MAILBOX_REPLY, step->epoch,
                                   "dispatch: advertisements");
    if (status != EXPAR_OK) return status;
    if (cached)
        cpu_header_judge(self, step->epoch, &step->vote);
    else
        cpu_reply_judge(self, step->epoch, &step->vote);
    return EXPAR_OK;
}

static ep_advert *dispatch_header_advert(const cpu_executor *self, uint32_t epoch, int32_t rank)
{
    return &((ep_header *)(uintptr_t)cpu_header_from(self, epoch, rank))->advert;
}

static ep_advert *dispatch_reply_advert(const cpu_executor *self, uint32_t epoch, int32_t rank)
{
    return &((ep_reply *)(uintptr_t)cpu_reply_from(self, epoch, rank))->advert;
}

/* Without a carrier on all ranks of the node, rows of those that have one go by the queue. */
static void dispatch_settle_carried(const cpu_executor *self, ep_dispatch_step *step)
{
    const bool cached = step->form.kind == EP_DISPATCH_CACHED;
    if (!self->nodes || cpu_settle_carried(self, cached ? dispatch_header_advert : dispatch_reply_advert, step->epoch))
        return;
    if (step->arrival.carried) step->arrival.mode = EP_MODE_QUEUE;
    step->arrival.carried = false;
}

/* In a fresh dispatch, stores in the routing the first row that each receiver of this node has advertised. Returns
   whether all rows go the direct way: to this rank, and from it to every receiver. With several nodes it returns false,
   because forwarders must help. */
static bool accept_adverts(const cpu_dispatch_run *run)
{
    ep_routing *routing = run->step->routing;
    bool cached = run->step->form.kind == EP_DISPATCH_CACHED, all_direct = run->step->arrival.mode == EP_MODE_DIRECT;
    const cpu_executor *self = run->self;
    for (int32_t r = self->near_first; r < self->near_first + self->near_ranks; r++) {
        const ep_advert *advert = cpu_dispatch_advert(run, r);
        if (!cached) routing->first_row[r] = advert->first_row;
        if (advert->mode != EP_MODE_DIRECT && ep_rows_to(routing, r) > 0) all_direct = false;
    }
    return all_direct && !self->nodes;
}

/* ---- one row to one place ---------------------------------------------------------------------------------------- */

/* Writes recv_topk_idx and recv_topk_weights of one token for `rank`. Experts of other ranks get index -1 and weight 0.
   An index is local to the rank, unless the call has EP_OPTION_GLOBAL_EXPERTS. */
ROW_FUNC void write_topk(const cpu_dispatch_run *run, const cpu_token *token, int32_t rank, const cpu_place *to)
{
    /* These variables are copies, because the compiler must assume that the stores below change the originals. */
    const ep_route_view route = *token->route;
    const int32_t topk = run->routing->topk, locals = run->routing->local_experts;
    const float *weights = to->weights ? route.weights + token->entry * route.weights_pitch : NULL;
    bool global = run->step->form.options & EP_OPTION_GLOBAL_EXPERTS;
    for (int32_t k = 0; k < topk; k++) {
        int64_t expert = ep_route_expert(&route, token->entry, k);
        int64_t local = ep_expert_seen_by(expert, rank, locals);
        int64_t seen = local < 0 || !global ? local : expert;
        if (route.idx_bytes == 8)
            ((int64_t *)to->idx)[k] = seen;
        else
            ((int32_t *)to->idx)[k] = (int32_t)seen;
        if (weights) to->weights[k] = local < 0 ? 0.0f : weights[k];
    }
}

ROW_FUNC void write_token(const cpu_dispatch_run *run, const cpu_token *token, int32_t rank, const cpu_place *to,
                          bool streaming)
{
    if (run->carrier)
        run->carrier->ops->copy(run->carrier, token->lane, to->x, token->x, run->step->row_bytes);
    else
        cpu_copy_row(to->x, token->x, (size_t)run->step->row_bytes, streaming);
    for (int32_t i = 0; to->scales && i < run->step->form.scales; i++)
        to->scales[i] = token->scales[i * token->scales_pitch];
    if (to->idx) write_topk(run, token, rank, to);
    if (to->src) *to->src = token->number;
}

/* Returns the places of row `row` in an output whose parts begin at x, scales, idx and weights. */
ROW_FUNC cpu_place output_place_of(const cpu_dispatch_run *run, int64_t row, void *x, void *scales, void *idx,
                                   float *weights, int32_t *src)
{
    const ep_dispatch_step *step = run->step;
    int64_t entry = row * run->routing->topk;
    return (cpu_place){.x = (uint8_t *)x + row * step->row_bytes,
                       .scales = step->form.scales ? (uint32_t *)scales + row * step->form.scales : NULL,
                       .idx = step->form.idx_dtype ? (uint8_t *)idx + entry * step->route.idx_bytes : NULL,
                       .weights = step->form.weights ? weights + entry : NULL,
                       .src = step->form.options & EP_OPTION_SRC_TOKENS ? src + row : NULL};
}

ROW_FUNC cpu_place slot_place_of(const cpu_dispatch_run *run, uint8_t *slot)
{
    const ep_slot *at = &run->self->slot;
    const ep_form *form = &run->step->form;
    return (cpu_place){.x = slot,
                       .scales = form->scales ? (uint32_t *)(slot + at->scales) : NULL,
                       .idx = form->idx_dtype ? slot + at->idx : NULL,
                       .weights = form->weights ? (float *)(slot + at->weights) : NULL,
                       .src = form->options & EP_OPTION_SRC_TOKENS ? (int32_t *)(slot + at->src) : NULL};
}

ROW_FUNC void put_token(const cpu_dispatch_run *run, const cpu_token *token, int32_t rank, int64_t row)
{
    const sym *memory = run->self->sym;
    const ep_advert *advert = advert_of(run, rank);
    if (row >= advert->rows) return;
    void *x =
        run->carrier ? cpu_carried_at(run->carrier, rank, advert->x_offset) : sym_at(memory, rank, advert->x_offset);
    cpu_place to = output_place_of(
        run, row, x, sym_at(memory, rank, advert->scales_offset), sym_at(memory, rank, advert->idx_offset),
        sym_at(memory, rank, advert->weights_offset), sym_at(memory, rank, advert->src_offset));
    write_token(run, token, rank, &to, run->streaming);
}

void cpu_token_put(const cpu_dispatch_run *run, const cpu_token *token, int32_t rank, int64_t row)
{
    put_token(run, token, rank, row);
}

/* Puts a token into the ring of `peer`, with the top-k indices for `rank` (write_topk). Returns false if the ring is
   full. Rows that the receiver will drop are sent too, because the receiver counts the rows that come. */
ROW_FUNC bool queue_token(const cpu_dispatch_run *run, const cpu_token *token, int32_t channel, int32_t rank,
                          int32_t peer)
{
    cpu_executor *self = run->self;
    uint8_t *slot = cpu_ring_slot_free(self, run->step->epoch, channel, peer);
    if (!slot) return false;
    cpu_place to = slot_place_of(run, slot);
    write_token(run, token, rank, &to, false);
    cpu_ring_push(self, run->step->epoch, channel, peer);
    return true;
}

bool cpu_token_queue(const cpu_dispatch_run *run, const cpu_token *token, int32_t channel, int32_t rank, int32_t peer)
{
    return queue_token(run, token, channel, rank, peer);
}

/* Returns this rank's token with that number. */
ROW_FUNC cpu_token token_of(const cpu_dispatch_run *run, int64_t number, int32_t lane)
{
    const ep_dispatch_step *step = run->step;
    return (cpu_token){.x = (const uint8_t *)step->x + number * step->x_pitch_bytes,
                       .scales = step->scales ? step->scales + number * step->scales_row_pitch : NULL,
                       .scales_pitch = step->scales_column_pitch,
                       .entry = number,
                       .route = &step->route,
                       .number = (int32_t)number,
                       .lane = lane};
}

static void send_direct(const cpu_dispatch_run *run, int64_t number, ep_target target, int32_t lane)
{
    const cpu_token token = token_of(run, number, lane);
    put_token(run, &token, target.rank, (int64_t)run->routing->first_row[target.rank] + target.index);
}

/* Returns false while the ring is full. */
static bool send_queued(const cpu_dispatch_run *run, int32_t channel, int64_t number, ep_target target)
{
    const cpu_token token = token_of(run, number, cpu_worker_of(run->self, channel));
    return queue_token(run, &token, channel, target.rank, target.rank);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* All rows are direct: every worker takes an equal share of the tokens, and there is nothing to wait for. */
static void send_share_direct(const cpu_dispatch_run *run, int32_t worker)
{
    const ep_routing *routing = run->routing;
    int32_t workers = run->self->active;
    int64_t end = ep_channel_begin(routing->tokens, workers, worker + 1);
    for (int64_t t = ep_channel_begin(routing->tokens, workers, worker); t < end; t++)
        for (int64_t i = routing->first[t]; i < routing->first[t + 1]; i++)
            send_direct(run, t, routing->targets[i], worker);
    cpu_copy_fence();
}

static int64_t channel_end(const cpu_dispatch_run *run, int32_t channel)
{
    const ep_routing *routing = run->routing;
    return routing->first[ep_ring_begin(routing->tokens, routing->channels, run->joined, channel + 1)];
}

/* Sends the channel's rows to ranks of this node until a ring has no free slot. Returns whether it sent any. */
static bool send_some(const cpu_dispatch_run *run, int32_t channel)
{
    const ep_routing *routing = run->routing;
    cpu_cursor *cursor = &run->self->cursors[channel];
    int64_t begin = cursor->target, end = channel_end(run, channel);
    for (; cursor->target < end; cursor->target++) {
        while (cursor->target >= routing->first[cursor->token + 1])
            cursor->token++;
        ep_target target = routing->targets[cursor->target];
        if (!cpu_is_near(run->self, target.rank)) continue;
        if (cpu_dispatch_advert(run, target.rank)->mode == EP_MODE_DIRECT)
            send_direct(run, cursor->token, target, cpu_worker_of(run->self, channel));
        else if (!send_queued(run, channel, cursor->token, target))
            break;
    }
    return cursor->target != begin;
}

/* Returns how many rows come through the ring from `source`. It is 0 if senders write the output directly. */
static uint32_t rows_expected(const cpu_dispatch_run *run, int32_t channel, int32_t source)
{
    if (run->step->arrival.mode == EP_MODE_DIRECT) return 0;
    const int32_t channels = run->routing->channels;
    const int32_t *prefix = run->routing->recv_channel_prefix + (int64_t)source * channels;
    return (uint32_t)ep_rows_of_ring(prefix, channels, run->joined, channel);
}

/* Copies one row from its slot to its final place. A row after the end of the output is dropped. */
static void place_row(const cpu_dispatch_run *run, int32_t channel, int32_t source, const uint8_t *slot)
{
    const ep_dispatch_step *step = run->step;
    const ep_arrival *arrival = &step->arrival;
    const int32_t *prefix = run->routing->recv_channel_prefix + (int64_t)source * run->routing->channels;
    int64_t row = (int64_t)ep_prefix_before(run->routing->rank_prefix, source) +
                  ep_rows_before_ring(prefix, run->joined, channel) + cpu_ring_of(run->self, channel, source)->taken;
    if (row >= arrival->rows) return;
    const ep_slot *at = &run->self->slot;
    size_t topk = (size_t)run->routing->topk;
    cpu_place to = output_place_of(run, row, arrival->x, arrival->scales, arrival->idx, arrival->weights, arrival->src);
    memcpy(to.x, slot, (size_t)step->row_bytes);
    if (to.scales) memcpy(to.scales, slot + at->scales, (size_t)step->form.scales * sizeof(uint32_t));
    if (to.idx) memcpy(to.idx, slot + at->idx, topk * (size_t)step->route.idx_bytes);
    if (to.weights) memcpy(to.weights, slot + at->weights, topk * sizeof(float));
    if (to.src) memcpy(to.src, slot + at->src, sizeof *to.src);
}

/* Takes the ready rows out of a channel's rings; returns true if there were any. *missing counts the rows that are
   still to come. */
static bool receive_some(const cpu_dispatch_run *run, int32_t channel, uint64_t *missing)
{
    cpu_executor *self = run->self;
    bool moved = false;
    for (int32_t s = 0; s < run->routing->ranks; s++) {
        uint32_t expected = rows_expected(run, channel, s);
        cpu_ring *ring = cpu_ring_of(self, channel, s);
        if (ring->taken == expected) continue;
        for (uint32_t ready = cpu_ring_ready(self, run->step->epoch, channel, s); ready; ready--) {
            place_row(run, channel, s, cpu_ring_front(self, channel, s));
            cpu_ring_pop(self, run->step->epoch, channel, s);
            moved = true;
        }
        *missing += expected - ring->taken;
    }
    return moved;
}

static int32_t dispatch_rings(const cpu_dispatch_run *run)
{
    return ep_rings_of(run->routing->channels, run->joined);
}

/* Looks once at all channels of a lane, and returns true if rows moved. Adds to turn->open the rows that are still to
   be sent or received. */
static bool dispatch_lane_turn(const void *context, int32_t worker, cpu_lane_turn *turn)
{
    const cpu_dispatch_run *run = context;
    bool moved = false;
    for (int32_t c = worker; c < dispatch_rings(run) && turn->status == EXPAR_OK; c += run->self->active) {
        moved |= send_some(run, c);
        if (run->self->nodes) moved |= run->self->nodes->dispatch_turn(run, c, turn);
        moved |= receive_some(run, c, &turn->open);
        cpu_ring_flush(run->self, run->step->epoch, c);
        turn->open += (uint64_t)(channel_end(run, c) - run->self->cursors[c].target);
    }
    return moved;
}

/* Reports for each peer the rows that came from it through rings, and the rows that this rank has put into its rings.
   Each number has the expected one beside it. */
static expar_status dispatch_report_lane(const void *context, int32_t worker, expar_status status)
{
    const cpu_dispatch_run *run = context;
    cpu_report report = {0};
    for (int32_t r = 0; r < run->routing->ranks; r++) {
        uint64_t came = 0, expected = 0, put = 0, all = 0;
        const int32_t channels = run->routing->channels, *prefix = run->routing->channel_prefix + (int64_t)r * channels;
        for (int32_t c = worker; c < dispatch_rings(run); c += run->self->active) {
            came += cpu_ring_of(run->self, c, r)->taken;
            expected += rows_expected(run, c, r);
            put += cpu_ring_of(run->self, c, r)->put;
            all += (uint64_t)ep_rows_of_ring(prefix, channels, run->joined, c);
        }
        cpu_report_add(&report, r, "rows from", came, expected);
        if (cpu_is_near(run->self, r) && cpu_dispatch_advert(run, r)->mode != EP_MODE_DIRECT)
            cpu_report_add(&report, r, "rows into the ring of", put, all);
    }
    if (run->self->nodes) run->self->nodes->report(run->self, dispatch_rings(run), worker, &report);
    return cpu_report_finish(&report, status);
}

static expar_status send_share(void *context, int32_t worker)
{
    const cpu_dispatch_run *run = context;
    static const cpu_lane lane = {.what = "dispatch: rows", .turn = dispatch_lane_turn, .report = dispatch_report_lane};
    if (!run->step->all_direct) return cpu_lane_run(run->self, &lane, run->step->epoch, run, worker);
    send_share_direct(run, worker);
    return EXPAR_OK;
}

/* ---- send and receive -------------------------------------------------------------------------------------------- */

static cpu_dispatch_run run_of(cpu_executor *self, ep_dispatch_step *step)
{
    const ep_routing *routing = step->routing;
    bool streaming = routing->first[routing->tokens] * step->row_bytes > knob(KNOB_CPU_STREAM_BYTES);
    return (cpu_dispatch_run){.self = self,
                              .step = step,
                              .routing = routing,
                              .joined = ep_channels_joined(routing->channels, self->shape.channels),
                              .streaming = streaming};
}

static expar_status send_all(cpu_dispatch_run *run)
{
    cpu_executor *self = run->self;
    expar_status status = cpu_workers_run(self->workers, self->active, send_share, run);
    return status == EXPAR_OK ? cpu_done_post(self, run->step->epoch) : status;
}

static int32_t rows_coming(const ep_routing *routing)
{
    return routing->rank_prefix[routing->ranks - 1];
}

/* Returns the bytes that this rank moves: the rows that it sends, and those that it takes out of rings. */
static int64_t dispatch_bytes(const ep_dispatch_step *step)
{
    const ep_routing *routing = step->routing;
    int64_t taken = step->arrival.mode == EP_MODE_QUEUE ? rows_coming(routing) : 0;
    return (routing->first[routing->tokens] + taken) * step->row_bytes;
}

/* Sends the rows if all of them go the direct way, because that needs no help of other ranks. Otherwise
   cpu_dispatch_receive sends them while it takes rows out of rings. */
expar_status cpu_dispatch_send(executor *base, exec_call *call, ep_dispatch_step *step)
{
    cpu_executor *self = cpu_of(base);
    expar_status status = dispatch_exchange_adverts(self, step);
    if (status != EXPAR_OK || step->vote.rank >= 0) return status;
    cpu_call_workers(self, call, dispatch_bytes(step));
    cpu_dispatch_run run = run_of(self, step);
    int32_t coming = rows_coming(step->routing);
    step->dropped = coming > step->arrival.rows ? coming - step->arrival.rows : 0;
    dispatch_settle_carried(self, step);
    step->all_direct = accept_adverts(&run);
    return step->all_direct ? send_all(&run) : EXPAR_OK;
}

static expar_status exchange_queued(cpu_dispatch_run *run)
{
    cpu_executor *self = run->self;
    const ep_routing *routing = run->routing;
    cpu_carry_begin(self, run->step->arrival.carried, routing->topk);
    run->carrier = self->carrying;
    cpu_rings_form(self, &run->step->form, run->step->row_bytes);
    cpu_rings_reset(self);
    if (self->nodes) self->nodes->dispatch_begin(run);
    for (int32_t c = 0; c < dispatch_rings(run); c++) {
        int64_t token = ep_ring_begin(routing->tokens, routing->channels, run->joined, c);
        self->cursors[c] = (cpu_cursor){.token = token, .target = routing->first[token]};
    }
    atomic_store_explicit(&self->moving, true, memory_order_relaxed);
    expar_status status = send_all(run);
    atomic_store_explicit(&self->moving, false, memory_order_relaxed);
    cpu_carry_end(self);
    return status;
}

/* Sets the indices and source tokens of rows that no rank sent to -1. A worst-case output has such rows at its end. */
static void blank_tail(const ep_dispatch_step *step)
{
    const ep_arrival *arrival = &step->arrival;
    int32_t coming = rows_coming(step->routing);
    if (coming >= arrival->rows) return;
    size_t blank = (size_t)(arrival->rows - coming);
    if (arrival->src) memset(arrival->src + coming, 0xff, blank * sizeof *arrival->src);
    if (!arrival->idx) return;
    size_t row = (size_t)step->routing->topk * (size_t)step->route.idx_bytes;
    memset((uint8_t *)arrival->idx + (size_t)coming * row, 0xff, blank * row);
}

expar_status cpu_dispatch_receive(executor *base, exec_call *call, ep_dispatch_step *step)
{
    cpu_executor *self = cpu_of(base);
    cpu_call_workers(self, call, dispatch_bytes(step));
    cpu_dispatch_run run = run_of(self, step);
    expar_status status = step->all_direct ? EXPAR_OK : exchange_queued(&run);
    if (status == EXPAR_OK) status = cpu_mailbox_await(self, EP_MAILBOX_COMPLETION, step->epoch, "dispatch: rows");
    if (status == EXPAR_OK && self->nodes) self->nodes->end(self, step->routing);
    if (status == EXPAR_OK) blank_tail(step);
    return status;
}
