/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of a program about itself and the library. */
#include "expect.h"

static int here;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    int major = 0, minor = 0, provided = -1;
    char name[SHMEM_MAX_NAME_LEN];
    shmem_info_get_version(&major, &minor);
    shmem_info_get_name(name);
    EXPECT(major == SHMEM_MAJOR_VERSION && minor == SHMEM_MINOR_VERSION);
    EXPECT(strlen(name) > 0);
    shmem_query_thread(&provided);
    EXPECT(provided >= SHMEM_THREAD_SINGLE && provided <= SHMEM_THREAD_MULTIPLE);
    EXPECT(me >= 0 && me < n);
    for (int pe = 0; pe < n; pe++)
        EXPECT(shmem_pe_accessible(pe) && shmem_addr_accessible(&here, pe));
    EXPECT(!shmem_pe_accessible(n) && !shmem_pe_accessible(-1));
    EXPECT(!shmem_addr_accessible(&major, me));
    shmem_pcontrol(0);
    shmem_pcontrol(2, "with", 3, 4.5);
    EXPECT(me == shmem_my_pe() && n == shmem_n_pes());
    shmem_finalize();
    return 0;
}
