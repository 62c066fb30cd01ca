/* SPDX-License-Identifier: Apache-2.0 */
#include <shmem.h>

/* PE 0's words to all, as programs before OpenSHMEM 1.5 do it. */
void broadcast(int64_t *dest, const int64_t *source, size_t count)
{
    static long pSync[SHMEM_BCAST_SYNC_SIZE];
    for (int i = 0; i < SHMEM_BCAST_SYNC_SIZE; i++)
        pSync[i] = SHMEM_SYNC_VALUE;
    shmem_barrier_all();
    shmem_broadcast64(dest, source, count, 0, 0, 0, shmem_n_pes(), pSync);
}
