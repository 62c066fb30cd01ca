/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/device.h>
#include <stdio.h>

/* A handle for kernels of this rank's GPU, for all ranks. The rank has device memory. */
expar_status prepare(expar_group *group, expar_device_handle *handle)
{
    return expar_device_get(group, NULL, handle);
}

/* After the kernels, or while they run. */
expar_status report(const expar_device_handle *handle)
{
    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    expar_status status = expar_device_get_error(handle, &error);
    if (status == EXPAR_OK && error.status != EXPAR_OK) fprintf(stderr, "%s\n", error.text);
    return status == EXPAR_OK ? error.status : status;
}
