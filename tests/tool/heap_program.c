/* SPDX-License-Identifier: Apache-2.0 */
/* A program for `expar run` whose heap has a hole: it tells its pid, and while all ranks hold their blocks rank 0 runs
 * the command line that it was given. */
#include <expar/expar.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCKS = 3, BLOCK_BYTES = 2 << 20 };

static bool make_hole(expar_group *group, void **blocks)
{
    for (int i = 0; i < BLOCKS; i++)
        if (expar_malloc(group, BLOCK_BYTES, &blocks[i])) return false;
    return !expar_free(group, blocks[1]) && !expar_barrier_all(group);
}

int main(int argc, char **argv)
{
    expar_group *group;
    void *blocks[BLOCKS];
    int code = 0;
    printf("pid %d\n", (int)getpid());
    if (argc != 2 || expar_group_create(NULL, &group) || !make_hole(group, blocks)) {
        fprintf(stderr, "%s\n", expar_last_error());
        return 1;
    }
    if (expar_group_rank(group) == 0) code = system(argv[1]);
    if (expar_barrier_all(group) || expar_free(group, blocks[0]) || expar_free(group, blocks[2])) code = 1;
    return expar_group_destroy(group) || code;
}
