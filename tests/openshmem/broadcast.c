/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcasts from every root, small and large, typed and in bytes. */
#include "expect.h"

enum { LARGE = 50000 };
static int from[LARGE], to[LARGE];

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    for (int root = 0; root < n; root++) {
        for (int i = 0; i < LARGE; i++) {
            from[i] = me * 1000 + i;
            to[i] = -1;
        }
        shmem_barrier_all();
        EXPECT(shmem_broadcast(SHMEM_TEAM_WORLD, to, from, 10, root) == 0);
        EXPECT(to[0] == root * 1000 && to[9] == root * 1000 + 9 && to[10] == -1);
        shmem_sync_all(); /* the next broadcast may write before this PE comes to it */
        EXPECT(shmem_broadcastmem(SHMEM_TEAM_WORLD, to + 10, from + 10, (LARGE - 10) * sizeof *to, root) == 0);
        for (int i = 0; i < LARGE; i++)
            EXPECT(to[i] == root * 1000 + i);
    }
    shmem_finalize();
    return 0;
}
