/* SPDX-License-Identifier: Apache-2.0 */
#include <shmem.h>

/* The sum over all PEs; both arrays are symmetric. */
int sum(double *all, const double *mine, size_t count)
{
    return shmem_double_sum_reduce(SHMEM_TEAM_WORLD, all, mine, count);
}
