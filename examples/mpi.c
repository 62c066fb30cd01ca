/* SPDX-License-Identifier: Apache-2.0 */
/* A group of the ranks of an MPI program, which also uses MPI.
 *
 *     mpirun -n 4 mpi
 *
 * Each rank puts its number into its right neighbour's memory; MPI sums the received numbers. */
#include <expar/expar.h>
#include <expar/mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void must(expar_status status)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
    exit(1);
}

static void must_mpi(int result)
{
    if (result != MPI_SUCCESS) exit(1);
}

int main(int argc, char **argv)
{
    expar_group *group;
    must_mpi(MPI_Init(&argc, &argv));
    must(expar_group_create_from_mpi(MPI_COMM_WORLD, NULL, &group));
    const int32_t rank = expar_group_rank(group), size = expar_group_size(group);

    void *block;
    must(expar_calloc(group, 1, sizeof(int64_t), &block));
    int64_t *inbox = block;
    must(expar_p_i64(group, inbox, rank, (rank + 1) % size));
    must(expar_barrier_all(group));

    int64_t sum = 0;
    must_mpi(MPI_Allreduce(inbox, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD));
    const int right = *inbox == (rank + size - 1) % size && sum == (int64_t)size * (size - 1) / 2;
    printf("rank %d of %d: got %lld, sum %lld, %s\n", rank, size, (long long)*inbox, (long long)sum,
           right ? "right" : "WRONG");

    must(expar_free(group, block));
    must(expar_group_destroy(group));
    must_mpi(MPI_Finalize());
    return !right;
}
