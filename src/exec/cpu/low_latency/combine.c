/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: rows back to the places of their tokens, and sums there.
 *
 * Exact: one row for each slot goes to place [token][slot], and its token's rank adds all of a token, in the order of
 * slots. */
#include "exec/cpu/low_latency/cpu.h"

#include <string.h>

/* One combine in one of its phases. */
typedef struct ll_combine {
    ll_cpu *self;
    ll_combine_step *step;
    ll_record *record;
    size_t row_bytes;
    uint64_t header_bytes; /* of the handle's */
    bool streaming;
} ll_combine;

static ll_combine combine_of(ll_cpu *self, ll_combine_step *step)
{
    return (ll_combine){.self = self,
                        .step = step,
                        .record = ll_record_of(self, LL_COMBINE, step->call.epoch),
                        .row_bytes = (size_t)self->shape.hidden * expar_dtype_bytes((expar_dtype)step->call.form.dtype),
                        .header_bytes = ll_route_map_of(&self->shape).header_bytes};
}

/* ---- send -------------------------------------------------------------------------------------------------------- */

/* The dispatch's experts are what rows are awaited for: others would be waited for in vain. */
static expar_status check_idx(const ll_combine *c)
{
    const ll_routing *routing = c->step->routing;
    const int32_t topk = c->self->shape.topk;
    for (int32_t t = 0; t < routing->tokens; t++)
        for (int32_t k = 0; k < routing->topk; k++) {
            const int32_t kept = routing->idx[(int64_t)t * topk + k];
            const int64_t given = ep_route_expert(&c->step->route, t, k);
            if (kept != LL_NO_TOKEN && kept != given)
                return error_set(EXPAR_ERR_ARGUMENT,
                                 "topk_idx[%d][%d] is %lld; expected %d, as in the handle's dispatch", t, k,
                                 (long long)given, kept);
        }
    return EXPAR_OK;
}

static const ll_header *header_of(const ll_combine *c, int32_t source, int32_t message)
{
    const uint64_t number = (uint64_t)source * (uint64_t)c->self->shape.tokens + (uint64_t)message;
    return (const ll_header *)(c->step->routing->headers + number * c->header_bytes);
}

/* The expert's row of a header's slot; NULL: the slot has none here. */
static const void *row_of_slot(const ll_combine *c, int32_t source, const ll_header *header, int32_t k)
{
    const ll_cpu *self = c->self;
    const int32_t local = ll_header_experts((ll_header *)header)[k];
    const int32_t row = ll_header_rows((ll_header *)header, self->shape.topk)[k];
    if (local < 0 || local >= self->shape.local_experts) return NULL;
    const int64_t range = c->step->routing->range[(int64_t)local * self->shape.ranks + source];
    if (row < 0 || row >= ll_range_count(range)) return NULL;
    return (const uint8_t *)c->step->x + local * c->step->x_expert_pitch_bytes +
           (ll_range_begin(range) + (int64_t)row) * c->step->x_row_pitch_bytes;
}

/* Rows of one message, each to its slot's place. */
static void send_slots(const ll_combine *c, int32_t source, const ll_header *header)
{
    const ll_cpu *self = c->self;
    const uint64_t epoch = c->step->call.epoch;
    for (int32_t k = 0; k < c->step->call.form.topk; k++) {
        const void *row = row_of_slot(c, source, header, k);
        if (!row) continue;
        const uint64_t place = ll_place_number(&self->space, &self->shape, epoch, header->token, k);
        cpu_copy_row(ll_at(self, source, ll_row_at(&self->space, place)), row, c->row_bytes, c->streaming);
        if (c->streaming) cpu_copy_fence();
        ll_store(self, source, ll_row_flag_at(&self->space, place), ll_word(epoch, 1));
    }
}

static void send_to(const ll_combine *c, int32_t source)
{
    const ll_cpu *self = c->self;
    for (int32_t m = 0; m < c->step->routing->messages[source]; m++) {
        const ll_header *header = header_of(c, source, m);
        /* A token number that no rank has comes from a broken peer alone. */
        if (header->token >= 0 && header->token < self->shape.tokens) send_slots(c, source, header);
    }
    if (source != self->sym->rank) sym_ring(self->sym, source);
}

static ll_due sent_due(const void *context, int32_t rank)
{
    const ll_cpu *self = context;
    return (ll_due){.came = self->progress[rank], .all = 1};
}

/* One look at each peer that has not got its rows. */
static bool send_open(const ll_combine *c, int32_t *waits)
{
    ll_cpu *self = c->self;
    bool moved = false;
    *waits = 0;
    for (int32_t i = 0; i < self->shape.ranks; i++) {
        const int32_t pe = ll_peer_in_turn(self, i);
        if (self->progress[pe]) continue;
        const ll_door door = ll_door_of(self, LL_COMBINE, c->step->call.epoch, pe);
        *waits += door == LL_DOOR_SHUT;
        if (door == LL_DOOR_SHUT) continue;
        if (door == LL_DOOR_OPEN) send_to(c, pe);
        self->progress[pe] = moved = true;
    }
    return moved;
}

/* This rank's own rows need no places where they stay. */
static expar_status combine_send_rows(const ll_combine *c)
{
    ll_cpu *self = c->self;
    ll_wait wait = {.cpu = self,
                    .call = &c->step->call,
                    .what = "low-latency combine: reading of the half before",
                    .of = "halves",
                    .due = sent_due,
                    .context = self};
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        self->progress[r] = c->step->routing->messages[r] == 0 || (r == self->sym->rank && c->step->x_stays);
    for (;;) {
        int32_t waits;
        const bool moved = send_open(c, &waits);
        if (waits == 0) break;
        status = ll_wait_turn(&wait, moved);
        if (status != EXPAR_OK) break;
    }
    return ll_wait_end(&wait, status);
}

/* Rows that this rank has for tokens of all ranks. */
static uint64_t count_rows(const ll_combine *c)
{
    const int64_t ranges = (int64_t)c->self->shape.local_experts * c->self->shape.ranks;
    uint64_t rows = 0;
    for (int64_t i = 0; i < ranges; i++)
        rows += (uint64_t)ll_range_count(c->step->routing->range[i]);
    return rows;
}

static void combine_count(ll_combine *c)
{
    ll_counts *counts = &c->self->base.counts;
    const uint64_t rows = count_rows(c);
    c->streaming = rows * c->row_bytes > CPU_STREAM_BYTES;
    atomic_fetch_add_explicit(&counts->combines, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->combine_rows, rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->bytes_sent, rows * c->row_bytes, memory_order_relaxed);
}

expar_status ll_cpu_combine_send(ll_executor *base, ll_combine_step *step)
{
    ll_cpu *self = ll_cpu_of(base);
    ll_call *call = &step->call;
    ll_combine c = combine_of(self, step);
    if (call->refusal.status == EXPAR_OK) {
        expar_status checked = check_idx(&c);
        if (checked != EXPAR_OK) call->refusal = ep_refusal_of(checked);
    }
    expar_status status = ll_call_open(self, call, LL_COMBINE, NULL);
    if (status != EXPAR_OK || !call->open) return status;
    c = combine_of(self, step);
    combine_count(&c);
    return combine_send_rows(&c);
}

/* ---- receive ----------------------------------------------------------------------------------------------------- */

static int32_t owner_of_slot(const ll_combine *c, int32_t token, int32_t k)
{
    const int32_t expert = c->step->routing->idx[(int64_t)token * c->self->shape.topk + k];
    return expert < 0 ? -1 : expert / c->self->shape.local_experts;
}

/* Its row lies in x, where it stays, and never comes to a place. */
static bool stays_here(const ll_combine *c, int32_t rank)
{
    return rank == c->self->sym->rank && c->step->x_stays;
}

static bool slot_has_come(const ll_combine *c, int32_t token, int32_t k)
{
    const ll_cpu *self = c->self;
    const int32_t rank = owner_of_slot(c, token, k);
    if (rank < 0 || stays_here(c, rank) || !ll_sends_data(&c->record->told[rank])) return true;
    const uint64_t place = ll_place_number(&self->space, &self->shape, c->step->call.epoch, token, k);
    return ll_word_is_of(ll_look(self, ll_row_flag_at(&self->space, place)), c->step->call.epoch);
}

static bool token_has_come(const ll_combine *c, int32_t token)
{
    for (int32_t k = 0; k < c->step->call.form.topk; k++)
        if (!slot_has_come(c, token, k)) return false;
    return true;
}

/* Rows that are due from a rank, and those of them that are here: for the text of a wait that fails, and for who asks.
   */
static ll_due row_due(const void *context, int32_t rank)
{
    const ll_combine *c = context;
    ll_due due = {0};
    for (int32_t t = 0; t < c->step->routing->tokens; t++)
        for (int32_t k = 0; k < c->step->call.form.topk; k++) {
            if (owner_of_slot(c, t, k) != rank || !ll_sends_data(&c->record->told[rank])) continue;
            due.all++;
            due.came += slot_has_come(c, t, k);
        }
    return due;
}

/* A slot's row once it has come; NULL: there is none. own: the token's message to this rank itself, or -1. */
static const void *row_come(const ll_combine *c, int32_t token, int32_t k, int32_t own)
{
    const ll_cpu *self = c->self;
    const int32_t rank = owner_of_slot(c, token, k);
    if (rank < 0 || !ll_sends_data(&c->record->told[rank])) return NULL;
    if (stays_here(c, rank)) return own < 0 ? NULL : row_of_slot(c, rank, header_of(c, rank, own), k);
    const uint64_t place = ll_place_number(&self->space, &self->shape, c->step->call.epoch, token, k);
    return ll_here(self, ll_row_at(&self->space, place));
}

static void add_token(const ll_combine *c, int32_t token)
{
    ll_cpu *self = c->self;
    const ep_route_view *route = &c->step->route;
    int32_t rows = 0;
    for (int32_t k = 0; k < c->step->call.form.topk; k++) {
        const void *row = row_come(c, token, k, self->own_messages[token]);
        if (!row) continue;
        self->rows[rows] = row;
        self->row_weights[rows++] = route->weights[token * route->weights_pitch + k];
    }
    cpu_sum_weighted((expar_dtype)c->step->call.form.dtype, (uint8_t *)c->step->y + token * c->step->y_pitch_bytes,
                     self->rows, self->row_weights, rows, self->shape.hidden);
}

/* Which message to this rank itself each of its tokens was. */
static void combine_find_own(const ll_combine *c)
{
    ll_cpu *self = c->self;
    const int32_t own = self->sym->rank;
    for (int32_t t = 0; t < c->step->routing->tokens; t++)
        self->own_messages[t] = -1;
    for (int32_t m = 0; m < c->step->routing->messages[own]; m++)
        self->own_messages[header_of(c, own, m)->token] = m;
}

/* Adds the tokens whose rows are all here; those that are not stay in `waiting`. */
static int32_t add_tokens(const ll_combine *c, int32_t count)
{
    ll_cpu *self = c->self;
    int32_t left = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t token = self->waiting[i];
        if (token_has_come(c, token)) {
            ll_step(self);
            add_token(c, token);
        } else {
            self->waiting[left++] = token;
        }
    }
    return left;
}

/* From whom all has come that had not before: for their times. */
static void note_came(const ll_combine *c, ll_wait *wait, bool all)
{
    ll_cpu *self = c->self;
    if (!c->step->call.wait_ns) return;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (self->progress[r]) continue;
        const ll_due due = row_due(c, r);
        if (!all && due.came < due.all) continue;
        self->progress[r] = 1;
        ll_wait_came(wait, r);
    }
}

static expar_status combine_receive_rows(const ll_combine *c)
{
    ll_cpu *self = c->self;
    ll_wait wait = {.cpu = self,
                    .call = &c->step->call,
                    .what = "low-latency combine: rows",
                    .of = "rows",
                    .due = row_due,
                    .context = c};
    expar_status status = EXPAR_OK;
    int32_t left = c->step->routing->tokens;
    memset(self->progress, 0, (size_t)self->shape.ranks * sizeof(int32_t));
    for (int32_t t = 0; t < left; t++)
        self->waiting[t] = t;
    combine_find_own(c);
    for (;;) {
        const int32_t before = left;
        left = add_tokens(c, left);
        note_came(c, &wait, left == 0);
        if (left == 0) break;
        status = ll_wait_turn(&wait, left < before);
        if (status != EXPAR_OK) break;
    }
    return ll_wait_end(&wait, status);
}

expar_status ll_cpu_combine_receive(ll_executor *base, ll_combine_step *step)
{
    ll_cpu *self = ll_cpu_of(base);
    ll_combine c = combine_of(self, step);
    expar_status status = ll_units_await(self, &step->call, LL_COMBINE);
    if (status != EXPAR_OK) return status;
    ll_call_judge(self, &step->call, LL_COMBINE);
    const bool mismatched = ll_call_mismatches(self, &step->call, LL_COMBINE);
    if (!mismatched) status = combine_receive_rows(&c);
    if (status != EXPAR_OK) return status;
    ll_call_close(self, &step->call, LL_COMBINE, mismatched);
    return EXPAR_OK;
}
