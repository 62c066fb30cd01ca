/* SPDX-License-Identifier: Apache-2.0 */
#include <shmem.h>

/* One counter on every PE, all zero. */
long *make_counter(void)
{
    return shmem_calloc(1, sizeof(long));
}
