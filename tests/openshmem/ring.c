/* SPDX-License-Identifier: Apache-2.0 */
/* A token goes round all PEs, by puts and waits on static variables. */
#include "expect.h"

static long token;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int rounds = 50;
    for (long round = 1; round <= rounds; round++) {
        if (me == 0) shmem_p(&token, round, 1 % n);
        shmem_wait_until(&token, SHMEM_CMP_GE, round);
        if (me != 0) shmem_p(&token, round, (me + 1) % n);
        EXPECT(token == round);
        shmem_barrier_all();
    }
    shmem_finalize();
    return 0;
}
