/* SPDX-License-Identifier: Apache-2.0 */
/* A histogram spread over all PEs, filled by atomics from everywhere. */
#include "expect.h"

enum { BINS = 16, SAMPLES = 2000 };
static unsigned int bins[BINS];

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    unsigned random = 99u + (unsigned)me;
    for (int i = 0; i < SAMPLES; i++) {
        random = random * 1664525u + 1013904223u;
        int bin = (int)(random >> 16) % (BINS * n);
        if (i % 2)
            shmem_atomic_inc(&bins[bin % BINS], bin / BINS);
        else
            EXPECT(shmem_atomic_fetch_add(&bins[bin % BINS], 1u, bin / BINS) < (unsigned)(SAMPLES * n));
    }
    shmem_barrier_all();
    static unsigned int mine, total;
    for (int i = 0; i < BINS; i++)
        mine += bins[i];
    shmem_uint_sum_reduce(SHMEM_TEAM_WORLD, &total, &mine, 1);
    EXPECT(total == (unsigned)(SAMPLES * n));
    shmem_finalize();
    return 0;
}
