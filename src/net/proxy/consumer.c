/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy's thread. While commands are in progress it drives the network like any waiting thread. Before it sleeps it
 * leaves that to the transport's own thread, whose `arrived` leads back here. */
#include "base/knobs.h"
#include "net/proxy/parts.h"

#include <sched.h>

static bool in_flight(const proxy *self)
{
    return self->taken != self->done;
}

static void attend(proxy *self, bool begins)
{
    if (self->attends == begins) return;
    self->attends = begins;
    transport_attend_all(self->plan.driven, begins ? 1 : -1);
    /* The thread is about to sleep on something else. */
    if (!begins) transport_attend_all(self->plan.driven, 0);
}

static bool drive(proxy *self)
{
    if (!in_flight(self) || self->plan.driven->count == 0) return false;
    attend(self, true);
    bool moved = transport_progress_all(self->plan.driven);
    /* Other threads may wait for what has arrived. */
    self->plan.site->arrived(self->plan.site->context);
    return moved;
}

static bool take_all(proxy *self)
{
    bool moved = false;
    while (proxy_take(self))
        moved = true;
    return moved;
}

static bool is_wanted(const void *context)
{
    const proxy *self = context;
    return atomic_load_explicit(&self->stops, memory_order_acquire) || proxy_has_work(self);
}

/* The nap is short while commands are in progress, because completions that other threads see do not wake this one. */
static void consumer_nap(proxy *self, uint32_t naps)
{
    const int64_t most_ns = knob(KNOB_PROXY_MOST_NAP_NS);
    int64_t limit_ns = knob(KNOB_PROXY_NAP_NS) << (naps < 5 ? naps : 5);
    if (limit_ns > most_ns) limit_ns = most_ns;
    if (!in_flight(self)) limit_ns = self->plan.nap_ns;
    attend(self, false);
    proxy_gate_wait(&self->work, is_wanted, self, limit_ns);
}

/* A network answers during some of the turns that spin and yield. */
static void idle(proxy *self)
{
    uint32_t turn = self->idle_turns++;
    const uint32_t spins = knob_count(KNOB_PROXY_SPINS), awake = spins + knob_count(KNOB_PROXY_YIELDS);
    if (turn < spins) return;
    if (turn < awake) {
        sched_yield();
        return;
    }
    proxy_end_hopeless(self);
    consumer_nap(self, turn - awake);
}

static bool work(proxy *self)
{
    bool moved = take_all(self);
    moved |= proxy_move_flights(self);
    /* Wakes threads that wait for a slot, or for the end. */
    if (moved) proxy_gate_open(&self->moved);
    return moved || drive(self);
}

void *proxy_consume(void *argument)
{
    proxy *self = argument;
    log_set_rank(self->rank);
    while (!atomic_load_explicit(&self->stops, memory_order_acquire)) {
        if (work(self))
            self->idle_turns = 0;
        else
            idle(self);
    }
    attend(self, false);
    proxy_end_all(self);
    return NULL;
}
