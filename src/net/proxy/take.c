/* SPDX-License-Identifier: Apache-2.0 */
/* Takes commands from the ring, and checks them: a producer may be a kernel that nobody has checked. Only the proxy's
 * thread does this. */
#include "net/proxy/parts.h"

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Beyond the grown part there is no memory, and before the heap proper lies the control page, which keeps the ranks
   together. */
static bool is_within(const proxy *self, uint8_t memory, uint64_t offset, uint64_t bytes)
{
    if (memory >= TRANSPORT_MEMORIES) return false;
    const proxy_bounds *bounds = &self->plan.bounds[memory];
    if (!bounds->end)
        return self->plan.serves && self->plan.serves(self->plan.context, (transport_memory)memory, offset, bytes);
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
    case PROXY_REST:
        return EXPAR_OK;
    case PROXY_PUT:
    case PROXY_GET:
        fits = is_within(self, c->memory, c->offset, c->bytes);
        break;
    case PROXY_P:
        fits = c->bytes <= sizeof c->operand && is_within(self, c->memory, c->offset, c->bytes);
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

bool proxy_find_local(const proxy *self, const proxy_command *c, uint64_t bytes, bool *on_device)
{
    const void *at = (const void *)(uintptr_t)c->local;
    return self->plan.find_local && self->plan.find_local(self->plan.context, at, bytes, on_device);
}

/* After success the command is like one whose producer knew its memory. */
static expar_status flight_find_local(const proxy *self, flight *f)
{
    proxy_command *c = &f->command;
    const bool has_local = c->kind == PROXY_PUT || c->kind == PROXY_GET || c->kind == PROXY_PUT_SIGNAL;
    if (!has_local || !(c->memory & PROXY_FIND_LOCAL)) return EXPAR_OK;
    if (c->bytes > 0 && !proxy_find_local(self, c, c->bytes, &f->on_device)) return EXPAR_ERR_ADDRESS;
    c->memory &= (uint8_t)~PROXY_FIND_LOCAL;
    return EXPAR_OK;
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

static bool load_slot(const proxy *self, uint64_t number, uint64_t words[PROXY_SLOT_WORDS])
{
    const uint64_t num_slots = self->port.num_slots;
    return proxy_slot_holds(proxy_slot_of(self->ring, num_slots, number), proxy_turn(num_slots, number), words);
}

static bool is_there(const proxy *self, uint64_t number)
{
    uint64_t words[PROXY_SLOT_WORDS];
    return load_slot(self, number, words);
}

static expar_status standing_of(proxy *self, const proxy_command *c)
{
    const expar_status poison = (expar_status)atomic_load_explicit(&self->poison, memory_order_acquire);
    return poison != EXPAR_OK ? poison : proxy_loss_of(self, c->pe);
}

static void command_begin(proxy *self, flight *f)
{
    expar_status status = flight_find_local(self, f);
    if (status == EXPAR_OK) status = check_command(self, &f->command);
    if (f->command.kind == PROXY_FENCE || f->command.kind == PROXY_REST) {
        if (f->command.kind == PROXY_FENCE)
            self->epoch++;
        else
            proxy_release(self);
        f->state = FLIGHT_ENDED;
        return;
    }
    f->epoch = self->epoch;
    if (status == EXPAR_OK) status = standing_of(self, &f->command);
    if (status != EXPAR_OK)
        proxy_reject(self, f, status);
    else
        proxy_begin_flight(self, f);
}

static bool has_flight(const proxy *self)
{
    return self->taken - self->done < self->num_flights;
}

bool proxy_take(proxy *self)
{
    const uint64_t first = self->taken;
    uint64_t words[PROXY_SLOT_WORDS];
    while (self->taken - first < PROXY_BATCH && has_flight(self) && load_slot(self, self->taken, words)) {
        const uint64_t number = self->taken;
        proxy_between_steps(self);
        flight *f = proxy_flight(self, number);
        *f = (flight){.command = proxy_command_of(words), .number = number, .next = PROXY_NONE};
        command_begin(self, f);
        self->taken = number + 1;
    }
    if (self->taken == first) return false;
    self->hole_ns = 0;
    proxy_between_steps(self);
    proxy_store(&self->ring->consumed, self->taken);
    self->changed = true;
    return true;
}

bool proxy_can_take(const proxy *self)
{
    return has_flight(self) && is_there(self, self->taken);
}

/* ---- numbers that were claimed and never published --------------------------------------------------------------- */

/* The head of a GPU's port cannot be read here. A later command shows that the number was claimed, and so does a
   producer that waits for a later number. */
static bool was_claimed(const proxy *self)
{
    if (!proxy_is_at(self->taken, proxy_load(&self->ring->awaited))) return true;
    if (!self->plan.kernels && !proxy_is_at(self->taken, proxy_load(&self->port.head))) return true;
    for (uint64_t n = 1; n < self->port.num_slots; n++)
        if (is_there(self, self->taken + n)) return true;
    return false;
}

bool proxy_finds_hole(proxy *self, int64_t now_ns)
{
    if (!has_flight(self) || is_there(self, self->taken) || !was_claimed(self)) {
        self->hole_ns = 0;
        return false;
    }
    if (self->hole_ns == 0) self->hole_ns = now_ns;
    return self->plan.orphan_ns > 0 && now_ns - self->hole_ns > self->plan.orphan_ns;
}
