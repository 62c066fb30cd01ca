/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* The next number of a counter that lies on rank 0. */
expar_status draw(expar_group *group, uint64_t *counter, uint64_t *number)
{
    return expar_atomic_fetch_inc_u64(group, counter, 0, number);
}
