/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as the device of a rank, in builds that have it. */
#ifndef EXPAR_NET_GDA_SOFTWARE_H
#define EXPAR_NET_GDA_SOFTWARE_H

#include "net/gda/device.h"
#include "net/gda/nic/nic.h"

/* Opens a software NIC with `num_queues` queues for the rank. EXPAR_ERR_UNSUPPORTED: this build has none. */
expar_status gda_software_open(const gda_options *options, int32_t rank, uint32_t num_queues, gda_device **out);
/* Returns the NIC of such a device. */
nic *gda_software_nic(gda_device *self);

#endif
