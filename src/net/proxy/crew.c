/* SPDX-License-Identifier: Apache-2.0 */
/* The proxies of a rank whose producers are kernels. Kernels wake nobody, so somebody must look at every ring. When all
 * rings have been idle for a while, one thread does that for all, by longer and longer naps, and the others sleep. */
#include "base/knobs.h"
#include "net/proxy/parts.h"

#include <stdlib.h>

struct proxy_crew {
    /* guards the list */
    pthread_mutex_t lock;
    proxy **members;
    int32_t num_members, most;
    /* The thread that watches; NULL: none does. A thread without work takes it by a compare-swap, and clears it when it
       has work. Sleepers check it (acquire), so that one of them takes over. */
    _Atomic(proxy *) watcher;
    /* How often watchers have looked at all rings; relaxed, for tests. */
    _Atomic uint64_t looks;
};

expar_status proxy_crew_open(int32_t most, proxy_crew **out)
{
    proxy_crew *crew = calloc(1, sizeof *crew);
    if (crew) crew->members = calloc((size_t)most, sizeof *crew->members);
    if (!crew || !crew->members) {
        free(crew);
        return error_set(EXPAR_ERR_MEMORY, "no memory for %d proxies", most);
    }
    crew->most = most;
    pthread_mutex_init(&crew->lock, NULL);
    *out = crew;
    return EXPAR_OK;
}

void proxy_crew_close(proxy_crew *crew)
{
    if (!crew) return;
    pthread_mutex_destroy(&crew->lock);
    free(crew->members);
    free(crew);
}

uint64_t proxy_crew_looks(const proxy_crew *crew)
{
    return atomic_load_explicit(&crew->looks, memory_order_relaxed);
}

void proxy_crew_add(proxy_crew *crew, proxy *member)
{
    if (!crew) return;
    pthread_mutex_lock(&crew->lock);
    if (crew->num_members < crew->most) crew->members[crew->num_members++] = member;
    pthread_mutex_unlock(&crew->lock);
}

void proxy_crew_remove(proxy_crew *crew, proxy *member)
{
    if (!crew) return;
    pthread_mutex_lock(&crew->lock);
    for (int32_t i = 0; i < crew->num_members; i++)
        if (crew->members[i] == member) crew->members[i] = crew->members[--crew->num_members];
    pthread_mutex_unlock(&crew->lock);
}

/* ---- the watch --------------------------------------------------------------------------------------------------- */

/* By words that any thread may read: `consumed` is the number of the next command as long as its thread sleeps. */
static bool is_called(const proxy *member)
{
    const uint64_t number = proxy_load(&member->ring->consumed), num_slots = member->port.num_slots;
    uint64_t words[PROXY_SLOT_WORDS];
    return proxy_slot_holds(proxy_slot_of(member->ring, num_slots, number), proxy_turn(num_slots, number), words);
}

static void look_at_all(proxy_crew *crew, const proxy *self)
{
    atomic_fetch_add_explicit(&crew->looks, 1, memory_order_relaxed);
    pthread_mutex_lock(&crew->lock);
    for (int32_t i = 0; i < crew->num_members; i++) {
        proxy *member = crew->members[i];
        atomic_fetch_add_explicit(&member->ring->beat, 1, memory_order_relaxed);
        if (member != self && is_called(member)) proxy_gate_open(&member->work);
    }
    pthread_mutex_unlock(&crew->lock);
}

void proxy_crew_leave_watch(proxy *self)
{
    proxy_crew *crew = self->plan.crew;
    self->rests = 0;
    if (!crew || atomic_load_explicit(&crew->watcher, memory_order_relaxed) != self) return;
    atomic_store_explicit(&crew->watcher, NULL, memory_order_release);
    pthread_mutex_lock(&crew->lock);
    for (int32_t i = 0; i < crew->num_members; i++)
        if (crew->members[i] != self) proxy_gate_open(&crew->members[i]->work);
    pthread_mutex_unlock(&crew->lock);
}

static bool crew_needs(const void *context)
{
    const proxy *self = context;
    return atomic_load_explicit(&self->stops, memory_order_acquire) ||
           atomic_load_explicit(&self->poison, memory_order_acquire) != EXPAR_OK || is_called(self) ||
           atomic_load_explicit(&self->announced, memory_order_acquire);
}

/* The watch has become free, too. */
static bool is_needed_or_free(const void *context)
{
    const proxy *self = context;
    return crew_needs(self) || !atomic_load_explicit(&self->plan.crew->watcher, memory_order_acquire);
}

static bool has_watch(proxy *self)
{
    proxy_crew *crew = self->plan.crew;
    proxy *none = NULL;
    if (!crew || atomic_load_explicit(&crew->watcher, memory_order_acquire) == self) return true;
    return atomic_compare_exchange_strong_explicit(&crew->watcher, &none, self, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

/* Naps grow from those of a ring in use to the longest. */
static int64_t rest_ns(const proxy *self)
{
    const int64_t most_ns = knob(KNOB_PROXY_REST_NAP_NS);
    int64_t nap_ns = self->plan.poll_ns << (self->rests < 10 ? self->rests : 10);
    return nap_ns < most_ns ? nap_ns : most_ns;
}

void proxy_crew_rest(proxy *self)
{
    if (!has_watch(self)) {
        proxy_gate_wait(&self->work, is_needed_or_free, self, knob(KNOB_PROXY_IDLE_NAP_NS));
    } else {
        proxy_gate_wait(&self->work, crew_needs, self, rest_ns(self));
        self->rests++;
        if (self->plan.crew) look_at_all(self->plan.crew, self);
    }
}
