/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and end of a proxy. */
#include "net/proxy/parts.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static_assert(sizeof(proxy_slot) == 64, "a slot is a cache line");
static_assert(sizeof(proxy_ring) % sizeof(proxy_slot) == 0, "slots begin on a line");

/* The ring has whole pages, so that a driver can pin them. */
static expar_status make_ring(proxy *self)
{
    uint64_t num_slots = self->plan.num_slots, first = self->plan.first;
    size_t bytes = sizeof(proxy_ring) + num_slots * sizeof(proxy_slot);
    self->ring_bytes = align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    void *pages = mmap(NULL, self->ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return error_errno("proxy: a ring of %llu slots", (unsigned long long)num_slots);
    self->ring = pages;
    self->port = (proxy_port){.head = first, .freed = first, .ring = self->ring, .num_slots = num_slots};
    self->taken = self->done = first;
    proxy_store(&self->ring->consumed, first);
    proxy_store(&self->ring->done, first);
    for (uint64_t n = first; n != first + num_slots; n++)
        proxy_store(&proxy_slot_of(self->ring, num_slots, n)->sequence, n + 1 - num_slots);
    return EXPAR_OK;
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
    self->peers = calloc((size_t)self->size, sizeof *self->peers);
    expar_status status =
        self->peers ? make_ring(self) : error_set(EXPAR_ERR_MEMORY, "no memory for a proxy to %d ranks", self->size);
    if (status == EXPAR_OK) status = start_thread(self);
    if (status != EXPAR_OK) {
        proxy_close(self);
        return status;
    }
    *out = self;
    return EXPAR_OK;
}

void proxy_stop(proxy *self)
{
    if (!self->thread_runs) return;
    atomic_store_explicit(&self->stops, true, memory_order_release);
    proxy_gate_open(&self->work);
    pthread_join(self->thread, NULL);
    self->thread_runs = false;
}

void proxy_close(proxy *self)
{
    if (!self) return;
    proxy_stop(self);
    proxy_gate_destroy(&self->moved);
    proxy_gate_destroy(&self->work);
    if (self->ring) munmap(self->ring, self->ring_bytes);
    free(self->peers);
    free(self);
}
