/* SPDX-License-Identifier: Apache-2.0 */
/* Commands in progress: taken from the ring, posted when nothing precedes them, ended when they are delivered or
 * hopeless. Only the proxy's thread does this. */
#include "net/proxy/parts.h"

static flight *flight_of(proxy *self, uint64_t number)
{
    return &self->flights[number & (PROXY_IN_FLIGHT - 1)];
}

/* ---- checks: a producer may be a kernel that nobody has checked -------------------------------------------------- */

/* Beyond the grown part there is no memory, and before the heap proper lies the control page, which keeps the ranks
   together. */
static bool is_within(const proxy *self, uint8_t memory, uint64_t offset, uint64_t bytes)
{
    if (memory >= TRANSPORT_MEMORIES || !self->plan.bounds[memory].end) return false;
    const proxy_bounds *bounds = &self->plan.bounds[memory];
    uint64_t end = atomic_load_explicit(bounds->end, memory_order_acquire);
    return bytes == 0 || (offset >= bounds->begin && offset < end && bytes <= end - offset);
}

static bool is_word(const proxy *self, uint8_t memory, uint64_t offset, uint64_t bytes)
{
    return (bytes == 4 || bytes == 8) && offset % bytes == 0 && is_within(self, memory, offset, bytes);
}

static expar_status check_command(const proxy *self, const proxy_command *c)
{
    bool fits = false;
    switch ((proxy_kind)c->kind) {
    case PROXY_FENCE:
        return EXPAR_OK;
    case PROXY_PUT:
    case PROXY_GET:
        fits = is_within(self, c->memory, c->offset, c->bytes);
        break;
    case PROXY_PUT_SIGNAL:
        if (c->op != TRANSPORT_SET && c->op != TRANSPORT_ADD) return EXPAR_ERR_ARGUMENT;
        fits = is_within(self, c->memory, c->offset, c->bytes) &&
               is_word(self, c->signal_memory, c->signal, sizeof(uint64_t));
        break;
    case PROXY_ATOMIC:
        if (c->op > TRANSPORT_XOR) return EXPAR_ERR_ARGUMENT;
        fits = is_word(self, c->memory, c->offset, c->bytes);
        break;
    default:
        return EXPAR_ERR_ARGUMENT;
    }
    if (c->pe < 0 || c->pe >= self->size) return EXPAR_ERR_RANGE;
    return fits ? EXPAR_OK : EXPAR_ERR_ADDRESS;
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

static void record_failure(proxy *self, int32_t pe, expar_status status)
{
    uint32_t count = ++self->failures == 0 ? ++self->failures : self->failures;
    LOG(LOG_INFO, "proxy: an operation to rank %d failed: %s", pe, expar_status_text(status));
    proxy_store(&self->ring->failure, proxy_failure(count, (int32_t)status, pe));
}

static bool changes_memory(const proxy_command *c)
{
    return c->kind != PROXY_GET && !(c->kind == PROXY_ATOMIC && c->op == TRANSPORT_FETCH);
}

static void flight_end(proxy *self, flight *f, expar_status status)
{
    int32_t pe = f->command.pe;
    if (f->state == FLIGHT_POSTED && atomic_load_explicit(&f->batch.left, memory_order_acquire) > 0)
        f->via->ops->drop(f->via, pe, &f->batch);
    f->state = FLIGHT_ENDED;
    if (status != EXPAR_OK)
        record_failure(self, pe, status);
    else if (changes_memory(&f->command))
        self->plan.delivered(self->plan.context, pe);
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

static transport_request request_of(const flight *f)
{
    const proxy_command *c = &f->command;
    transport_request request = {.pe = c->pe, .memory = c->memory, .offset = c->offset, .bytes = c->bytes};
    if (f->signals || c->kind == PROXY_ATOMIC) {
        request.kind = TRANSPORT_KIND_ATOMIC;
        request.op = (transport_atomic_op)c->op;
        request.operand = c->operand;
        request.compare = c->compare;
    }
    if (f->signals) {
        request.memory = c->signal_memory;
        request.offset = c->signal;
        request.bytes = sizeof(uint64_t);
    } else if (c->kind == PROXY_ATOMIC) {
        request.dest = (void *)(uintptr_t)c->local;
    } else if (c->kind == PROXY_GET) {
        request.kind = TRANSPORT_KIND_GET;
        request.dest = (void *)(uintptr_t)c->local;
    } else {
        request.kind = TRANSPORT_KIND_PUT;
        request.source = (const void *)(uintptr_t)c->local;
    }
    return request;
}

/* Returns false if its transport has no free space. */
static bool post(proxy *self, flight *f)
{
    const transport_request request = request_of(f);
    const transport_ways *ways = &self->plan.ways[request.memory * self->size + request.pe];
    f->via = request.kind == TRANSPORT_KIND_ATOMIC ? ways->words : ways->data;
    f->batch = (transport_batch){0};
    if (!f->via) {
        flight_end(self, f, EXPAR_ERR_UNSUPPORTED);
        return true;
    }
    proxy_between_steps(self);
    expar_status status = EXPAR_OK;
    if (request.bytes > 0) status = f->via->ops->post(f->via, &request, &f->batch);
    if (status == EXPAR_ERR_BUSY) return false;
    f->state = FLIGHT_POSTED;
    if (status != EXPAR_OK) flight_end(self, f, status);
    return true;
}

/* The posted part has been delivered, or has failed. */
static void land(proxy *self, flight *f)
{
    expar_status status = (expar_status)atomic_load_explicit(&f->batch.status, memory_order_relaxed);
    self->peers[f->command.pe].patience = (transport_patience){0};
    if (status != EXPAR_OK || f->signals || f->command.kind != PROXY_PUT_SIGNAL) {
        flight_end(self, f, status);
        return;
    }
    f->signals = true;
    f->state = FLIGHT_WAITS;
}

static bool has_landed(const flight *f)
{
    return f->state == FLIGHT_POSTED && atomic_load_explicit(&f->batch.left, memory_order_acquire) == 0;
}

/* Returns true if no command to the PE that was delayed in this pass precedes it, and none from before a fence. */
static bool may_go(const proxy_peer *peer, const flight *f)
{
    return f->state == FLIGHT_WAITS && !peer->busy && !(peer->unfinished && peer->oldest_epoch < f->epoch);
}

static bool move_flight(proxy *self, flight *f, proxy_peer *peer)
{
    bool moved = false;
    for (;;) {
        if (has_landed(f))
            land(self, f);
        else if (!may_go(peer, f))
            break;
        else if (!post(self, f)) {
            peer->busy = true;
            break;
        }
        moved = true;
    }
    if (f->state != FLIGHT_ENDED && !peer->unfinished) {
        peer->unfinished = true;
        peer->oldest_epoch = f->epoch;
    }
    return moved;
}

/* Facts about a PE from an earlier pass do not count any more. */
static proxy_peer *peer_in_pass(proxy *self, int32_t pe)
{
    proxy_peer *peer = &self->peers[pe];
    if (peer->pass == self->pass) return peer;
    peer->pass = self->pass;
    peer->busy = peer->unfinished = false;
    return peer;
}

bool proxy_move_flights(proxy *self)
{
    bool moved = false;
    self->pass++;
    for (uint64_t n = self->done; n != self->taken; n++) {
        flight *f = flight_of(self, n);
        if (f->state != FLIGHT_ENDED) moved |= move_flight(self, f, peer_in_pass(self, f->command.pe));
    }
    uint64_t done = self->done;
    while (done != self->taken && flight_of(self, done)->state == FLIGHT_ENDED)
        done++;
    if (done == self->done) return moved;
    proxy_between_steps(self);
    self->done = done;
    proxy_store(&self->ring->done, done);
    return true;
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

static bool is_there(const proxy *self, uint64_t number)
{
    const proxy_slot *slot = proxy_slot_of(self->ring, self->port.num_slots, number);
    return proxy_load(&slot->sequence) == number + 1;
}

static void flight_begin(proxy *self, flight *f)
{
    expar_status status = check_command(self, &f->command);
    if (f->command.kind == PROXY_FENCE) {
        self->epoch++;
        f->state = FLIGHT_ENDED;
        return;
    }
    f->epoch = self->epoch;
    if (status == EXPAR_OK) status = self->peers[f->command.pe].lost;
    if (status != EXPAR_OK) flight_end(self, f, status);
}

bool proxy_take(proxy *self)
{
    uint64_t number = self->taken;
    if (number - self->done == PROXY_IN_FLIGHT || !is_there(self, number)) return false;
    flight *f = flight_of(self, number);
    proxy_between_steps(self);
    *f = (flight){.command = proxy_slot_of(self->ring, self->port.num_slots, number)->command};
    proxy_between_steps(self);
    proxy_store(&self->ring->consumed, number + 1);
    flight_begin(self, f);
    self->taken = number + 1;
    return true;
}

bool proxy_has_work(const proxy *self)
{
    if (self->taken - self->done < PROXY_IN_FLIGHT && is_there(self, self->taken)) return true;
    for (uint64_t n = self->done; n != self->taken; n++)
        if (has_landed(&self->flights[n & (PROXY_IN_FLIGHT - 1)])) return true;
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

void proxy_end_hopeless(proxy *self)
{
    int64_t now_ns = clock_ns();
    for (uint64_t n = self->done; n != self->taken; n++) {
        flight *f = flight_of(self, n);
        if (f->state == FLIGHT_ENDED) continue;
        proxy_peer *peer = &self->peers[f->command.pe];
        if (peer->lost == EXPAR_OK) peer->lost = judge(self, f->command.pe, now_ns);
        if (peer->lost != EXPAR_OK) flight_end(self, f, peer->lost);
    }
}

void proxy_end_all(proxy *self)
{
    for (uint64_t n = self->done; n != self->taken; n++)
        if (flight_of(self, n)->state != FLIGHT_ENDED) flight_end(self, flight_of(self, n), EXPAR_ERR_ABORTED);
}
