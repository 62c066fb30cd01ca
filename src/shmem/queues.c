/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of a transport to which kernels write requests themselves. The first transport that has some serves them. */
#include "shmem/parts.h"

static transport *transport_of_queues(const sym *self, bool on_gpu)
{
    for (int32_t t = 0; t < self->num_transports; t++) {
        transport *via = self->transports[t];
        if (via->ops->kernels && via->ops->kernels(via, on_gpu, NULL)) return via;
    }
    return NULL;
}

uint64_t sym_queues(const sym *self, bool on_gpu, bool *ordered)
{
    const transport *via = transport_of_queues(self, on_gpu);
    return via ? via->ops->kernels(via, on_gpu, ordered) : 0;
}

bool sym_queues_reach(const sym *self, bool on_gpu, transport_memory memory, int32_t pe, bool words)
{
    const unsigned data = TRANSPORT_PUT | TRANSPORT_GET;
    const transport *via = transport_of_queues(self, on_gpu);
    if (!via) return false;
    if (words) return sym_ways(self, memory, pe)->words == via;
    return (via->ops->reach(via, pe, memory) & data) == data;
}

expar_status sym_queues_quiet(const sym *self)
{
    expar_status status = EXPAR_OK;
    for (int32_t t = 0; t < self->num_transports; t++) {
        transport *via = self->transports[t];
        const expar_status one = via->ops->quiet_kernels ? via->ops->quiet_kernels(via) : EXPAR_OK;
        if (status == EXPAR_OK) status = one;
    }
    return status;
}

bool sym_queues_have_ended_to(const sym *self, int32_t pe, uint64_t number)
{
    const transport *via = transport_of_queues(self, true);
    return !via || !via->ops->kernels_ended || via->ops->kernels_ended(via, pe, number);
}

expar_status sym_queues_failed_to(const sym *self, int32_t pe)
{
    const transport *via = transport_of_queues(self, true);
    return via && via->ops->kernels_failed ? via->ops->kernels_failed(via, pe) : EXPAR_OK;
}
