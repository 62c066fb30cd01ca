/* SPDX-License-Identifier: Apache-2.0 */
/* The rank's proxy, where EXPAR_PROXY asks for one: a ring and a thread for its non-blocking operations. */
#include "base/knobs.h"
#include "shmem/parts.h"

#define NUM_SLOTS 256u

static void ring_bell_of(void *context, int32_t pe)
{
    sym_ring(context, pe);
}

expar_status sym_proxy_open(sym *self)
{
    int64_t wanted = 0;
    const proxy_plan plan = {
        .site = &self->site,
        .rma = self->reach_rma,
        .atomic = self->reach_atomic,
        .driven = &self->driven,
        .heap_begin = SYM_CONTROL_BYTES,
        .heap_end = &self->grown_bytes,
        .num_slots = NUM_SLOTS,
        .nap_ns = knob(KNOB_PROXY_IDLE_NAP_NS),
        .delivered = ring_bell_of,
        .context = self,
    };
    expar_status status = env_int("EXPAR_PROXY", 0, 1, &wanted);
    return status == EXPAR_OK && wanted ? proxy_open(&plan, &self->proxy) : status;
}
