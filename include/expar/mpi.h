/* SPDX-License-Identifier: Apache-2.0 */
/* Groups among the ranks of an MPI communicator. A header alone: the library knows nothing of MPI, and only a program
 * that includes this needs it. */
#ifndef EXPAR_MPI_H
#define EXPAR_MPI_H

#include <expar/group.h>
#include <mpi.h>
#include <string.h>

/* The message of rank 0 of the communicator to the others. */
typedef struct expar_mpi_offer {
    expar_unique_id id;
    /* expar_status: whether there is an id */
    int status;
} expar_mpi_offer;

/* Makes a group of the ranks of `comm`, numbered as there; collective over it, after MPI_Init. `options` may be NULL;
   id, rank and size in it are ignored. Nothing is kept of the communicator: it may be freed, and MPI finalized, while
   the group lives. The group meets at EXPAR_BOOTSTRAP_INTERFACE, which must be set where the ranks are on several
   hosts. *group is set on success only, and destroyed by expar_group_destroy. One thread of a rank, as MPI's thread
   level allows. Errors: EXPAR_ERR_NULL; EXPAR_ERR_BOOTSTRAP when MPI fails and returns; EXPAR_ERR_REMOTE when rank 0
   could not make a meeting place; those of expar_group_create. */
static inline expar_status expar_group_create_from_mpi(MPI_Comm comm, const expar_group_options *options,
                                                       expar_group **group)
{
    expar_group_options mine = EXPAR_GROUP_OPTIONS_INIT;
    expar_mpi_offer offer;
    int rank = 0, size = 0;
    if (options && options->struct_size > sizeof mine) return EXPAR_ERR_ARGUMENT;
    if (options) memcpy(&mine, options, options->struct_size);
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS)
        return EXPAR_ERR_BOOTSTRAP;
    memset(&offer, 0, sizeof offer);
    if (rank == 0) offer.status = expar_unique_id_create(&offer.id);
    if (MPI_Bcast(&offer, (int)sizeof offer, MPI_BYTE, 0, comm) != MPI_SUCCESS) return EXPAR_ERR_BOOTSTRAP;
    if (offer.status != EXPAR_OK) return rank == 0 ? (expar_status)offer.status : EXPAR_ERR_REMOTE;
    mine.struct_size = sizeof mine;
    mine.id = &offer.id;
    mine.rank = rank;
    mine.size = size;
    expar_status status = expar_group_create(&mine, group);
    if (rank == 0) expar_unique_id_retire(&offer.id);
    return status;
}

#endif
