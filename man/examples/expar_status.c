/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <stdio.h>

/* Says what failed, and lets the caller go on with the status. */
expar_status report(expar_status status)
{
    if (status != EXPAR_OK) fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
    return status;
}
