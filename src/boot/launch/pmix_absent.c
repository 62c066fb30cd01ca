/* SPDX-License-Identifier: Apache-2.0 */
/* pmix: stands in for builds without the headers of PMIx. */
#include "boot/launch/launch.h"

expar_status boot_pmix_request(boot_request *request)
{
    (void)request;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "PMIx: this build of expar has none (Debian: libpmix-dev when it is built)");
}
