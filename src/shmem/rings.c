/* SPDX-License-Identifier: Apache-2.0 */
/* Command rings for kernels (rings.h). */
#include "shmem/rings.h"
#include "base/knobs.h"
#include "shmem/kinds.h"
#include "shmem/parts.h"

#include <stdlib.h>

/* Commands of a warp at once are 32. */
#define RING_SLOTS 1024u
/* without EXPAR_PROXY_NAP */
#define RING_NAP_US 50
/* without EXPAR_CUDA_ORPHAN_TIMEOUT */
#define RING_ORPHAN_MS ((int64_t)3600 * 1000)
#define NS_PER_US      1000
#define NS_PER_MS      1000000

expar_status sym_rings_read_nap(int64_t *nap_ns)
{
    int64_t nap_us = RING_NAP_US;
    const expar_status status = env_int("EXPAR_PROXY_NAP", 0, 1000000, &nap_us);
    *nap_ns = nap_us * NS_PER_US;
    return status;
}

static expar_status read_plan(sym *self, int32_t *count, proxy_plan *plan)
{
    int64_t rings = SYM_RINGS, nap_ns = 0, orphan_ms = RING_ORPHAN_MS;
    expar_status status = env_int("EXPAR_PROXY_RINGS", 1, SYM_MOST_RINGS, &rings);
    if (status == EXPAR_OK) status = sym_rings_read_nap(&nap_ns);
    if (status == EXPAR_OK) status = env_seconds_ms("EXPAR_CUDA_ORPHAN_TIMEOUT", &orphan_ms);
    *count = (int32_t)rings;
    *plan = sym_proxy_plan(self);
    plan->num_slots = self->ring_slots ? self->ring_slots : RING_SLOTS;
    plan->first = self->ring_first;
    plan->kernels = true;
    plan->poll_ns = nap_ns;
    plan->spin_ns = knob(KNOB_PROXY_SPIN_NS);
    plan->yields = sym_outnumbers(self, 1 + *count);
    plan->orphan_ns = orphan_ms * NS_PER_MS;
    return status;
}

const sym_rings *sym_rings_of(const sym *self, sym_rings_user user)
{
    return atomic_load_explicit(&self->rings[user], memory_order_acquire);
}

void sym_rings_end(sym *self, sym_rings_user user)
{
    const sym_rings *rings = sym_rings_of(self, user);
    for (int32_t i = 0; rings && i < rings->count; i++)
        proxy_stop(rings->proxies[i]);
}

void sym_rings_stop(sym *self)
{
    for (int user = 0; user < SYM_RINGS_USERS; user++)
        sym_rings_end(self, (sym_rings_user)user);
}

static void rings_free(sym_rings *rings)
{
    for (int32_t i = 0; i < rings->count; i++)
        proxy_stop(rings->proxies[i]);
    for (int32_t i = 0; i < rings->count; i++)
        proxy_close(rings->proxies[i]);
    proxy_crew_close(rings->crew);
    if (rings->device) cuda_device_close(rings->device);
    free(rings);
}

void sym_rings_close(sym *self)
{
    for (int user = 0; user < SYM_RINGS_USERS; user++) {
        sym_rings *rings = atomic_exchange_explicit(&self->rings[user], NULL, memory_order_acquire);
        if (rings) rings_free(rings);
    }
}

/* The rings that a caller asks for. */
typedef struct rings_request {
    sym_rings_user user;
    /* -1: the CPU runs the kernels */
    int32_t index;
    void (*failed)(void *context, const proxy_command *command, expar_status status);
} rings_request;

static expar_status ring_serve(const sym_rings *rings, proxy *ring, cu_address *port)
{
    if (rings->device) return proxy_serve_gpu(ring, rings->device, port);
    *port = (cu_address)(uintptr_t)proxy_serve_cpu(ring);
    return EXPAR_OK;
}

/* proxy_plan.find_local */
static bool rings_find_local(void *context, const void *at, uint64_t bytes, bool *on_device)
{
    return kinds_knows(context, at, bytes, on_device);
}

/* More rings than ranks that are not mapped would have nothing to do. */
static int32_t most_rings(const sym *self, const rings_request *request)
{
    int32_t unmapped = 0;
    if (request->user == SYM_RINGS_LIBRARY) return SYM_MOST_RINGS;
    for (int32_t pe = 0; pe < self->size; pe++)
        unmapped += !self->peers[pe];
    return unmapped > 0 ? unmapped : 1;
}

static expar_status rings_make(sym *self, const rings_request *request, sym_rings **out)
{
    int32_t count = 0;
    proxy_plan plan;
    sym_rings *made = calloc(1, sizeof *made);
    if (!made) return error_set(EXPAR_ERR_MEMORY, "no memory for rings");
    const int32_t most = most_rings(self, request);
    expar_status status = read_plan(self, &count, &plan);
    if (count > most) count = most;
    if (status == EXPAR_OK && request->index >= 0) status = cuda_device_open(request->index, &made->device);
    if (status == EXPAR_OK) status = proxy_crew_open(count, &made->crew);
    plan.crew = made->crew;
    plan.failed = request->failed;
    if (request->user == SYM_RINGS_HANDLES_GPU) {
        plan.find_local = rings_find_local;
        plan.on_device = atomic_load_explicit(&self->copies, memory_order_acquire);
    }
    for (int32_t i = 0; i < count && status == EXPAR_OK; i++) {
        status = proxy_open(&plan, &made->proxies[i]);
        if (status != EXPAR_OK) break;
        made->count = i + 1;
        status = ring_serve(made, made->proxies[i], &made->ports[i]);
    }
    if (status == EXPAR_OK)
        *out = made;
    else
        rings_free(made);
    return status;
}

static expar_status get_rings(sym *self, const rings_request *request, const sym_rings **out)
{
    _Atomic(sym_rings *) *const place = &self->rings[request->user];
    sym_rings *rings = atomic_load_explicit(place, memory_order_acquire), *made = NULL;
    if (!rings) {
        expar_status status = rings_make(self, request, &made);
        if (status != EXPAR_OK) return status;
        if (atomic_compare_exchange_strong_explicit(place, &rings, made, memory_order_acq_rel, memory_order_acquire))
            rings = made;
        else
            rings_free(made);
    }
    if (rings->device && rings->device->index != request->index)
        return error_set(EXPAR_ERR_DEVICE, "the rank's rings serve GPU %d, not GPU %d", rings->device->index,
                         request->index);
    *out = rings;
    return EXPAR_OK;
}

expar_status sym_rings_get(sym *self, int32_t index, const sym_rings **out)
{
    return get_rings(self, &(rings_request){.user = SYM_RINGS_LIBRARY, .index = index}, out);
}

expar_status sym_rings_get_for_handles(sym *self, int32_t index,
                                       void (*failed)(void *context, const proxy_command *command, expar_status status),
                                       const sym_rings **out)
{
    const rings_request request = {
        .user = index < 0 ? SYM_RINGS_HANDLES_CPU : SYM_RINGS_HANDLES_GPU, .index = index, .failed = failed};
    return get_rings(self, &request, out);
}

void sym_rings_wake(sym *self)
{
    for (int user = 0; user < SYM_RINGS_USERS; user++) {
        const sym_rings *rings = sym_rings_of(self, (sym_rings_user)user);
        for (int32_t i = 0; rings && i < rings->count; i++)
            proxy_wake(rings->proxies[i]);
    }
}

void sym_rings_expect(const sym_rings *rings)
{
    for (int32_t i = 0; i < rings->count; i++)
        proxy_expect(rings->proxies[i]);
}

void sym_ring_rouse(const sym_rings *rings, int32_t ring)
{
    proxy_rouse(rings->proxies[ring]);
}

void sym_rings_release(const sym_rings *rings)
{
    for (int32_t i = 0; i < rings->count; i++)
        proxy_release(rings->proxies[i]);
}

expar_status sym_rings_quiet(const sym_rings *rings, const char *what)
{
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rings->count && status == EXPAR_OK; i++)
        status = proxy_quiet_kernels(rings->proxies[i], what);
    return status;
}

uint64_t sym_rings_failures(const sym_rings *rings, uint64_t *last)
{
    uint64_t count = 0;
    for (int32_t i = 0; i < rings->count; i++) {
        const uint64_t failure = proxy_last_failure(rings->proxies[i]);
        if (failure) *last = failure;
        count += proxy_failure_count(failure);
    }
    return count;
}

expar_status sym_rings_failed_to(const sym_rings *rings, int32_t pe)
{
    return proxy_failed_to(rings->proxies[sym_ring_to(rings, pe)], pe);
}

void sym_rings_forgive(const sym_rings *rings, int32_t pe)
{
    proxy_forgive(rings->proxies[sym_ring_to(rings, pe)], pe);
}

bool sym_rings_have_ended_to(const sym_rings *rings, int32_t pe, uint64_t number)
{
    return proxy_has_ended_to(rings->proxies[sym_ring_to(rings, pe)], pe, number);
}

proxy_sent sym_rings_sent(const sym_rings *rings)
{
    proxy_sent all = {0};
    for (int32_t i = 0; i < rings->count; i++) {
        const proxy_sent one = proxy_sent_of(rings->proxies[i]);
        all.messages += one.messages;
        all.flags += one.flags;
        all.bytes += one.bytes;
    }
    return all;
}

expar_status sym_rings_ending(const sym_rings *rings)
{
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rings->count && status == EXPAR_OK; i++)
        status = proxy_ending(rings->proxies[i]);
    return status;
}

void sym_rings_poison(const sym_rings *rings, expar_status status)
{
    for (int32_t i = 0; i < rings->count; i++)
        proxy_poison(rings->proxies[i], status);
}
