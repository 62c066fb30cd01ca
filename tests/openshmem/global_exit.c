/* SPDX-License-Identifier: Apache-2.0 */
/* global_exit STATUS: the last PE ends the job with it, while others compute or wait; run by test_global_exit.sh. */
#include "expect.h"

#include <unistd.h>

static long never;

int main(int argc, char **argv)
{
    shmem_init();
    if (argc != 2) return 2;
    if (shmem_my_pe() == shmem_n_pes() - 1) shmem_global_exit(atoi(argv[1]));
    if (shmem_my_pe() % 2 == 0) shmem_wait_until(&never, SHMEM_CMP_NE, 0l);
    sleep(600);
    return 3;
}
