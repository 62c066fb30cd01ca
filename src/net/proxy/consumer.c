/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy's thread. While commands are on their way it makes the network's progress like any waiter; before it sleeps
 * it leaves that to the transport's own thread, whose `arrived` leads back here. */
#include "net/proxy/parts.h"

#include <sched.h>

/* Turns without work that ask again at once, and then turns that yield: a network answers within some of them. */
#define SPINS  32u
#define YIELDS 8u
/* Sleeps with commands on their way: completions that other threads see wake nobody. */
#define FIRST_NAP_NS INT64_C(50000)
#define LAST_NAP_NS  INT64_C(1000000)

static bool in_flight(const proxy *self)
{
    return self->taken != self->done;
}

static void attend(proxy *self, bool begins)
{
    if (self->attends == begins) return;
    transport *network = *self->plan.driven;
    self->attends = begins;
    network->ops->attend(network, begins ? 1 : -1);
    /* To sleep on something else. */
    if (!begins) network->ops->attend(network, 0);
}

static bool drive(proxy *self)
{
    transport *network = in_flight(self) ? *self->plan.driven : NULL;
    if (!network) return false;
    attend(self, true);
    bool moved = network->ops->progress(network);
    /* What came on the way may be for others. */
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

static void consumer_nap(proxy *self, uint32_t naps)
{
    int64_t limit_ns = FIRST_NAP_NS << (naps < 5 ? naps : 5);
    if (limit_ns > LAST_NAP_NS) limit_ns = LAST_NAP_NS;
    if (!in_flight(self)) limit_ns = self->plan.nap_ns;
    attend(self, false);
    proxy_gate_wait(&self->work, is_wanted, self, limit_ns);
}

static void idle(proxy *self)
{
    uint32_t turn = self->idle_turns++;
    if (turn < SPINS) return;
    if (turn < SPINS + YIELDS) {
        sched_yield();
        return;
    }
    proxy_end_hopeless(self);
    consumer_nap(self, turn - SPINS - YIELDS);
}

static bool work(proxy *self)
{
    bool moved = take_all(self);
    moved |= proxy_move_flights(self);
    /* Whoever waits for a slot, or for the end. */
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
