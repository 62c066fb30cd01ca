/* SPDX-License-Identifier: Apache-2.0 */
/* A program for `expar run` that forms its group twice. With an argument it prints its node. */
#include <expar/expar.h>
#include <stdio.h>

static int form_and_leave(int argc, int round)
{
    expar_group *group;
    if (expar_group_create(NULL, &group) || expar_barrier_all(group)) {
        fprintf(stderr, "%s\n", expar_last_error());
        return 1;
    }
    if (argc > 1 && round == 1)
        printf("node %d of %d\n", expar_group_node(group), expar_group_num_nodes(group));
    else if (round == 1)
        printf("rank %d of %d, twice\n", expar_group_rank(group), expar_group_size(group));
    return expar_group_destroy(group) != EXPAR_OK;
}

int main(int argc, char **argv)
{
    (void)argv;
    return form_and_leave(argc, 0) || form_and_leave(argc, 1);
}
