/* SPDX-License-Identifier: Apache-2.0 */
/* Command rings for kernels (rings.h). */
#include "shmem/rings.h"
#include "base/knobs.h"
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

static expar_status read_plan(sym *self, int32_t *count, proxy_plan *plan)
{
    int64_t rings = SYM_RINGS, nap_us = RING_NAP_US, orphan_ms = RING_ORPHAN_MS;
    expar_status status = env_int("EXPAR_PROXY_RINGS", 1, SYM_MOST_RINGS, &rings);
    if (status == EXPAR_OK) status = env_int("EXPAR_PROXY_NAP", 0, 1000000, &nap_us);
    if (status == EXPAR_OK) status = env_seconds_ms("EXPAR_CUDA_ORPHAN_TIMEOUT", &orphan_ms);
    *count = (int32_t)rings;
    *plan = sym_proxy_plan(self);
    plan->num_slots = RING_SLOTS;
    plan->kernels = true;
    plan->poll_ns = nap_us * NS_PER_US;
    plan->yields = sym_outnumbers(self, 1 + *count);
    plan->orphan_ns = orphan_ms * NS_PER_MS;
    return status;
}

void sym_rings_stop(sym *self)
{
    sym_rings *rings = atomic_load_explicit(&self->rings, memory_order_acquire);
    for (int32_t i = 0; rings && i < rings->count; i++)
        proxy_stop(rings->proxies[i]);
}

static void rings_free(sym_rings *rings)
{
    for (int32_t i = 0; i < rings->count; i++)
        proxy_stop(rings->proxies[i]);
    for (int32_t i = 0; i < rings->count; i++)
        proxy_close(rings->proxies[i]);
    proxy_crew_close(rings->crew);
    cuda_device_close(rings->device);
    free(rings);
}

void sym_rings_close(sym *self)
{
    sym_rings *rings = atomic_exchange_explicit(&self->rings, NULL, memory_order_acquire);
    if (rings) rings_free(rings);
}

static expar_status rings_make(sym *self, int32_t index, sym_rings **out)
{
    int32_t count = 0;
    proxy_plan plan;
    sym_rings *made = calloc(1, sizeof *made);
    if (!made) return error_set(EXPAR_ERR_MEMORY, "no memory for rings");
    expar_status status = read_plan(self, &count, &plan);
    if (status == EXPAR_OK) status = cuda_device_open(index, &made->device);
    if (status == EXPAR_OK) status = proxy_crew_open(count, &made->crew);
    plan.crew = made->crew;
    for (int32_t i = 0; i < count && status == EXPAR_OK; i++) {
        status = proxy_open(&plan, &made->proxies[i]);
        if (status != EXPAR_OK) break;
        made->count = i + 1;
        status = proxy_serve_gpu(made->proxies[i], made->device, &made->ports[i]);
    }
    if (status == EXPAR_OK)
        *out = made;
    else
        rings_free(made);
    return status;
}

expar_status sym_rings_get(sym *self, int32_t index, const sym_rings **out)
{
    sym_rings *rings = atomic_load_explicit(&self->rings, memory_order_acquire), *made = NULL;
    if (!rings) {
        expar_status status = rings_make(self, index, &made);
        if (status != EXPAR_OK) return status;
        if (atomic_compare_exchange_strong_explicit(&self->rings, &rings, made, memory_order_acq_rel,
                                                    memory_order_acquire))
            rings = made;
        else
            rings_free(made);
    }
    if (rings->device->index != index)
        return error_set(EXPAR_ERR_DEVICE, "the rank's rings serve GPU %d, not GPU %d", rings->device->index, index);
    *out = rings;
    return EXPAR_OK;
}

void sym_rings_wake(sym *self)
{
    sym_rings *rings = atomic_load_explicit(&self->rings, memory_order_acquire);
    for (int32_t i = 0; rings && i < rings->count; i++)
        proxy_wake(rings->proxies[i]);
}

void sym_rings_expect(const sym_rings *rings)
{
    for (int32_t i = 0; i < rings->count; i++)
        proxy_expect(rings->proxies[i]);
}

expar_status sym_rings_quiet(const sym_rings *rings, const char *what)
{
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rings->count && status == EXPAR_OK; i++)
        status = proxy_quiet_gpu(rings->proxies[i], what);
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

void sym_rings_poison(const sym_rings *rings, expar_status status)
{
    for (int32_t i = 0; i < rings->count; i++)
        proxy_poison(rings->proxies[i], status);
}
