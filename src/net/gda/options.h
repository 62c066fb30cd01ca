/* SPDX-License-Identifier: Apache-2.0 */
/* The variables EXPAR_GDA_*, read and checked. */
#ifndef EXPAR_NET_GDA_OPTIONS_H
#define EXPAR_NET_GDA_OPTIONS_H

#include "net/gda/gda.h"
#include "net/gda/nic/nic.h"

enum {
    GDA_LEAST_DEPTH = 256,
    GDA_MOST_BATCH = 128, /* with the largest submission it fits into the least depth */
    GDA_MOST_QUEUES = 64  /* to each PE */
};

typedef struct gda_options {
    /* EXPAR_GDA_NIC: all false without it. `process`: the software NIC is a process of its own; `software` is set,
       too. */
    bool software, process, device;
    nic_faults faults;
    uint32_t queues_per_peer;
    uint32_t depth; /* of a queue, in blocks */
    uint32_t batch;
    gda_ringer ringer;
    bool ringer_is_free; /* `auto`: another one may ring where kernels cannot write doorbells */
    bool serves_kernels; /* there are queues for kernels, which lie in `place` */
    gda_place place;     /* GDA_PLACE_HOST: the CPU runs the kernels */
    bool reorders;       /* the network may deliver writes of a queue in another order */
    const char *devices; /* names, with commas between them; NULL: all */
    int32_t gid_index;   /* -1: the first that is fit */
    /* Connections of devices */
    uint8_t mtu; /* 1 is 256 bytes, 5 is 4096; 0: as the ports have it */
    uint8_t hop_limit, traffic_class, service_level;
    uint8_t retries, rnr_retries, rnr_timer, ack_timeout;
    uint8_t reads; /* of a queue in flight, a power of two */
} gda_options;

/* EXPAR_ERR_ARGUMENT names the variable, its value and the expectation; *out is set on success only. */
expar_status gda_options_read(gda_options *out);

#endif
