/* SPDX-License-Identifier: Apache-2.0 */
/* A build without rdma-core's header has no software NIC, which decodes with its structs. */
#include "net/gda/software.h"

expar_status gda_software_open(const gda_options *options, const gda_software_plan *plan, gda_device **out)
{
    (void)options;
    (void)plan;
    (void)out;
    return error_set(
        EXPAR_ERR_UNSUPPORTED,
        "gda: EXPAR_GDA_NIC=software or process: this build has no software NIC, because infiniband/mlx5dv.h was not "
        "there when it was made");
}

nic *gda_software_nic(gda_device *self)
{
    (void)self;
    return NULL;
}

int gda_software_process(gda_device *self)
{
    (void)self;
    return -1;
}
