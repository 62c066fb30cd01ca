/* SPDX-License-Identifier: Apache-2.0 */
/* Block matrix product: rows stay, blocks of columns go round. */
#include "expect.h"

enum { BLOCK = 8 };
static double b[2][BLOCK][BLOCK];
static uint64_t arrived;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int next = (me + 1) % n;
    double c[BLOCK][BLOCK] = {{0}};
    for (int i = 0; i < BLOCK; i++)
        for (int j = 0; j < BLOCK; j++)
            b[0][i][j] = me + i - j;
    shmem_barrier_all();
    for (int s = 0; s < n; s++) {
        for (int i = 0; i < BLOCK; i++)
            for (int j = 0; j < BLOCK; j++)
                for (int k = 0; k < BLOCK; k++)
                    c[i][j] += (me + i + k) * b[s % 2][k][j];
        shmem_barrier_all();
        shmem_double_put_signal(b[1 - s % 2][0], b[s % 2][0], BLOCK * BLOCK, &arrived, (uint64_t)s + 1,
                                SHMEM_SIGNAL_SET, next);
        EXPECT(shmem_signal_wait_until(&arrived, SHMEM_CMP_GE, (uint64_t)s + 1) >= (uint64_t)s + 1);
    }
    EXPECT(shmem_signal_fetch(&arrived) == (uint64_t)n);
    for (int i = 0; i < BLOCK; i++)
        for (int j = 0; j < BLOCK; j++) {
            double sum = 0;
            for (int pe = 0; pe < n; pe++)
                for (int k = 0; k < BLOCK; k++)
                    sum += (me + i + k) * (pe + k - j);
            EXPECT(c[i][j] == sum);
        }
    shmem_finalize();
    return 0;
}
