/* SPDX-License-Identifier: Apache-2.0 */
/* global_exit STATUS: the last PE ends the job with it, while others compute or wait; run by test_global_exit.sh. */
#include "expect.h"

#include <unistd.h>

int main(int argc, char **argv)
{
    nvshmem_init();
    if (argc != 2) return 2;
    int *never = nvshmem_calloc(1, sizeof *never);
    if (nvshmem_my_pe() == nvshmem_n_pes() - 1) nvshmem_global_exit(atoi(argv[1]));
    if (nvshmem_my_pe() % 2 == 0) nvshmem_int_wait_until(never, NVSHMEM_CMP_NE, 0);
    sleep(600);
    return 3;
}
