/* SPDX-License-Identifier: Apache-2.0 */
/* Initialised and zero globals, static locals and arrays are symmetric and keep their values. */
#include "expect.h"

int initialised[4] = {1, 2, 3, 4};
static double zero[1000];
static const char *text = "unchanged";

static long *counter(void)
{
    static long count = 7;
    return &count;
}

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int next = (me + 1) % n, last = (me + n - 1) % n;
    EXPECT(initialised[0] == 1 && initialised[3] == 4 && zero[999] == 0 && *counter() == 7);
    EXPECT(strcmp(text, "unchanged") == 0);
    EXPECT(shmem_addr_accessible(initialised, next) && shmem_addr_accessible(counter(), next));
    EXPECT(!shmem_addr_accessible(&next, next));
    shmem_barrier_all();
    shmem_p(&initialised[2], 100 + me, next);
    shmem_p(&zero[999], 0.5 + me, next);
    shmem_atomic_add(counter(), (long)me, next);
    shmem_barrier_all();
    EXPECT(initialised[2] == 100 + last && initialised[1] == 2);
    EXPECT(zero[999] == 0.5 + last && zero[998] == 0);
    EXPECT(*counter() == 7 + last);
    int *remote = shmem_ptr(initialised, next);
    if (remote) EXPECT(remote[2] == 100 + me);
    shmem_finalize();
    return 0;
}
