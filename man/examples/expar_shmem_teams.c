/* SPDX-License-Identifier: Apache-2.0 */
#include <shmem.h>

/* The PEs with even numbers; SHMEM_TEAM_INVALID on the others. */
shmem_team_t split_even(void)
{
    shmem_team_t even = SHMEM_TEAM_INVALID;
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (shmem_n_pes() + 1) / 2, NULL, 0, &even);
    return even;
}
