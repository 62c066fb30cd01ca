/* SPDX-License-Identifier: Apache-2.0 */
/* An OpenSHMEM program: each PE puts a number into its right neighbour's memory and sends a signal with it; then all
 * sum.
 *
 *     cc openshmem.c $(pkg-config --cflags --libs expar-shmem) -o openshmem
 *     expar run -n 4 -- openshmem
 *
 * Variables of the program are symmetric. A call that fails ends the program and says why, unless it returns a status.
 * The program checks each status. */
#include <shmem.h>
#include <stdio.h>

static long inbox, mine, sum;
static uint64_t arrived;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const long sent = me + 1;
    shmem_long_put_signal(&inbox, &sent, 1, &arrived, 1, SHMEM_SIGNAL_SET, (me + 1) % n);
    shmem_signal_wait_until(&arrived, SHMEM_CMP_EQ, 1);

    mine = inbox;
    int failed = shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &sum, &mine, 1);
    failed |= inbox != (me + n - 1) % n + 1 || sum != (long)n * (n + 1) / 2;
    printf("PE %d of %d: got %ld, sum %ld, %s\n", me, n, inbox, sum, failed ? "WRONG" : "right");
    shmem_finalize();
    return failed != 0;
}
