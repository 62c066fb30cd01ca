/* SPDX-License-Identifier: Apache-2.0 */
/* Commands in progress: posted when nothing precedes them, ended when they are delivered or hopeless. Only the proxy's
 * thread does this. Each PE has a list of its own, so a slow one costs the others nothing. */
#include "base/knobs.h"
#include "net/proxy/parts.h"

/* ---- ending ------------------------------------------------------------------------------------------------------ */

static void record_failure(proxy *self, const proxy_command *command, expar_status status)
{
    const int32_t pe = command->pe;
    uint32_t count = ++self->failures == 0 ? ++self->failures : self->failures;
    LOG(LOG_INFO, "proxy: an operation to rank %d failed: %s", pe, expar_status_text(status));
    if (pe >= 0 && pe < self->size) atomic_store_explicit(&self->failed_to[pe], (int32_t)status, memory_order_release);
    if (self->plan.failed) self->plan.failed(self->plan.context, command, status);
    proxy_store(&self->ring->failure, proxy_failure(count, (int32_t)status, pe));
}

static bool changes_memory(const proxy_command *c)
{
    return c->kind != PROXY_GET && !(c->kind == PROXY_ATOMIC && c->op == TRANSPORT_FETCH);
}

static void flight_end(proxy *self, flight *f, expar_status status)
{
    f->state = FLIGHT_ENDED;
    if (status != EXPAR_OK)
        record_failure(self, &f->command, status);
    else if (changes_memory(&f->command))
        self->peers[f->command.pe].delivered = true;
}

/* The message has left the transport, or is given up. */
static void flight_release(proxy *self, flight *f)
{
    proxy_peer *peer = &self->peers[f->command.pe];
    if (f->state != FLIGHT_POSTED) return;
    peer->messages--;
    peer->bytes -= f->message_bytes;
    if (atomic_load_explicit(&f->batch.left, memory_order_acquire) > 0)
        f->via->ops->drop(f->via, f->command.pe, &f->batch);
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

static void tell_peer(proxy *self, int32_t pe)
{
    proxy_peer *peer = &self->peers[pe];
    const uint64_t number = peer->first == PROXY_NONE ? peer->end_number : self->flights[peer->first].number;
    if (peer->told_number == number) return;
    peer->told_number = number;
    proxy_store(&proxy_done_to(self->ring, self->port.num_slots)[pe], proxy_end(number, self->failures != 0));
    self->changed = true;
}

bool proxy_count_done(proxy *self)
{
    uint64_t done = self->done;
    while (done != self->taken && proxy_flight(self, done)->state == FLIGHT_ENDED)
        done++;
    if (done == self->done) return false;
    proxy_between_steps(self);
    self->done = done;
    proxy_store(&self->ring->done, proxy_end(done, self->failures != 0));
    self->changed = true;
    return true;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static uint32_t flight_place(const proxy *self, const flight *f)
{
    return (uint32_t)(f - self->flights);
}

void proxy_begin_flight(proxy *self, flight *f)
{
    proxy_peer *peer = &self->peers[f->command.pe];
    if (peer->first == PROXY_NONE) {
        peer->first = flight_place(self, f);
        self->active[self->num_active++] = f->command.pe;
    } else {
        self->flights[peer->last].next = flight_place(self, f);
    }
    peer->last = flight_place(self, f);
    peer->end_number = f->number + 1;
}

void proxy_reject(proxy *self, flight *f, expar_status status)
{
    const int32_t pe = f->command.pe;
    f->state = FLIGHT_ENDED;
    record_failure(self, &f->command, status);
    if (pe < 0 || pe >= self->size) return;
    self->peers[pe].end_number = f->number + 1;
    tell_peer(self, pe);
}

static void unlink_flight(proxy *self, proxy_peer *peer, uint32_t before, const flight *f)
{
    if (before == PROXY_NONE)
        peer->first = f->next;
    else
        self->flights[before].next = f->next;
    if (f->next == PROXY_NONE) peer->last = before;
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

static void flight_add_signal(transport_request *request, const proxy_command *c)
{
    request->op = (transport_atomic_op)c->op;
    request->operand = c->operand;
    request->compare = c->compare;
}

/* The signal of a put whose data is there, or an atomic. */
static transport_request word_of(const flight *f)
{
    const proxy_command *c = &f->command;
    transport_request request = {
        .kind = TRANSPORT_KIND_ATOMIC, .pe = c->pe, .memory = c->memory, .offset = c->offset, .bytes = c->bytes};
    flight_add_signal(&request, c);
    if (f->signals) {
        request.memory = c->signal_memory;
        request.offset = c->signal;
        request.bytes = sizeof(uint64_t);
    } else {
        request.dest = (void *)(uintptr_t)c->local;
    }
    return request;
}

static transport_request data_of(const flight *f)
{
    const proxy_command *c = &f->command;
    transport_request request = {.pe = c->pe, .memory = c->memory, .offset = c->offset, .bytes = f->message_bytes};
    request.on_device = f->on_device;
    if (c->kind == PROXY_GET) {
        request.kind = TRANSPORT_KIND_GET;
        request.dest = (void *)(uintptr_t)c->local;
    } else {
        request.kind = TRANSPORT_KIND_PUT;
        request.source = c->kind == PROXY_P ? (const void *)&c->operand : (const void *)(uintptr_t)c->local;
    }
    return request;
}

static const transport_ways *ways_of(const proxy *self, uint8_t memory, int32_t pe)
{
    return &self->plan.ways[memory * self->size + pe];
}

/* If one transport does both, the signal goes with its data, in the form that the transport knows to be ordered. */
static void carry_signal(const proxy *self, flight *f, transport_request *request)
{
    const proxy_command *last = &proxy_last_joined(self, f)->command;
    f->carries_signal = last->kind == PROXY_PUT_SIGNAL && ways_of(self, last->signal_memory, last->pe)->words == f->via;
    if (!f->carries_signal) return;
    flight_add_signal(request, last);
    request->signals = true;
    request->signal_memory = last->signal_memory;
    request->signal_offset = last->signal;
}

static transport_request flight_request(proxy *self, flight *f)
{
    const proxy_command *c = &f->command;
    if (c->kind == PROXY_PUT_SIGNAL && c->bytes == 0) f->signals = true;
    if (f->signals || c->kind == PROXY_ATOMIC) {
        const transport_request word = word_of(f);
        f->via = ways_of(self, word.memory, word.pe)->words;
        f->message_bytes = word.bytes;
        f->num_joined = 0;
        return word;
    }
    proxy_join(self, f);
    transport_request data = data_of(f);
    f->via = f->on_device ? self->plan.on_device : ways_of(self, c->memory, c->pe)->data;
    if (c->kind != PROXY_GET) carry_signal(self, f, &data);
    return data;
}

static bool has_share(const proxy *self, const proxy_peer *peer, const flight *f)
{
    if (peer->messages >= self->most_messages) return false;
    return peer->bytes == 0 || peer->bytes + f->message_bytes <= self->most_bytes;
}

/* Ends the flights whose data the message carried, or leaves them their signals. */
static void land_all(proxy *self, flight *f, expar_status status)
{
    flight *one = f;
    for (uint32_t i = 0; i <= f->num_joined; i++) {
        const bool is_last = i == f->num_joined;
        const bool owes_signal = one->command.kind == PROXY_PUT_SIGNAL && !one->signals && !f->carries_signal;
        if (status == EXPAR_OK && owes_signal) {
            one->signals = true;
            one->state = FLIGHT_WAITS;
        } else {
            flight_end(self, one, status);
        }
        if (!is_last) one = &self->flights[one->next];
    }
}

static void note_joined(proxy *self, flight *f)
{
    flight *one = f;
    for (uint32_t i = 0; i < f->num_joined; i++) {
        one = &self->flights[one->next];
        one->state = FLIGHT_JOINED;
    }
}

static void add_to_count(_Atomic uint64_t *count, uint64_t more)
{
    atomic_fetch_add_explicit(count, more, memory_order_relaxed);
}

/* A signal that follows its data by itself belongs to the message of the data. Gets are not counted. */
static void count_posted(proxy *self, const flight *f, const transport_request *request)
{
    const bool follows = f->signals && f->command.bytes > 0;
    if (request->kind == TRANSPORT_KIND_PUT) add_to_count(&self->sent_messages, 1);
    if (request->kind == TRANSPORT_KIND_ATOMIC && !follows) add_to_count(&self->sent_flags, 1);
    if (request->kind != TRANSPORT_KIND_GET)
        add_to_count(&self->sent_bytes, request->bytes + (request->signals ? sizeof(uint64_t) : 0));
}

/* Operations on memory of a GPU may wait until they are complete, and drive the network meanwhile. */
static bool may_wait(const transport_request *request)
{
    return request->on_device || request->memory == TRANSPORT_DEVICE;
}

static expar_status post_by_transport(proxy *self, flight *f, const transport_request *request)
{
    const bool waits = may_wait(request);
    if (request->bytes == 0) return EXPAR_OK;
    if (waits) proxy_attend(self, false);
    atomic_store_explicit(&self->in_post, waits, memory_order_relaxed);
    const expar_status status = f->via->ops->post(f->via, request, &f->batch);
    atomic_store_explicit(&self->in_post, false, memory_order_relaxed);
    return status;
}

/* Returns false if it must be tried again: its PE has its share on the way, or its transport has no free space. */
static bool post(proxy *self, proxy_peer *peer, flight *f)
{
    const transport_request request = flight_request(self, f);
    f->batch = (transport_batch){0};
    if (!has_share(self, peer, f)) return false;
    if (!f->via) {
        land_all(self, f, EXPAR_ERR_UNSUPPORTED);
        return true;
    }
    proxy_between_steps(self);
    const expar_status status = post_by_transport(self, f, &request);
    if (status == EXPAR_ERR_BUSY) return false;
    peer->messages++;
    peer->bytes += f->message_bytes;
    f->state = FLIGHT_POSTED;
    note_joined(self, f);
    if (status == EXPAR_OK) {
        count_posted(self, f, &request);
        return true;
    }
    flight_release(self, f);
    land_all(self, f, status);
    return true;
}

/* The message has been delivered, or has failed. */
static void land(proxy *self, proxy_peer *peer, flight *f)
{
    const expar_status status = (expar_status)atomic_load_explicit(&f->batch.status, memory_order_relaxed);
    peer->patience = (transport_patience){0};
    flight_release(self, f);
    land_all(self, f, status);
}

static bool has_landed(const flight *f)
{
    return f->state == FLIGHT_POSTED && atomic_load_explicit(&f->batch.left, memory_order_acquire) == 0;
}

/* Returns whether its data, or an atomic, has not been posted. All flights after it wait, too. */
static bool is_unposted(const flight *f)
{
    return f->state == FLIGHT_WAITS && !f->signals;
}

/* Moves the flight on; `blocked` is set if something of it must be tried again, and then nothing more is posted to its
   PE in this pass. Returns whether it moved. */
static bool move_flight(proxy *self, proxy_peer *peer, flight *f, bool *blocked)
{
    bool moved = false;
    for (;;) {
        if (has_landed(f)) {
            land(self, peer, f);
        } else if (f->state != FLIGHT_WAITS || *blocked) {
            return moved;
        } else if (f->epoch != self->flights[peer->first].epoch || !post(self, peer, f)) {
            *blocked = true;
            return moved;
        }
        moved = true;
    }
}

static bool move_peer(proxy *self, int32_t pe)
{
    proxy_peer *peer = &self->peers[pe];
    bool moved = false, blocked = false;
    uint32_t before = PROXY_NONE;
    for (uint32_t at = peer->first; at != PROXY_NONE;) {
        flight *f = &self->flights[at];
        if (blocked && is_unposted(f)) break;
        moved |= move_flight(self, peer, f, &blocked);
        at = f->next;
        if (f->state == FLIGHT_ENDED)
            unlink_flight(self, peer, before, f);
        else
            before = flight_place(self, f);
    }
    if (peer->delivered) self->plan.delivered(self->plan.context, pe);
    peer->delivered = false;
    tell_peer(self, pe);
    return moved;
}

bool proxy_move_flights(proxy *self)
{
    bool moved = false;
    for (int32_t i = 0; i < self->num_active;) {
        const int32_t pe = self->active[i];
        moved |= move_peer(self, pe);
        if (self->peers[pe].first == PROXY_NONE)
            self->active[i] = self->active[--self->num_active];
        else
            i++;
    }
    return proxy_count_done(self) || moved;
}

bool proxy_has_work(const proxy *self)
{
    if (proxy_can_take(self)) return true;
    for (int32_t i = 0; i < self->num_active; i++)
        for (uint32_t at = self->peers[self->active[i]].first; at != PROXY_NONE; at = self->flights[at].next) {
            const flight *f = &self->flights[at];
            if (is_unposted(f)) break;
            if (has_landed(f)) return true;
        }
    return false;
}

/* ---- those that nothing will come of ----------------------------------------------------------------------------- */

/* Returns EXPAR_OK while the thread may wait for the PE. */
static expar_status judge(proxy *self, int32_t pe, int64_t now_ns)
{
    const transport_site *site = self->plan.site;
    proxy_peer *peer = &self->peers[pe];
    expar_status status = site->check(site->context, pe, "proxy");
    if (status != EXPAR_OK) return status;
    const int64_t end_ns = peer->patience.end_ns;
    if (!transport_waits_on(site, &peer->patience, pe, now_ns)) return EXPAR_ERR_PEER;
    if (peer->patience.end_ns != end_ns) atomic_fetch_add_explicit(&self->excuses, 1, memory_order_relaxed);
    return EXPAR_OK;
}

expar_status proxy_loss_of(proxy *self, int32_t pe)
{
    proxy_peer *peer = &self->peers[pe];
    if (peer->lost != EXPAR_OK && atomic_exchange_explicit(&self->forgiven[pe], false, memory_order_acquire)) {
        peer->lost = EXPAR_OK;
        peer->patience = (transport_patience){0};
    }
    return peer->lost;
}

static void end_peer(proxy *self, int32_t pe, expar_status status)
{
    proxy_peer *peer = &self->peers[pe];
    for (uint32_t at = peer->first; at != PROXY_NONE; at = self->flights[at].next) {
        flight *f = &self->flights[at];
        flight_release(self, f);
        flight_end(self, f, status);
    }
    peer->first = peer->last = PROXY_NONE;
    tell_peer(self, pe);
}

void proxy_end_hopeless(proxy *self)
{
    const int64_t now_ns = clock_ns();
    for (int32_t i = 0; i < self->num_active;) {
        const int32_t pe = self->active[i];
        proxy_peer *peer = &self->peers[pe];
        if (proxy_loss_of(self, pe) == EXPAR_OK) peer->lost = judge(self, pe, now_ns);
        if (peer->lost == EXPAR_OK) {
            i++;
            continue;
        }
        atomic_store_explicit(&self->forgiven[pe], false, memory_order_relaxed); /* it was for an earlier loss */
        end_peer(self, pe, peer->lost);
        self->active[i] = self->active[--self->num_active];
    }
    proxy_count_done(self);
}

void proxy_end_all(proxy *self, expar_status status)
{
    while (self->num_active > 0)
        end_peer(self, self->active[--self->num_active], status);
    proxy_count_done(self);
}
