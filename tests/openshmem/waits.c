/* SPDX-License-Identifier: Apache-2.0 */
/* All forms of wait and test on words that the others set. */
#include "expect.h"

enum { MOST = 64 };
static long flags[MOST], done[MOST];

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    if (n > MOST) shmem_global_exit(2);
    int status[MOST] = {0};
    size_t indices[MOST], left = (size_t)n;
    long values[MOST];
    EXPECT(shmem_test_any(done, (size_t)n, NULL, SHMEM_CMP_NE, 0l) == SIZE_MAX);
    shmem_barrier_all();
    for (int pe = 0; pe < n; pe++)
        shmem_p(&flags[me], me + 1l, pe);
    while (left > 0) {
        size_t found = shmem_wait_until_some(flags, (size_t)n, indices, status, SHMEM_CMP_GT, 0l);
        EXPECT(found > 0 && found <= left);
        for (size_t i = 0; i < found; i++)
            status[indices[i]] = 1;
        left -= found;
    }
    EXPECT(shmem_wait_until_any(flags, (size_t)n, status, SHMEM_CMP_GT, 0l) == SIZE_MAX);
    for (int pe = 0; pe < n; pe++)
        values[pe] = pe + 1;
    EXPECT(shmem_test_all_vector(flags, (size_t)n, NULL, SHMEM_CMP_EQ, values));
    for (int pe = 0; pe < n; pe++)
        shmem_p(&done[me], 1l, pe);
    shmem_wait_until_all(done, (size_t)n, NULL, SHMEM_CMP_EQ, 1l);
    EXPECT(shmem_test(&done[me], SHMEM_CMP_EQ, 1l) && !shmem_test(&done[me], SHMEM_CMP_LT, 1l));
    shmem_finalize();
    return 0;
}
