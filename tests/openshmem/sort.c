/* SPDX-License-Identifier: Apache-2.0 */
/* Odd-even transposition sort of blocks over all PEs. */
#include "expect.h"

enum { COUNT = 64 };
static int block[COUNT], other[COUNT];

static int compare(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* Keeps the lower or the upper half of both blocks. */
static void keep_half(int upper)
{
    int both[2 * COUNT];
    memcpy(both, block, sizeof block);
    memcpy(both + COUNT, other, sizeof other);
    qsort(both, 2 * COUNT, sizeof *both, compare);
    memcpy(block, both + (upper ? COUNT : 0), sizeof block);
}

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    unsigned random = 17u * (unsigned)me + 5;
    long long before = 0;
    for (int i = 0; i < COUNT; i++) {
        random = random * 1103515245u + 12345u;
        block[i] = (int)(random >> 8) % 10000;
        before += block[i];
    }
    for (int phase = 0; phase < n + 1; phase++) {
        int partner = (me + phase) % 2 == 0 ? me + 1 : me - 1, paired = partner >= 0 && partner < n;
        shmem_barrier_all();
        if (paired) shmem_put(other, block, COUNT, partner);
        shmem_barrier_all();
        if (paired) keep_half(partner < me);
    }
    qsort(block, COUNT, sizeof *block, compare);
    shmem_barrier_all();
    if (me > 0) EXPECT(shmem_g(&block[COUNT - 1], me - 1) <= block[0]);
    static long long sums[2], totals[2];
    sums[0] = before;
    for (int i = 0; i < COUNT; i++)
        sums[1] += block[i];
    shmem_barrier_all();
    EXPECT(shmem_sum_reduce(SHMEM_TEAM_WORLD, totals, sums, 2) == 0);
    EXPECT(totals[0] == totals[1]);
    shmem_finalize();
    return 0;
}
