/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of this process as producers. They wait for a slot, and for quiet, with a deadline, and wake the proxy's
 * thread. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "mem/fence.h"
#include "net/proxy/parts.h"

#include <sched.h>

#define NS_PER_MS INT64_C(1000000)

/* A wait of a producer. */
typedef struct wait {
    proxy *self;
    const char *what;
    bool for_space; /* for a free slot in the ring; else until all commands before `head` are done */
    uint64_t head;
    uint64_t seen;    /* value of `done` when the clock was last reset */
    uint32_t excuses; /* value of `excuses` then */
    int64_t since_ns, interrupt_ns;
    uint32_t turn;
} wait;

static bool is_over(const void *context)
{
    const wait *w = context;
    const proxy_port *port = &w->self->port;
    if (proxy_load(&port->ring->ended)) return true;
    if (!w->for_space) return proxy_has_done(port, w->head);
    return proxy_load(&port->head) - proxy_load(&port->ring->consumed) < port->num_slots;
}

/* Each command ends within one time-out after the last sign of its PE. A longer wait means that the thread is stuck. */
static expar_status wait_turn(wait *w)
{
    proxy *self = w->self;
    uint32_t number = w->turn++;
    const uint32_t spins = knob_count(KNOB_PROXY_WAIT_SPINS);
    if (number < spins) return EXPAR_OK;
    if (number < spins + knob_count(KNOB_PROXY_WAIT_YIELDS)) {
        sched_yield();
        return EXPAR_OK;
    }
    int64_t now_ns = clock_ns(), timeout_ms = knob(KNOB_PROXY_TIMEOUTS) * self->plan.site->timeout_ms;
    uint64_t done = proxy_load(&self->ring->done);
    uint32_t excuses = atomic_load_explicit(&self->excuses, memory_order_relaxed);
    const bool in_post = atomic_load_explicit(&self->in_post, memory_order_relaxed);
    if (w->since_ns == 0 || done != w->seen || excuses != w->excuses || in_post) w->since_ns = now_ns;
    w->seen = done;
    w->excuses = excuses;
    if (now_ns - w->since_ns > timeout_ms * NS_PER_MS)
        return error_set(EXPAR_ERR_PEER, "%s: the proxy made no progress for %lld ms", w->what, (long long)timeout_ms);
    proxy_gate_wait(&self->moved, is_over, w, knob(KNOB_PROXY_WAIT_SLEEP_NS));
    return is_over(w) ? EXPAR_OK : interrupt_look(&w->interrupt_ns, w->what);
}

/* The proxy has stopped, or was poisoned. */
static expar_status tell_end(const proxy *self, const char *what)
{
    const uint64_t ended = proxy_load(&self->ring->ended);
    if (!ended) return EXPAR_OK;
    expar_status status = (expar_status)proxy_failure_status(ended);
    return error_set(status, "%s: the proxy delivers nothing any more: %s", what, expar_status_text(status));
}

expar_status proxy_issue(proxy *self, const char *what, const proxy_command *command)
{
    wait w = {.self = self, .what = what, .for_space = true};
    expar_status status = EXPAR_OK;
    while ((status = tell_end(self, what)) == EXPAR_OK && !proxy_try_issue(&self->port, command) &&
           (status = wait_turn(&w)) == EXPAR_OK) {
    }
    if (status == EXPAR_OK) proxy_gate_open(&self->work);
    return status;
}

/* A failure is reported to one caller. */
static expar_status tell_failure(proxy *self, const char *what)
{
    uint64_t failure = proxy_load(&self->ring->failure);
    uint32_t count = proxy_failure_count(failure);
    if (atomic_exchange_explicit(&self->told, count, memory_order_relaxed) == count) return EXPAR_OK;
    expar_status status = (expar_status)proxy_failure_status(failure);
    return error_set(status, "%s: an operation to rank %d failed: %s", what, proxy_failure_pe(failure),
                     expar_status_text(status));
}

expar_status proxy_await_end(proxy *self, const char *what, uint64_t number)
{
    wait w = {.self = self, .what = what, .head = number};
    expar_status status = EXPAR_OK;
    while (!is_over(&w) && (status = wait_turn(&w)) == EXPAR_OK) {
    }
    return status;
}

expar_status proxy_quiet(proxy *self, const char *what)
{
    const uint64_t head = proxy_head(&self->port);
    expar_status status = proxy_await_end(self, what, head);
    if (status == EXPAR_OK && !proxy_has_done(&self->port, head)) return tell_end(self, what);
    return status == EXPAR_OK ? tell_failure(self, what) : status;
}

uint64_t proxy_last_failure(const proxy *self)
{
    return proxy_load(&self->ring->failure);
}

expar_status proxy_failed_to(const proxy *self, int32_t pe)
{
    return (expar_status)atomic_load_explicit(&self->failed_to[pe], memory_order_acquire);
}

proxy_sent proxy_sent_of(const proxy *self)
{
    return (proxy_sent){.messages = atomic_load_explicit(&self->sent_messages, memory_order_relaxed),
                        .flags = atomic_load_explicit(&self->sent_flags, memory_order_relaxed),
                        .bytes = atomic_load_explicit(&self->sent_bytes, memory_order_relaxed)};
}

/* A failure that the thread records meanwhile may be kept. It then belongs to a command of before. */
void proxy_forgive(proxy *self, int32_t pe)
{
    atomic_store_explicit(&self->forgiven[pe], true, memory_order_release);
    atomic_store_explicit(&self->failed_to[pe], EXPAR_OK, memory_order_release);
}

bool proxy_has_ended_to(const proxy *self, int32_t pe, uint64_t number)
{
    return proxy_end_is_at(proxy_load(&proxy_done_to(self->ring, self->plan.num_slots)[pe]), number);
}

expar_status proxy_ending(const proxy *self)
{
    const uint64_t ended = proxy_load(&self->ring->ended);
    return ended ? (expar_status)proxy_failure_status(ended) : EXPAR_OK;
}

/* Transports call this whenever they look at the network. A thread without commands would be woken for nothing. */
void proxy_wake(proxy *self)
{
    /* Partner: the fence in proxy_gate_wait. */
    fence_full();
    if (atomic_load_explicit(&self->awaits_news, memory_order_relaxed)) proxy_gate_open(&self->work);
}

void proxy_rouse(proxy *self)
{
    atomic_store_explicit(&self->announced, true, memory_order_release);
    proxy_gate_open(&self->work);
}

void proxy_expect(proxy *self)
{
    atomic_fetch_add_explicit(&self->users, 1, memory_order_relaxed);
    proxy_rouse(self);
}

/* A kernel that was replayed says so without an announcement. */
void proxy_release(proxy *self)
{
    if (atomic_fetch_sub_explicit(&self->users, 1, memory_order_relaxed) <= 0)
        atomic_fetch_add_explicit(&self->users, 1, memory_order_relaxed);
}

void proxy_poison(proxy *self, expar_status status)
{
    int32_t sound = EXPAR_OK;
    if (atomic_compare_exchange_strong_explicit(&self->poison, &sound, (int32_t)status, memory_order_release,
                                                memory_order_relaxed))
        LOG(LOG_INFO, "proxy: its ring ends: %s", expar_status_text(status));
    proxy_gate_open(&self->work);
}

proxy_port *proxy_port_of(proxy *self)
{
    return &self->port;
}
