/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as the device of a rank, in builds that have it. */
#ifndef EXPAR_NET_GDA_SOFTWARE_H
#define EXPAR_NET_GDA_SOFTWARE_H

#include "net/gda/device.h"
#include "net/gda/nic/nic.h"

typedef struct gda_software_plan {
    int32_t rank;
    uint32_t num_queues;
    /* a process that owes an answer for so long is killed */
    int64_t late_ms;
    /* as nic_start has it */
    int64_t spin_ns;
} gda_software_plan;

/* Opens a software NIC, in a thread or in a process. EXPAR_ERR_UNSUPPORTED: this build has none. */
expar_status gda_software_open(const gda_options *options, const gda_software_plan *plan, gda_device **out);
/* Returns the NIC of such a device; NULL: it is in a process. Returns the process; -1: it is in a thread. */
nic *gda_software_nic(gda_device *self);
int gda_software_process(gda_device *self);

#endif
