/* SPDX-License-Identifier: Apache-2.0 */
/* One PE ends the job with a status of its own, while others compute or wait; run by test_global_exit.sh. */
#include "expect.h"

#include <unistd.h>

static long never;

int main(void)
{
    shmem_init();
    if (shmem_my_pe() == shmem_n_pes() - 1) shmem_global_exit(7);
    if (shmem_my_pe() % 2 == 0) shmem_wait_until(&never, SHMEM_CMP_NE, 0l);
    sleep(60);
    return 0;
}
