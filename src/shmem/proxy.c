/* SPDX-License-Identifier: Apache-2.0 */
/* The rank's proxies, if EXPAR_PROXY asks for them: rings of its non-blocking operations, and a thread for each
 * ring. */
#include "base/knobs.h"
#include "shmem/kinds.h"
#include "shmem/parts.h"

#define NUM_SLOTS 256u

static void ring_doorbell_of(void *context, int32_t pe)
{
    sym_ring(context, pe);
}

/* The device heap has holes. */
static bool serves_device(void *context, transport_memory memory, uint64_t offset, uint64_t bytes)
{
    return memory == TRANSPORT_DEVICE && kinds_serves_device(context, offset, bytes);
}

proxy_plan sym_proxy_plan(sym *self)
{
    return (proxy_plan){
        .site = &self->site,
        .ways = self->ways,
        .driven = &self->driven,
        .reaped = &self->reaped,
        .bounds[TRANSPORT_HOST] = {.begin = SYM_CONTROL_BYTES, .end = &self->grown_bytes},
        .bounds[TRANSPORT_PINNED] = {.begin = SYM_PINNED_BEGIN, .end = &self->pinned_bytes},
        .serves = serves_device,
        .num_slots = NUM_SLOTS,
        .nap_ns = knob(KNOB_PROXY_IDLE_NAP_NS),
        .delivered = ring_doorbell_of,
        .context = self,
    };
}

expar_status sym_proxy_open(sym *self)
{
    const proxy_plan plan = sym_proxy_plan(self);
    int64_t wanted = 0, rings = SYM_RINGS;
    expar_status status = env_int("EXPAR_PROXY", 0, 1, &wanted);
    if (status == EXPAR_OK) status = env_int("EXPAR_PROXY_RINGS", 1, SYM_MOST_RINGS, &rings);
    for (int32_t i = 0; i < (wanted ? rings : 0) && status == EXPAR_OK; i++) {
        status = proxy_open(&plan, &self->proxies[i]);
        if (status == EXPAR_OK) atomic_store_explicit(&self->num_rings, i + 1, memory_order_release);
    }
    return status;
}

static int32_t rings_of(const sym *self)
{
    return atomic_load_explicit(&self->num_rings, memory_order_acquire);
}

void sym_proxy_stop(sym *self)
{
    for (int32_t i = 0; i < rings_of(self); i++)
        proxy_stop(self->proxies[i]);
    sym_rings_stop(self);
}

void sym_proxy_close(sym *self)
{
    const int32_t rings = rings_of(self);
    atomic_store_explicit(&self->num_rings, 0, memory_order_release);
    for (int32_t i = 0; i < rings; i++)
        proxy_close(self->proxies[i]);
    sym_rings_close(self);
}

void sym_proxy_wake(sym *self)
{
    for (int32_t i = 0; i < rings_of(self); i++)
        proxy_wake(self->proxies[i]);
    sym_rings_wake(self);
}

expar_status sym_proxy_quiet(sym *self, const char *what)
{
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rings_of(self); i++) {
        expar_status one = proxy_quiet(self->proxies[i], what);
        if (one != EXPAR_OK) status = one;
    }
    return status;
}
