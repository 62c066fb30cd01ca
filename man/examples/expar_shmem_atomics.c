/* SPDX-License-Identifier: Apache-2.0 */
#include <shmem.h>

/* The next number of a counter that lies on PE 0. */
long draw(long *counter)
{
    return shmem_long_atomic_fetch_inc(counter, 0);
}
