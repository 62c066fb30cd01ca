/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the first programs: start_pes, whose end is that of main, _my_pe and _num_pes. */
#include "expect.h"

static long token;

int main(void)
{
    start_pes(0);
    start_pes(0);
    const int me = _my_pe(), n = _num_pes();
    EXPECT(n >= 1 && n == shmem_n_pes() && me == shmem_my_pe() && me >= 0 && me < n);
    shmem_long_p(&token, me + 1, (me + 1) % n);
    shmem_barrier_all();
    EXPECT(token == (me + n - 1) % n + 1);
    return 0;
}
