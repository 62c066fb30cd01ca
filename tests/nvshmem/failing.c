/* SPDX-License-Identifier: Apache-2.0 */
/* failing WHAT: a call that fails says why and ends the job. */
#include "expect.h"

#include <string.h>

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "library")) nvshmem_malloc(8);
    nvshmem_init();
    float *row = nvshmem_malloc(sizeof *row);
    if (!strcmp(what, "pe") && nvshmem_my_pe() == 0) nvshmem_float_p(row, 1, nvshmem_n_pes());
    if (!strcmp(what, "team")) nvshmem_barrier(NVSHMEM_TEAM_INVALID);
    nvshmem_barrier_all();
    return 3;
}
