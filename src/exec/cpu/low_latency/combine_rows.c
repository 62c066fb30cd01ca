/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a combine that go back to places of mapped peers. */
#include "exec/cpu/low_latency/far.h"

#include <string.h>

/* A coded row begins with its heads, since the length of the rest depends on them. Returns the bytes of the whole
   row. */
size_t ll_combine_code(const ll_combine *c, const void *row, uint8_t *coded)
{
    const int64_t hidden = c->self->shape.hidden;
    const size_t heads = (size_t)codec_scale_bytes(c->codec, hidden);
    return heads + (size_t)cpu_encode_row(c->codec, c->step->call.form.dtype, hidden, row, coded + heads, coded);
}

/* Returns the bytes sent. */
static size_t send_row(const ll_combine *c, const ll_scratch *scratch, const void *row, uint8_t *place,
                       const ll_burst *burst)
{
    const size_t bytes = c->coded ? ll_combine_code(c, row, scratch->payload) : c->row_bytes;
    ll_burst_copy(burst, place, c->coded ? scratch->payload : row, bytes);
    return bytes;
}

/* Sends the rows of one message, each to its slot's place; returns their bytes. */
static uint64_t send_slots(const ll_combine *c, const ll_scratch *scratch, int32_t source, const ll_header *header,
                           ll_burst *burst)
{
    const ll_cpu *self = c->self;
    const uint64_t epoch = c->step->call.epoch;
    uint64_t bytes = 0;
    for (int32_t k = 0; k < c->step->call.form.topk; k++) {
        const void *row = ll_row_of_slot(c, source, header, k);
        if (!row) continue;
        const uint64_t place =
            ll_place_number(&self->space, &self->shape, epoch, ll_region_at(self, source, epoch), header->token, k);
        bytes += send_row(c, scratch, row, ll_at(self, source, ll_row_at(&self->space, place)), burst);
        ll_burst_flag(burst, source, ll_row_flag_at(&self->space, place), 1);
    }
    return bytes;
}

/* Returns the weights of a message's slots. They came with its header, or were sent ahead; this rank's own are in
   `route`. */
static const float *weights_of(const ll_combine *c, int32_t source, int32_t message, const ll_header *header)
{
    const ll_cpu *self = c->self;
    const ep_route_view *route = &c->step->route;
    if (!c->step->call.form.weights) return ll_header_weights((ll_header *)header, self->shape.topk);
    if (source == self->sym->rank) return route->weights + header->token * route->weights_pitch;
    return ll_here(self, ll_weights_at(&self->space, &self->shape, source, c->step->call.epoch, message));
}

void ll_combine_sum(const ll_combine *c, const ll_scratch *scratch, int32_t source, int32_t message, uint8_t *sum)
{
    const ll_header *header = ll_header_of(c, source, message);
    const float *weights = weights_of(c, source, message, header);
    int32_t rows = 0;
    for (int32_t k = 0; k < c->step->call.form.topk; k++) {
        const void *row = ll_row_of_slot(c, source, header, k);
        if (!row) continue;
        scratch->rows[rows] = row;
        scratch->row_weights[rows++] = weights[k];
    }
    cpu_sum_weighted((expar_dtype)c->step->call.form.dtype, sum, scratch->rows, scratch->row_weights, rows,
                     c->self->shape.hidden);
}

/* The sum is made directly in its place. */
static void send_sum(const ll_combine *c, const ll_scratch *scratch, int32_t source, int32_t message)
{
    const ll_cpu *self = c->self;
    const ll_header *header = ll_header_of(c, source, message);
    const uint64_t epoch = c->step->call.epoch;
    const uint64_t place = ll_place_number(&self->space, &self->shape, epoch, ll_region_at(self, source, epoch),
                                           header->token, header->place);
    ll_combine_sum(c, scratch, source, message, ll_at(self, source, ll_row_at(&self->space, place)));
    ll_store(self, source, ll_row_flag_at(&self->space, place), ll_word(epoch, 1));
}

/* A header that names no place can only come from a broken peer. */
static bool header_fits(const ll_combine *c, const ll_header *header)
{
    return header->token >= 0 && header->token < c->self->shape.tokens && header->place >= 0 &&
           header->place < c->self->space.places;
}

uint64_t ll_combine_rows_to(const ll_combine *c, int32_t rank)
{
    const int32_t locals = c->self->shape.local_experts, n = c->self->shape.ranks;
    uint64_t rows = 0;
    if (c->reduced) return (uint64_t)c->step->routing->messages[rank];
    for (int32_t l = 0; l < locals; l++)
        rows += (uint64_t)ll_range_count(c->step->routing->range[(int64_t)l * n + rank]);
    return rows;
}

/* The source to which rows go back. */
typedef struct ll_returns {
    const ll_combine *c;
    int32_t source;
} ll_returns;

static void send_messages_back(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end)
{
    const ll_returns *returns = context;
    const ll_combine *c = returns->c;
    const int32_t source = returns->source;
    uint64_t bytes = 0;
    ll_burst burst = ll_burst_begin(c->self, c->step->call.epoch, c->streaming);
    for (int32_t m = begin; m < end; m++) {
        const ll_header *header = ll_header_of(c, source, m);
        if (!header_fits(c, header)) continue;
        if (c->reduced)
            send_sum(c, scratch, source, m);
        else
            bytes += send_slots(c, scratch, source, header, &burst);
    }
    ll_burst_end(&burst);
    if (c->coded) atomic_fetch_add_explicit(&c->self->totals.bytes_sent, bytes, memory_order_relaxed);
}

static void send_to(const ll_combine *c, int32_t source)
{
    ll_cpu *self = c->self;
    if (ll_is_far(self, source)) {
        self->far->send_rows(c, source);
        return;
    }
    const ll_returns returns = {.c = c, .source = source};
    const int32_t messages = c->step->routing->messages[source];
    const bool plain = source != self->sym->rank && !c->reduced && !c->coded;
    const int64_t begin_ns = plain && !c->streaming && ll_pace_times(&self->pace) ? clock_ns() : 0;
    ll_share_out(self, messages, (uint64_t)messages * c->row_bytes, send_messages_back, &returns);
    if (plain)
        ll_pace_note(&self->pace, ll_combine_rows_to(c, source) * c->row_bytes, begin_ns ? clock_ns() - begin_ns : 0);
    if (source != self->sym->rank) sym_ring(self->sym, source);
}

static ll_due sent_due(const void *context, int32_t rank)
{
    const ll_cpu *self = context;
    return (ll_due){.came = self->progress[rank], .all = 1};
}

/* Looks once at each far peer, or each near one, for which the task has not been done. */
static bool task_run_some(const ll_combine *c, const ll_task *task, bool far, int32_t *waits)
{
    ll_cpu *self = c->self;
    bool moved = false;
    for (int32_t i = 0; i < self->shape.ranks; i++) {
        const int32_t pe = ll_peer_in_turn(self, i);
        if (self->progress[pe] || ll_is_far(self, pe) != far) continue;
        const ll_credit credit = task->credit(c, pe);
        *waits += credit == LL_CREDIT_AWAITED;
        if (credit == LL_CREDIT_AWAITED) continue;
        if (credit == LL_CREDIT_GIVEN) task->run(c, pe);
        self->progress[pe] = moved = true;
    }
    return moved;
}

/* Data for a network leave first, so that they travel while the rest is stored. */
static bool run_open(const ll_combine *c, const ll_task *task, int32_t *waits)
{
    *waits = 0;
    const bool moved = c->self->far && task_run_some(c, task, true, waits);
    return task_run_some(c, task, false, waits) || moved;
}

expar_status ll_task_run(const ll_combine *c, const ll_task *task)
{
    ll_cpu *self = c->self;
    ll_wait wait = {
        .cpu = self, .call = &c->step->call, .what = task->what, .of = task->of, .due = sent_due, .context = self};
    expar_status status = EXPAR_OK;
    for (;;) {
        int32_t waits;
        const bool moved = run_open(c, task, &waits);
        if (waits == 0) break;
        status = ll_wait_turn(&wait, moved);
        if (status != EXPAR_OK) break;
    }
    return ll_wait_end(&wait, status);
}

ll_credit ll_combine_credit(const ll_combine *c, int32_t pe)
{
    return ll_credit_of(c->self, LL_COMBINE, c->step->call.epoch, pe);
}

/* This rank's own rows need no places if they stay in x, except for sums and coded rows. */
expar_status ll_combine_send_rows(const ll_combine *c, ll_credit (*credit)(const ll_combine *c, int32_t pe))
{
    static const char slot[] = "low-latency combine: acknowledgements of earlier rows";
    static const char ahead[] = "low-latency combine: weights";
    ll_cpu *self = c->self;
    const bool waits = c->step->call.form.weights;
    const ll_task rows = {
        .run = send_to, .credit = credit, .what = waits ? ahead : slot, .of = waits ? "weights" : "acknowledgements"};
    for (int32_t r = 0; r < self->shape.ranks; r++)
        self->progress[r] = c->step->routing->messages[r] == 0 ||
                            (r == self->sym->rank && c->step->x_stays && !c->reduced && !c->coded);
    return ll_task_run(c, &rows);
}
