/* SPDX-License-Identifier: Apache-2.0 */
/* Posts and waits for free space, on top of every transport's post. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "net/transport.h"

#include <sched.h>
#include <string.h>

transport_request transport_flag_apart(const transport_request *put)
{
    transport_request apart = *put;
    apart.flagged = apart.leads = false;
    apart.signals = true;
    apart.op = TRANSPORT_SET;
    apart.bytes = put->bytes - sizeof apart.operand;
    apart.signal_memory = put->memory;
    apart.signal_offset = put->offset + apart.bytes;
    memcpy(&apart.operand, (const uint8_t *)put->source + apart.bytes, sizeof apart.operand);
    return apart;
}

/* Only progress frees space. */
static void post_make_space(transport *self, uint32_t turn)
{
    if (self->ops->progress(self)) return;
    if (turn < knob_count(KNOB_NET_POST_YIELDS))
        sched_yield();
    else if (self->ops->arm && self->ops->arm(self))
        self->ops->sleep(self, knob(KNOB_NET_POST_SLEEP_NS));
}

static expar_status post_waiting(transport *self, const transport_site *site, const transport_request *request,
                                 transport_batch *batch)
{
    expar_status status = EXPAR_ERR_BUSY;
    int64_t asked_ns = 0;
    transport_patience patience = {0};
    for (uint32_t turn = 0; status == EXPAR_ERR_BUSY; turn++) {
        post_make_space(self, turn);
        status = site->check(site->context, request->pe, "posting");
        if (status == EXPAR_OK && turn >= knob_count(KNOB_NET_POST_YIELDS))
            status = interrupt_look(&asked_ns, "posting");
        if (status == EXPAR_OK) status = self->ops->post(self, request, batch);
        if (status == EXPAR_ERR_BUSY && !transport_waits_on(site, &patience, request->pe, clock_ns())) {
            site->told(site->context, request->pe);
            return error_set(EXPAR_ERR_PEER, "posting: no free slot for an operation to rank %d for %lld ms",
                             request->pe, (long long)((clock_ns() - patience.since_ns) / 1000000));
        }
    }
    return status;
}

expar_status transport_post(transport *self, const transport_site *site, const transport_request *request,
                            transport_batch *batch)
{
    expar_status status = self->ops->post(self, request, batch);
    if (status != EXPAR_ERR_BUSY) return status;
    if (self->ops->attend) self->ops->attend(self, 1);
    status = post_waiting(self, site, request, batch);
    if (self->ops->attend) self->ops->attend(self, -1);
    return status;
}
