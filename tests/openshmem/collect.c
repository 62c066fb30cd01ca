/* SPDX-License-Identifier: Apache-2.0 */
/* collect of unequal and fcollect of equal blocks. */
#include "expect.h"

enum { MOST = 64 };
static short from[MOST], to[MOST * MOST];

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    if (n > MOST) shmem_global_exit(2);
    for (int i = 0; i < MOST; i++)
        from[i] = (short)(me * 100 + i);
    shmem_barrier_all();
    EXPECT(shmem_fcollect(SHMEM_TEAM_WORLD, to, from, 5) == 0);
    for (int i = 0; i < 5 * n; i++)
        EXPECT(to[i] == i / 5 * 100 + i % 5);
    shmem_barrier_all();
    EXPECT(shmem_collect(SHMEM_TEAM_WORLD, to, from, (size_t)me) == 0);
    for (int pe = 0, at = 0; pe < n; pe++)
        for (int i = 0; i < pe; i++)
            EXPECT(to[at++] == pe * 100 + i);
    shmem_finalize();
    return 0;
}
