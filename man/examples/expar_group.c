/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <stdio.h>

/* A program of `expar run -n 4 -- program`, torchrun or mpirun. */
int main(void)
{
    expar_group *group;
    if (expar_group_create(NULL, &group) != EXPAR_OK) {
        fprintf(stderr, "%s\n", expar_last_error());
        return 1;
    }
    printf("rank %d of %d\n", expar_group_rank(group), expar_group_size(group));
    return expar_group_destroy(group) == EXPAR_OK ? 0 : 1;
}
