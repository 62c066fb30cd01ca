/* SPDX-License-Identifier: Apache-2.0 */
/* alltoall and alltoalls transpose what the PEs hold. */
#include "expect.h"

enum { MOST = 64, BLOCK = 3 };
static double from[MOST * BLOCK * 2], to[MOST * BLOCK * 3];

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    if (n > MOST) shmem_global_exit(2);
    for (int i = 0; i < n * BLOCK; i++)
        from[i] = me * 1000 + i;
    shmem_barrier_all();
    EXPECT(shmem_alltoall(SHMEM_TEAM_WORLD, to, from, BLOCK) == 0);
    for (int i = 0; i < n * BLOCK; i++)
        EXPECT(to[i] == i / BLOCK * 1000 + me * BLOCK + i % BLOCK);
    shmem_barrier_all();
    for (int i = 0; i < n * BLOCK * 2; i++)
        from[i] = me * 1000 + i;
    memset(to, 0, sizeof to);
    shmem_barrier_all();
    EXPECT(shmem_alltoalls(SHMEM_TEAM_WORLD, to, from, 3, 2, BLOCK) == 0);
    for (int i = 0; i < n * BLOCK; i++)
        EXPECT(to[3 * i] == i / BLOCK * 1000 + 2 * (me * BLOCK + i % BLOCK) && to[3 * i + 1] == 0);
    shmem_finalize();
    return 0;
}
