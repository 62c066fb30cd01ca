/* SPDX-License-Identifier: Apache-2.0 */
/* A program for `expar run` that forms its group twice. With the argument "nodes" it prints its node. With "leave" it
 * forms it once, rank 1 leaves it, and the others come to a barrier. */
#include <expar/expar.h>
#include <stdio.h>
#include <string.h>

static int tell(void)
{
    fprintf(stderr, "%s\n", expar_last_error());
    return 1;
}

static int form_and_leave(int argc, int round)
{
    expar_group *group;
    if (expar_group_create(NULL, &group) || expar_barrier_all(group)) return tell();
    if (argc > 1 && round == 1)
        printf("node %d of %d\n", expar_group_node(group), expar_group_num_nodes(group));
    else if (round == 1)
        printf("rank %d of %d, twice\n", expar_group_rank(group), expar_group_size(group));
    return expar_group_destroy(group) != EXPAR_OK;
}

static int let_rank_1_leave(void)
{
    expar_group *group;
    if (expar_group_create(NULL, &group) || expar_barrier_all(group)) return tell();
    if (expar_group_rank(group) == 1) return expar_group_abandon(group) != EXPAR_OK;
    return expar_barrier_all(group) ? tell() : 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "leave") == 0) return let_rank_1_leave();
    return form_and_leave(argc, 0) || form_and_leave(argc, 1);
}
