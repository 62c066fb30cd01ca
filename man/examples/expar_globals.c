/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

static int64_t arrived; /* symmetric from here on: */

expar_status start(expar_group *group)
{
    expar_status status = expar_globals_share(group);
    if (status == EXPAR_OK) status = expar_atomic_inc_i64(group, &arrived, 0);
    return status;
}
