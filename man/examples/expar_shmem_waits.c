/* SPDX-License-Identifier: Apache-2.0 */
#include <shmem.h>

/* Sleeps until another PE has put something else than 0 into the flag, and takes it. */
int take(int *flag)
{
    shmem_int_wait_until(flag, SHMEM_CMP_NE, 0);
    int value = *flag;
    *flag = 0;
    return value;
}
