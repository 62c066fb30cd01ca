/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap: all ways to allocate, symmetric on all PEs. */
#include "expect.h"

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int next = (me + 1) % n, last = (me + n - 1) % n;
    int *block = shmem_malloc(100 * sizeof *block);
    long *zeros = shmem_calloc(1000, sizeof *zeros);
    char *aligned = shmem_align(4096, 100);
    double *hinted = shmem_malloc_with_hints(64, SHMEM_MALLOC_ATOMICS_REMOTE);
    EXPECT(block && zeros && aligned && hinted && (uintptr_t)aligned % 4096 == 0);
    for (int i = 0; i < 1000; i++)
        EXPECT(zeros[i] == 0);
    block[99] = me;
    shmem_p(&block[0], me + 1, next);
    shmem_barrier_all();
    block = shmem_realloc(block, 100000 * sizeof *block);
    EXPECT(block && block[0] == last + 1 && block[99] == me);
    shmem_p(&block[99999], me + 2, next);
    shmem_barrier_all();
    EXPECT(block[99999] == last + 2);
    EXPECT(shmem_malloc((size_t)1 << 50) == NULL);
    EXPECT(shmem_malloc(0) == NULL);
    EXPECT(shmem_ptr(block, me) == block);
    shmem_free(hinted);
    shmem_free(aligned);
    shmem_free(zeros);
    shmem_free(block);
    shmem_free(NULL);
    shmem_finalize();
    return 0;
}
