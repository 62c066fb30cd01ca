/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program with NVSHMEM's names. */
#include <nvshmem.h>
#include <stdio.h>

int main(void)
{
    nvshmem_init();
    printf("PE %d of %d\n", nvshmem_my_pe(), nvshmem_n_pes());
    nvshmem_finalize();
    return 0;
}
