/* SPDX-License-Identifier: Apache-2.0 */
/* pmix: in builds without its headers. */
#include "boot/pmix.h"

#include <stdlib.h>

bool boot_pmix_is_here(void)
{
    return getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK");
}

expar_status boot_pmix_request(boot_request *request)
{
    (void)request;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "PMIx: this build of expar has none (Debian: libpmix-dev when it is built)");
}
