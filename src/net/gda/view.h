/* SPDX-License-Identifier: Apache-2.0 */
/* The view gives kernels queues to all PEs and keys of memory, so that they post to the device themselves.
 *
 * It lies in the memory of the GPU, or of the process if the CPU runs the kernels. It lives as long as the transport.
 * The host adds keys while kernels run (gda_keys). */
#ifndef EXPAR_NET_GDA_VIEW_H
#define EXPAR_NET_GDA_VIEW_H

#include "net/gda/words.h"

typedef struct gda_view {
    gda_queue *queues;    /* [num_pes][per_peer]; queue 0 of a PE serves all whose order matters */
    const gda_keys *keys; /* by transport_memory; without chunks if kernels do not reach that memory */
    uint32_t num_pes, per_peer;
    /* 1: the network may deliver writes of a queue in another order. Then an atomic tells that the data has come, and
       a fence waits. */
    uint32_t reorders;
} gda_view;

/* Returns a queue to the PE. Order is promised within a queue only. */
PORTABLE_FUNC gda_queue *gda_queue_to(const gda_view *view, uint32_t pe, uint32_t number)
{
    return &view->queues[(uint64_t)pe * view->per_peer + number % view->per_peer];
}

#endif
