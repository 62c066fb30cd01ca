/* SPDX-License-Identifier: Apache-2.0 */
/* The view gives kernels queues to all PEs and keys of memory, so that they post to the device themselves.
 *
 * It lies in the memory of the GPU, or of the process if the CPU runs the kernels. It lives as long as the transport.
 * The host adds keys while kernels run (gda_keys). */
#ifndef EXPAR_NET_GDA_VIEW_H
#define EXPAR_NET_GDA_VIEW_H

#include "net/gda/words.h"

/* Memory of the caller that it has registered. The host writes `end` (release) after the others, and 0 there first to
   forget the memory. Kernels load it (acquire) before and after the others. */
typedef struct gda_known {
    PORTABLE_SHARED(uint64_t) begin, end; /* addresses; end 0: the entry is empty */
    PORTABLE_SHARED(uint64_t) lkey;       /* big-endian */
} gda_known;
/* The most ranges of which kernels know. */
#define GDA_KNOWN 64u

typedef struct gda_view {
    gda_queue *queues;      /* [num_pes][per_peer]; queue 0 of a PE serves all whose order matters */
    const gda_keys *keys;   /* by transport_memory; without chunks if kernels do not reach that memory */
    const gda_known *known; /* [GDA_KNOWN], in no order */
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

/* Finds the registered range in which [address, address + bytes) lies. Returns 0 if there is none. */
PORTABLE_FUNC int gda_find_known(const gda_view *view, uint64_t address, uint64_t bytes, gda_range *range)
{
    for (uint32_t i = 0; i < GDA_KNOWN; i++) {
        const gda_known *known = &view->known[i];
        const uint64_t end = gda_load(&known->end), begin = gda_load(&known->begin);
        if (address < begin || address >= end || bytes > end - address) continue;
        range->begin = begin;
        range->end = end;
        range->lkey = (uint32_t)gda_load(&known->lkey);
        return gda_load(&known->end) == end;
    }
    return 0;
}

#endif
