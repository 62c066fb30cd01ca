/* SPDX-License-Identifier: Apache-2.0 */
/* A shared counter without atomics, kept right by a lock. */
#include "expect.h"

static long guard, counter;

int main(void)
{
    shmem_init();
    const int n = shmem_n_pes();
    const int rounds = 40;
    for (int i = 0; i < rounds; i++) {
        if (i % 4 == 0)
            while (shmem_test_lock(&guard)) {
            }
        else
            shmem_set_lock(&guard);
        long seen = shmem_g(&counter, 0);
        shmem_p(&counter, seen + 1, 0);
        shmem_clear_lock(&guard);
    }
    shmem_barrier_all();
    EXPECT(shmem_g(&counter, 0) == (long)rounds * n);
    shmem_finalize();
    return 0;
}
