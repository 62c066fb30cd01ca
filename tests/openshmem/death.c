/* SPDX-License-Identifier: Apache-2.0 */
/* The last PE dies while all others wait, without a time-out: they are told who it was, and the job ends. */
#include "expect.h"

#include <signal.h>

int main(void)
{
    shmem_init();
    if (shmem_my_pe() == shmem_n_pes() - 1) raise(SIGKILL);
    shmem_barrier_all();
    return 0;
}
