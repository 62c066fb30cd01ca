/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as the device of a rank, in builds that have it. */
#ifndef EXPAR_NET_GDA_SOFTWARE_H
#define EXPAR_NET_GDA_SOFTWARE_H

#include "net/gda/device.h"
#include "net/gda/nic/nic.h"

/* Opens a software NIC with `num_queues` queues for the rank, in a thread or in a process. A process that owes an
   answer for late_ms is killed. EXPAR_ERR_UNSUPPORTED: this build has none. */
expar_status gda_software_open(const gda_options *options, int32_t rank, uint32_t num_queues, int64_t late_ms,
                               gda_device **out);
/* Returns the NIC of such a device; NULL: it is in a process. Returns the process; -1: it is in a thread. */
nic *gda_software_nic(gda_device *self);
int gda_software_process(gda_device *self);

#endif
