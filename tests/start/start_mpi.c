/* SPDX-License-Identifier: Apache-2.0 */
/* Groups beside MPI in one program: by the communicator, and by what the launcher says, before MPI starts and after. */
#include <expar/expar.h>
#include <expar/mpi.h>

#include <stdio.h>
#include <stdlib.h>

static void must(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "start_mpi: %s: %s\n", what, expar_last_error());
    exit(1);
}

/* A group whose rank and size are as said; every rank puts into the next one's memory. */
static void use(expar_group *group, int rank, int size)
{
    int32_t *box, mine = rank + 1;
    must(expar_group_rank(group) == rank && expar_group_size(group) == size, "rank or size");
    must(expar_calloc(group, 1, sizeof *box, (void **)&box) == EXPAR_OK, "calloc");
    must(expar_put(group, box, &mine, sizeof mine, (rank + 1) % size) == EXPAR_OK, "put");
    must(expar_barrier_all(group) == EXPAR_OK, "barrier");
    must(*box == (rank + size - 1) % size + 1, "what came");
    must(expar_group_destroy(group) == EXPAR_OK, "destroy");
}

static void use_environment(void)
{
    expar_group *group;
    must(expar_group_create(NULL, &group) == EXPAR_OK, "group from the environment");
    use(group, expar_group_rank(group), expar_group_size(group));
}

static void use_communicator(MPI_Comm comm, const expar_group_options *options)
{
    int rank, size;
    expar_group *group;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    must(expar_group_create_from_mpi(comm, options, &group) == EXPAR_OK, "group of a communicator");
    use(group, rank, size);
}

int main(int argc, char **argv)
{
    int rank, size, sum = 0;
    use_environment();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    use_environment();
    use_communicator(MPI_COMM_WORLD, NULL);
    MPI_Comm half;
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.heap_bytes = 4 << 20;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half); /* numbered the other way round */
    use_communicator(half, &options);
    MPI_Comm_free(&half);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    must(sum == size * (size - 1) / 2, "MPI itself");
    MPI_Finalize();
    return 0;
}
