/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch: messages into this rank's share at each receiver, and from the shares here to the experts' rows.
 *
 * The send goes through the tokens once for all peers whose slot is free, so that each row is read once however many
 * ranks it goes to. The receive knows from the headers how many rows of each expert come from each rank. So each
 * message goes to its rows as soon as it is there, in whatever order messages come. */
#include "exec/cpu/low_latency/far.h"

#include <string.h>

static ll_dispatch dispatch_of(ll_cpu *self, ll_dispatch_step *step)
{
    const int32_t codec = ll_codec_of(&step->call.form);
    return (ll_dispatch){.self = self,
                         .step = step,
                         .record = ll_record_of(self, LL_DISPATCH, step->call.epoch),
                         .codec = codec,
                         .row_bytes = (size_t)codec_row_bytes(codec, self->shape.hidden),
                         .scales = (int32_t)codec_scales(codec, self->shape.hidden)};
}

/* ---- send -------------------------------------------------------------------------------------------------------- */

void ll_dispatch_header(const ll_dispatch *d, ll_header *header, int32_t token, const ll_target *target)
{
    const ll_cpu *self = d->self;
    const ll_sends *sends = &self->sends;
    const ep_route_view *route = &d->step->route;
    const int32_t topk = self->shape.topk, locals = self->shape.local_experts;
    const int64_t slot = (int64_t)token * topk;
    int32_t *experts = ll_header_experts(header), *rows = ll_header_rows(header, topk);
    *header = (ll_header){.token = token, .place = target->place};
    for (int32_t k = 0; k < d->step->call.form.topk; k++) {
        const int32_t local = sends->experts[slot + k] - target->rank * locals;
        const bool here = local >= 0 && local < locals;
        experts[k] = here ? local : -1;
        rows[k] = here ? sends->rows[slot + k] : 0;
    }
    if (route->weights)
        memcpy(ll_header_weights(header, topk), route->weights + token * route->weights_pitch,
               (size_t)d->step->call.form.topk * sizeof(float));
}

const void *ll_dispatch_payload(const ll_dispatch *d, int32_t token, const ll_scratch *scratch)
{
    const void *row = (const uint8_t *)d->step->x + token * d->step->x_pitch_bytes;
    if (d->scales == 0) return row;
    uint8_t *payload = scratch->payload, *scales = payload + d->row_bytes;
    const int32_t dtype = d->step->call.form.dtype, hidden = d->self->shape.hidden;
    if (d->codec == CODEC_NVFP4)
        cpu_encode_nvfp4_row(dtype, hidden, *d->step->global_scale, row, payload, scales);
    else
        cpu_encode_row(d->codec, dtype, hidden, row, payload, scales);
    return payload;
}

static void send_message(const ll_dispatch *d, int32_t token, const ll_target *target, const void *payload,
                         ll_burst *burst)
{
    const ll_cpu *self = d->self;
    const uint64_t epoch = d->step->call.epoch;
    const int32_t own = self->sym->rank, bank = self->banks[target->rank].now;
    uint8_t *message = ll_at(self, target->rank, ll_message_at(&self->space, &self->shape, own, bank, target->message));
    uint8_t *to = message + self->space.header_bytes;
    ll_dispatch_header(d, (ll_header *)message, token, target);
    ll_burst_copy(burst, to, payload, d->row_bytes + (size_t)d->scales * sizeof(uint32_t));
    ll_burst_flag(burst, target->rank, ll_message_flag_at(&self->space, &self->shape, own, epoch, target->message),
                  (uint32_t)bank);
}

/* Says whether the data of this rank's last dispatch to the message slot there were read, or never will be. If that
   dispatch had the parity of the present one, whose credit check has passed, they were. If it had the other parity, a
   later dispatch that was admitted to that slot of the double buffer shows it, or the acknowledgement. */
static bool bank_is_free(const ll_cpu *self, int32_t pe, int32_t bank, uint64_t epoch)
{
    const uint64_t last = self->banks[pe].last[bank], other = self->banks[pe].last[1 - bank];
    if (last == 0 || ll_slot_of_epoch(last) == ll_slot_of_epoch(epoch)) return true;
    if (other > last && ll_slot_of_epoch(other) == ll_slot_of_epoch(last)) return true;
    if (pe == self->sym->rank) return self->records[LL_DISPATCH][ll_slot_of_epoch(last)].epoch != last;
    return ll_word_is_of(ll_look(self, ll_read_at(&self->space, LL_DISPATCH, pe, last)), last);
}

/* Chooses the message slot at a peer whose credit check has passed. Many messages go to the slot of the last dispatch:
   its lines that are left in the caches need not be fetched again. Few messages go to the other slot, since lines that
   were just read there take longer to write (measured: docs/internals/measurements/low-latency-cpu.md).

   If the slot of choice is not free, the other one is. Its contents have the parity of this call, or are older than
   those of the busy slot, and were free when those were admitted. */
static void bank_choose(ll_cpu *self, int32_t pe, uint64_t epoch, bool many)
{
    ll_banks *banks = &self->banks[pe];
    const int32_t last = banks->last[1] > banks->last[0], wanted = many ? last : 1 - last;
    banks->now = bank_is_free(self, pe, wanted, epoch) ? wanted : 1 - wanted;
    banks->last[banks->now] = epoch;
}

static ll_due send_due(const void *context, int32_t rank)
{
    const ll_cpu *self = context;
    return (ll_due){.came = self->progress[rank] == SEND_DONE, .all = 1};
}

/* Finds peers whose slot has become free, and returns how many slots are still busy. */
static int32_t find_open(const ll_dispatch *d, int32_t *now)
{
    ll_cpu *self = d->self;
    /* `many` is one eighth of the limit from which rows bypass the cache. */
    const bool many = ll_streams(self, 8 * (uint64_t)self->sends.first[d->step->tokens], d->row_bytes);
    int32_t waits = 0;
    *now = 0;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (self->progress[r] != SEND_WAITS) continue;
        const ll_credit credit = ll_credit_of(self, LL_DISPATCH, d->step->call.epoch, r);
        self->progress[r] = credit == LL_CREDIT_GIVEN ? SEND_NOW : credit == LL_CREDIT_REJECTS ? SEND_DONE : SEND_WAITS;
        if (credit == LL_CREDIT_GIVEN && !ll_is_far(self, r)) bank_choose(self, r, d->step->call.epoch, many);
        *now += credit == LL_CREDIT_GIVEN;
        waits += credit == LL_CREDIT_AWAITED;
    }
    return waits;
}

/* Sends messages of these tokens to the near peers of this round. */
static void send_tokens(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end)
{
    const ll_dispatch *d = context;
    const ll_cpu *self = d->self;
    const ll_sends *sends = &self->sends;
    ll_burst burst = ll_burst_begin(self, d->step->call.epoch, d->sends_past);
    for (int32_t t = begin; t < end; t++) {
        const void *payload = NULL;
        for (int32_t i = sends->first[t]; i < sends->first[t + 1]; i++) {
            const int32_t pe = sends->targets[i].rank;
            if (self->progress[pe] != SEND_NOW || ll_is_far(self, pe)) continue;
            if (!payload) payload = ll_dispatch_payload(d, t, scratch);
            send_message(d, t, &sends->targets[i], payload, &burst);
        }
    }
    ll_burst_end(&burst);
}

/* Returns the bytes of this round's messages that go by stores. */
static uint64_t bytes_now(const ll_dispatch *d)
{
    const ll_cpu *self = d->self;
    uint64_t messages = 0;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (self->progress[r] == SEND_NOW && !ll_is_far(self, r)) messages += (uint64_t)self->sends.messages[r];
    return messages * d->row_bytes;
}

/* Data for a network leave first, so that they travel while the rest is stored. */
static void send_round(const ll_dispatch *d)
{
    ll_cpu *self = d->self;
    const int32_t tokens = d->step->tokens;
    if (self->far) self->far->dispatch_send(d);
    const int64_t begin_ns = d->scales == 0 && !d->sends_past && ll_pace_times(&self->pace) ? clock_ns() : 0;
    ll_share_out(self, tokens, (uint64_t)self->sends.first[tokens] * d->row_bytes, send_tokens, d);
    if (d->scales == 0) ll_pace_note(&self->pace, bytes_now(d), begin_ns ? clock_ns() - begin_ns : 0);
    for (int32_t i = 0; i < self->shape.ranks; i++) {
        const int32_t pe = ll_peer_in_turn(self, i);
        if (self->progress[pe] != SEND_NOW) continue;
        self->progress[pe] = SEND_DONE;
        if (pe != self->sym->rank) sym_ring(self->sym, pe);
    }
}

/* Skips ranks that receive nothing, and this rank itself if its rows stay in x. */
static expar_status send_messages(const ll_dispatch *d)
{
    ll_cpu *self = d->self;
    ll_wait wait = {.cpu = self,
                    .call = &d->step->call,
                    .what = "low-latency dispatch: acknowledgements of earlier rows",
                    .of = "acknowledgements",
                    .due = send_due,
                    .context = self};
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        self->progress[r] =
            self->sends.messages[r] == 0 || (r == self->sym->rank && d->step->x_stays) ? SEND_DONE : SEND_WAITS;
    for (;;) {
        int32_t now;
        const int32_t waits = find_open(d, &now);
        if (now > 0) send_round(d);
        if (waits == 0) break;
        status = ll_wait_turn(&wait, now > 0);
        if (status != EXPAR_OK) break;
    }
    return ll_wait_end(&wait, status);
}

/* The handle keeps the experts of this rank's own tokens. */
static void keep_idx(const ll_dispatch *d)
{
    const int32_t topk = d->self->shape.topk;
    memcpy(d->step->routing->idx, d->self->sends.experts, (size_t)d->step->tokens * (size_t)topk * sizeof(int32_t));
}

static void count_sent(const ll_dispatch *d)
{
    ll_cpu *self = d->self;
    uint64_t messages = 0;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        messages += ll_is_masked(self, r) ? 0 : (uint64_t)self->sends.messages[r];
    const uint64_t header = sizeof(ll_header) + 8 * (uint64_t)d->step->call.form.topk +
                            (d->step->route.weights ? 4 * (uint64_t)d->step->call.form.topk : 0);
    ll_raise(&self->totals.dispatches, 1);
    ll_raise(&self->totals.dispatch_messages, messages);
    ll_raise(&self->totals.bytes_sent, messages * (header + d->row_bytes + 4 * (uint64_t)d->scales));
}

expar_status ll_dispatch_send(ll_cpu *self, ll_dispatch_step *step)
{
    ll_call *call = &step->call;
    const bool goes = call->rejection.status == EXPAR_OK;
    if (goes) {
        expar_status filled = ll_sends_fill(&self->sends, &self->shape, &step->route, step->tokens, call->form.topk);
        if (filled != EXPAR_OK) call->rejection = ep_rejection_of(filled);
    }
    if (self->far) self->far->dispatch_plan(self, goes);
    expar_status status = ll_call_open(self, call, goes ? &self->sends : NULL);
    if (status != EXPAR_OK || !call->open) return status;
    ll_dispatch d = dispatch_of(self, step);
    keep_idx(&d);
    step->routing->route = ll_stamp(call->epoch);
    count_sent(&d);
    d.sends_past =
        ll_streams(self, (uint64_t)self->sends.first[step->tokens], d.row_bytes) || ll_pace_streams(&self->pace);
    if (self->far) self->far->await(self, LL_DISPATCH, call->epoch);
    return send_messages(&d);
}

/* ---- receive ----------------------------------------------------------------------------------------------------- */

/* Returns the messages that are awaited, in a call whose headers are known. */
static ll_due message_due(const void *context, int32_t rank)
{
    const ll_dispatch *d = context;
    const int32_t came = d->self->progress[rank];
    if (ll_is_masked(d->self, rank)) return (ll_due){.came = came, .all = came};
    return (ll_due){.came = came, .all = ll_sends_data(d->self, d->record, rank) ? d->record->told[rank].messages : 0};
}

/* A row's scales are stored apart: each word in a column of its own, in which rows follow each other. */
static void place_scales(const ll_dispatch *d, int64_t row, const void *scales)
{
    const int64_t rows = (int64_t)d->self->shape.ranks * d->self->shape.tokens;
    uint32_t *out = d->step->out_scales;
    for (int32_t w = 0; w < d->scales; w++)
        memcpy(out + codec_scale_at(d->codec, d->scales, rows, row / rows, w, row % rows), (const uint32_t *)scales + w,
               sizeof(uint32_t));
}

/* Copies one payload to the rows of all its experts here. */
static void fan_out(const ll_dispatch *d, int32_t source, const ll_header *header, const void *payload)
{
    const int32_t topk = d->self->shape.topk;
    const int32_t *experts = ll_header_experts((ll_header *)header), *rows = ll_header_rows((ll_header *)header, topk);
    for (int32_t k = 0; k < d->step->call.form.topk; k++) {
        int64_t row;
        if (experts[k] < 0 || !ll_range_row(d, source, experts[k], rows[k], &row)) continue;
        cpu_copy_row((uint8_t *)d->step->out_x + row * (int64_t)d->row_bytes, payload, d->row_bytes, d->streaming);
        if (d->scales) place_scales(d, row, (const uint8_t *)payload + d->row_bytes);
        d->step->routing->src_info[row] = header->token;
    }
}

static ll_header *header_kept(const ll_dispatch *d, int32_t source, int32_t message)
{
    const ll_route_map map = ll_route_map_of(&d->self->shape);
    const uint64_t number = (uint64_t)source * (uint64_t)d->self->shape.tokens + (uint64_t)message;
    return (ll_header *)(d->step->routing->headers + number * map.header_bytes);
}

/* Returns the message slot that the flag names; the flag has come. Even if a broken peer wrote it, this is one of the
   two. */
static int32_t bank_of_message(const ll_dispatch *d, int32_t source, int32_t message)
{
    const ll_cpu *self = d->self;
    const uint64_t flag = ll_message_flag_at(&self->space, &self->shape, source, d->step->call.epoch, message);
    return (int32_t)(ll_look(self, flag) % LL_BANKS);
}

static const uint8_t *message_that_came(const ll_dispatch *d, int32_t source, int32_t message)
{
    const ll_cpu *self = d->self;
    if (ll_is_far(self, source)) return self->far->message(d, source, message);
    const int32_t bank = bank_of_message(d, source, message);
    return ll_here(self, ll_message_at(&self->space, &self->shape, source, bank, message));
}

static void take_message(const ll_dispatch *d, int32_t source, int32_t message)
{
    const ll_cpu *self = d->self;
    const uint8_t *at = message_that_came(d, source, message);
    ll_header *header = header_kept(d, source, message);
    memcpy(header, at, sizeof(ll_header) + (size_t)self->shape.topk * 12);
    fan_out(d, source, header, at + self->space.header_bytes);
}

/* Returns the bytes of all rows that come from the source. */
static uint64_t bytes_from(const ll_dispatch *d, int32_t source)
{
    const int32_t locals = d->self->shape.local_experts;
    uint64_t rows = 0;
    for (int32_t l = 0; l < locals; l++)
        rows += (uint64_t)d->record->counts[(int64_t)source * locals + l];
    return rows * d->row_bytes;
}

/* Messages of one source, after those that were taken. */
typedef struct ll_arrivals {
    const ll_dispatch *d;
    int32_t source, first;
} ll_arrivals;

static void take_arrivals(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end)
{
    const ll_arrivals *arrivals = context;
    (void)scratch;
    for (int32_t m = begin; m < end; m++) {
        ll_step(arrivals->d->self);
        take_message(arrivals->d, arrivals->source, arrivals->first + m);
    }
}

/* Returns how many messages have come that were not taken yet. */
static int32_t count_arrivals(const ll_dispatch *d, int32_t source)
{
    const ll_cpu *self = d->self;
    const ll_due due = message_due(d, source);
    int32_t message = self->progress[source];
    if (ll_is_far(self, source)) return self->far->messages_came(d, source, message, (int32_t)due.all);
    for (; message < due.all; message++) {
        const uint64_t flag = ll_message_flag_at(&self->space, &self->shape, source, d->step->call.epoch, message);
        if (!ll_word_is_of(ll_look(self, flag), d->step->call.epoch)) break;
    }
    return message - self->progress[source];
}

/* Takes all messages that have come from the source since the last look; returns how many. */
static int32_t take_messages(const ll_dispatch *d, int32_t source)
{
    ll_cpu *self = d->self;
    const int32_t before = self->progress[source];
    for (;;) {
        const ll_arrivals arrivals = {.d = d, .source = source, .first = self->progress[source]};
        const int32_t count = count_arrivals(d, source);
        if (count == 0) break;
        ll_share_out(self, count, bytes_from(d, source) * (uint64_t)count / (uint64_t)message_due(d, source).all,
                     take_arrivals, &arrivals);
        self->progress[source] += count;
    }
    return self->progress[source] - before;
}

static void take_own_tokens(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end)
{
    const ll_dispatch *d = context;
    const ll_sends *sends = &d->self->sends;
    const int32_t own = d->self->sym->rank;
    for (int32_t t = begin; t < end; t++)
        for (int32_t i = sends->first[t]; i < sends->first[t + 1]; i++) {
            if (sends->targets[i].rank != own) continue;
            ll_header *header = header_kept(d, own, sends->targets[i].message);
            ll_dispatch_header(d, header, t, &sends->targets[i]);
            fan_out(d, own, header, ll_dispatch_payload(d, t, scratch));
        }
}

/* Takes this rank's own rows, which need no slots if they have stayed in x. */
static void take_own(const ll_dispatch *d)
{
    ll_cpu *self = d->self;
    const ll_sends *sends = &self->sends;
    const int32_t own = self->sym->rank;
    ll_share_out(self, d->step->tokens, bytes_from(d, own), take_own_tokens, d);
    self->progress[own] = sends->messages[own];
}

static expar_status receive_messages(const ll_dispatch *d)
{
    ll_cpu *self = d->self;
    ll_wait wait = {.cpu = self,
                    .call = &d->step->call,
                    .what = "low-latency dispatch: rows",
                    .of = "rows",
                    .due = message_due,
                    .receives = true,
                    .context = d};
    expar_status status = EXPAR_OK;
    memset(self->progress, 0, (size_t)self->shape.ranks * sizeof(int32_t));
    if (d->step->x_stays) take_own(d);
    for (;;) {
        int32_t open = 0, moved = 0;
        for (int32_t i = 0; i < self->shape.ranks; i++) {
            const int32_t source = ll_peer_in_turn(self, i);
            const int32_t took = take_messages(d, source);
            const ll_due due = message_due(d, source);
            open += due.came < due.all;
            moved += took;
            if (took > 0 && due.came == due.all) ll_wait_came(&wait, source);
        }
        if (open == 0) break;
        status = ll_wait_turn(&wait, moved > 0);
        if (status != EXPAR_OK) break;
    }
    cpu_copy_fence();
    return ll_wait_end(&wait, status);
}

/* Returns how many rows of the source for an expert have come. Its messages come in order, and so do the rows of each
   expert in them. */
static int32_t count_came(const ll_dispatch *d, int32_t source, int32_t local)
{
    const int32_t topk = d->step->call.form.topk;
    int32_t came = 0;
    for (int32_t m = 0; m < d->self->progress[source]; m++)
        for (int32_t k = 0; k < topk; k++)
            came += ll_header_experts(header_kept(d, source, m))[k] == local;
    return came;
}

/* Counts the rows that have come and are in the caller's results. If messages of a source are missing, these are fewer
   than its header counted. */
static void add_stats(const ll_dispatch *d)
{
    const int32_t n = d->self->shape.ranks;
    if (!d->step->stats) return;
    for (int32_t s = 0; s < n; s++) {
        const bool whole = d->self->progress[s] == d->record->told[s].messages;
        for (int32_t l = 0; l < d->self->shape.local_experts; l++) {
            const int32_t counted = ll_range_count(d->step->routing->range[(int64_t)l * n + s]);
            d->step->stats[l] += whole || counted == 0 ? counted : count_came(d, s, l);
        }
    }
}

/* Clears rows that a masked source has counted and not sent. */
static void clear_missing(const ll_dispatch *d, int32_t source)
{
    ll_cpu *self = d->self;
    const int32_t n = self->shape.ranks;
    for (int32_t l = 0; l < self->shape.local_experts; l++) {
        const int32_t count = ll_range_count(d->step->routing->range[(int64_t)l * n + source]);
        for (int32_t i = count > 0 ? count_came(d, source, l) : 0; i < count; i++) {
            int64_t row;
            if (!ll_range_row(d, source, l, i, &row)) continue;
            memset((uint8_t *)d->step->out_x + row * (int64_t)d->row_bytes, 0, d->row_bytes);
            memset(self->scratch->payload, 0, (size_t)d->scales * sizeof(uint32_t));
            if (d->scales) place_scales(d, row, self->scratch->payload);
            d->step->routing->src_info[row] = -1;
        }
    }
}

static void keep_messages(const ll_dispatch *d)
{
    for (int32_t s = 0; s < d->self->shape.ranks; s++) {
        d->step->routing->messages[s] = (int32_t)message_due(d, s).all;
        d->step->routing->returns[s] = d->record->told[s].returns;
    }
}

expar_status ll_dispatch_receive(ll_cpu *self, ll_dispatch_step *step)
{
    ll_dispatch d = dispatch_of(self, step);
    ll_ranges_place(&d);
    expar_status status = receive_messages(&d);
    add_stats(&d);
    if (status != EXPAR_OK) return status;
    for (int32_t s = 0; s < self->shape.ranks; s++)
        if (ll_is_masked(self, s)) clear_missing(&d, s);
    keep_messages(&d);
    return EXPAR_OK;
}
