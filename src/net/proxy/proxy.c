/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and end of a proxy. */
#include "base/knobs.h"
#include "net/proxy/parts.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static_assert(sizeof(proxy_slot) == 64, "a slot is a cache line");
static_assert(sizeof(proxy_ring) % sizeof(proxy_slot) == 0, "slots begin on a line");

static_assert(offsetof(proxy_ring, done) == 8 && offsetof(proxy_ring, ended) == 24, "kernels read them in pairs");

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static void start_counters(proxy *self)
{
    const uint64_t num_slots = self->plan.num_slots, first = self->plan.first;
    proxy_store(&self->ring->consumed, first);
    proxy_store(&self->ring->done, proxy_end(first, 0));
    proxy_store(&self->ring->awaited, first);
    for (uint64_t n = first; n != first + num_slots; n++)
        for (int32_t i = 0; i < PROXY_SLOT_WORDS; i++)
            proxy_store(&proxy_slot_of(self->ring, num_slots, n)->words[i], proxy_turn(num_slots, n - num_slots));
    for (int32_t pe = 0; pe < self->size; pe++) {
        self->peers[pe] =
            (proxy_peer){.first = PROXY_NONE, .last = PROXY_NONE, .end_number = first, .told_number = first};
        proxy_store(&proxy_done_to(self->ring, num_slots)[pe], proxy_end(first, 0));
    }
}

/* The ring has whole pages, so that a driver can pin them. */
static expar_status make_ring(proxy *self)
{
    const uint64_t num_slots = self->plan.num_slots, first = self->plan.first;
    const size_t port_bytes = sizeof(proxy_port) + (size_t)self->size * sizeof(uint64_t);
    self->image_at = sizeof(proxy_ring) + num_slots * sizeof(proxy_slot) + (size_t)self->size * sizeof(uint64_t);
    self->ring_bytes = align_up(self->image_at + port_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    void *pages = mmap(NULL, self->ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return error_errno("proxy: a ring of %llu slots", (unsigned long long)num_slots);
    self->ring = pages;
    self->port = proxy_port_start(self->ring, num_slots, first);
    self->taken = self->done = first;
    start_counters(self);
    return EXPAR_OK;
}

/* A slow PE may have as many commands waiting before it holds up the ring. */
static uint32_t flights_of(const proxy_plan *plan)
{
    uint32_t flights = 2 * plan->num_slots;
    while (flights < knob_count(KNOB_PROXY_FLIGHTS))
        flights *= 2;
    return flights;
}

static expar_status make_arrays(proxy *self)
{
    const size_t size = (size_t)self->size;
    self->num_flights = flights_of(&self->plan);
    self->flights = calloc(self->num_flights, sizeof *self->flights);
    self->peers = calloc(size, sizeof *self->peers);
    self->active = calloc(size, sizeof *self->active);
    self->failed_to = calloc(size, sizeof *self->failed_to);
    self->forgiven = calloc(size, sizeof *self->forgiven);
    if (self->flights && self->peers && self->active && self->failed_to && self->forgiven) return EXPAR_OK;
    return error_set(EXPAR_ERR_MEMORY, "no memory for a proxy to %d ranks", self->size);
}

/* The shares of all PEs together stay below the queues of providers, so no PE takes the places of another. */
static void share_out(proxy *self)
{
    const uint32_t all = knob_count(KNOB_PROXY_MESSAGES), most = knob_count(KNOB_PROXY_PEER_MESSAGES);
    const uint32_t share = all / (uint32_t)self->size;
    self->most_messages = share > most ? most : share > 0 ? share : 1;
    self->most_bytes = (uint64_t)knob(KNOB_PROXY_PEER_BYTES);
}

static expar_status start_thread(proxy *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&self->thread, NULL, proxy_consume, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->thread_runs = code == 0;
    return code == 0 ? EXPAR_OK : error_set(EXPAR_ERR_SYSTEM, "the proxy's thread cannot be started");
}

expar_status proxy_open(const proxy_plan *plan, proxy **out)
{
    proxy *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for a proxy");
    self->plan = *plan;
    self->rank = plan->site->boot->rank;
    self->size = plan->site->boot->size;
    proxy_gate_init(&self->work);
    proxy_gate_init(&self->moved);
    share_out(self);
    expar_status status = make_arrays(self);
    if (status == EXPAR_OK) status = make_ring(self);
    if (status == EXPAR_OK) status = start_thread(self);
    if (status == EXPAR_OK) proxy_crew_add(plan->crew, self);
    if (status != EXPAR_OK) {
        proxy_close(self);
        return status;
    }
    *out = self;
    return EXPAR_OK;
}

/* ---- end --------------------------------------------------------------------------------------------------------- */

void proxy_stop(proxy *self)
{
    if (!self->thread_runs) return;
    proxy_crew_remove(self->plan.crew, self);
    atomic_store_explicit(&self->stops, true, memory_order_release);
    proxy_gate_open(&self->work);
    pthread_join(self->thread, NULL);
    self->thread_runs = false;
}

void proxy_close(proxy *self)
{
    if (!self) return;
    proxy_stop(self);
    proxy_leave_gpu(self);
    proxy_gate_destroy(&self->moved);
    proxy_gate_destroy(&self->work);
    if (self->ring) munmap(self->ring, self->ring_bytes);
    free(self->forgiven);
    free(self->failed_to);
    free(self->active);
    free(self->peers);
    free(self->flights);
    free(self);
}
