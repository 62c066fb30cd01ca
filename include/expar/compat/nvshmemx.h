/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's extensions for the host: other ways to start, and launches of kernels that wait for each other. */
#ifndef EXPAR_COMPAT_NVSHMEMX_H
#define EXPAR_COMPAT_NVSHMEMX_H

#include <expar/compat/nvshmem.h>

#ifndef __CUDACC_RTC__
#include <string.h>

/* ---- start by a unique id, or among the ranks of an MPI communicator --------------------------------------------- */

#define NVSHMEMX_INIT_WITH_MPI_COMM (1u << 1)
#define NVSHMEMX_INIT_WITH_SHMEM    (1u << 2)
#define NVSHMEMX_INIT_WITH_UNIQUEID (1u << 3)

/* Plain bytes, which PE 0 gives to all others. */
typedef struct {
    expar_unique_id expar;
} nvshmemx_uniqueid_t;
typedef struct {
    const nvshmemx_uniqueid_t *id;
    int myrank, nranks;
} nvshmemx_uniqueid_args_t;
typedef struct {
    nvshmemx_uniqueid_args_t uid_args;
} nvshmemx_init_args_t;
typedef struct {
    /* the address of an MPI_Comm */
    void *mpi_comm;
    nvshmemx_init_args_t args;
} nvshmemx_init_attr_t;
/* clang-format off */
#define NVSHMEMX_UNIQUEID_INITIALIZER  {{{0}}}
#define NVSHMEMX_INIT_ATTR_INITIALIZER {0, {{0, 0, 0}}}
/* clang-format on */

EXPAR_NV_HOST int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *uid)
{
    return expar_nv_done(expar_unique_id_create(uid ? &uid->expar : NULL));
}
EXPAR_NV_HOST int nvshmemx_set_attr_uniqueid_args(int myrank, int nranks, const nvshmemx_uniqueid_t *uid,
                                                  nvshmemx_init_attr_t *attr)
{
    attr->args.uid_args.id = uid;
    attr->args.uid_args.myrank = myrank;
    attr->args.uid_args.nranks = nranks;
    return NVSHMEMX_SUCCESS;
}

#ifdef MPI_VERSION
/* Rank 0 of the communicator gives an id to the others. */
EXPAR_NV_HOST int expar_nv_start_by_mpi(MPI_Comm comm)
{
    nvshmemx_uniqueid_t id;
    int rank = 0, size = 0;
    memset(&id, 0, sizeof id);
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS)
        return expar_nvshmem_rejects("nvshmemx_init_attr: MPI does not know the communicator",
                                     NVSHMEMX_ERROR_INVALID_VALUE);
    if (rank == 0) nvshmemx_get_uniqueid(&id);
    if (MPI_Bcast(&id, (int)sizeof id, MPI_BYTE, 0, comm) != MPI_SUCCESS)
        return expar_nvshmem_rejects("nvshmemx_init_attr: MPI_Bcast failed", NVSHMEMX_ERROR_INTERNAL);
    expar_nvshmem_start(&id.expar, rank, size);
    return NVSHMEMX_SUCCESS;
}
#endif

/* Starts as nvshmem_init does. flags: NVSHMEMX_INIT_WITH_UNIQUEID, after nvshmemx_set_attr_uniqueid_args;
   NVSHMEMX_INIT_WITH_MPI_COMM, which needs <mpi.h> before this header; 0: nvshmem_init. */
EXPAR_NV_HOST int nvshmemx_init_attr(unsigned int flags, nvshmemx_init_attr_t *attributes)
{
    const char *what = NULL;
    if (flags & ~(NVSHMEMX_INIT_WITH_MPI_COMM | NVSHMEMX_INIT_WITH_UNIQUEID))
        what = "nvshmemx_init_attr: expected NVSHMEMX_INIT_WITH_UNIQUEID or NVSHMEMX_INIT_WITH_MPI_COMM as flags";
    else if (flags && !attributes)
        what = "nvshmemx_init_attr: attributes is NULL";
    else if ((flags & NVSHMEMX_INIT_WITH_UNIQUEID) && !attributes->args.uid_args.id)
        what = "nvshmemx_init_attr: nvshmemx_set_attr_uniqueid_args has not set an id";
    else if ((flags & NVSHMEMX_INIT_WITH_MPI_COMM) && !attributes->mpi_comm)
        what = "nvshmemx_init_attr: attributes->mpi_comm is NULL";
    if (what) return expar_nvshmem_rejects(what, NVSHMEMX_ERROR_INVALID_VALUE);
    if (flags & NVSHMEMX_INIT_WITH_UNIQUEID) {
        const nvshmemx_uniqueid_args_t *uid = &attributes->args.uid_args;
        expar_nvshmem_start(&uid->id->expar, uid->myrank, uid->nranks);
        return NVSHMEMX_SUCCESS;
    }
    if (flags & NVSHMEMX_INIT_WITH_MPI_COMM) {
#ifdef MPI_VERSION
        return expar_nv_start_by_mpi(*(MPI_Comm *)attributes->mpi_comm);
#else
        return expar_nvshmem_rejects("nvshmemx_init_attr: include <mpi.h> before <nvshmemx.h> to start by MPI",
                                     NVSHMEMX_ERROR_NOT_SUPPORTED);
#endif
    }
    nvshmem_init();
    return NVSHMEMX_SUCCESS;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* By the CUDA runtime: these are there under nvcc, and if its header comes before this one. */
#if defined(__CUDACC__) || defined(__CUDA_RUNTIME_API_H__)
/* How many blocks of the kernel run at the same time on this PE's GPU. */
EXPAR_NV_HOST int nvshmemx_collective_launch_query_gridsize(const void *func, dim3 blockDims, void **args,
                                                            size_t sharedMem, int *gridsize)
{
    int device = 0, blocks = 0, processors = 0;
    (void)args;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, func, (int)(blockDims.x * blockDims.y * blockDims.z),
                                                      sharedMem) != cudaSuccess)
        return expar_nvshmem_rejects("nvshmemx_collective_launch: CUDA does not know the kernel, or the block's size",
                                     NVSHMEMX_ERROR_INVALID_VALUE);
    *gridsize = blocks * processors;
    return NVSHMEMX_SUCCESS;
}

/* Collective. Launches a kernel so that all its blocks run at the same time. Blocks that wait for each other, or for
   other PEs, need that. A grid of 0 blocks takes as many as fit. */
EXPAR_NV_HOST int nvshmemx_collective_launch(const void *func, dim3 gridDims, dim3 blockDims, void **args,
                                             size_t sharedMem, cudaStream_t stream)
{
    int most = 0;
    expar_nvshmem_prepare();
    const int status = nvshmemx_collective_launch_query_gridsize(func, blockDims, args, sharedMem, &most);
    if (status != NVSHMEMX_SUCCESS) return status;
    if (gridDims.x == 0 || gridDims.y == 0 || gridDims.z == 0) {
        gridDims.x = (unsigned int)most;
        gridDims.y = gridDims.z = 1;
    }
    if ((unsigned long long)gridDims.x * gridDims.y * gridDims.z > (unsigned long long)most)
        return expar_nvshmem_rejects("nvshmemx_collective_launch: the grid has more blocks than run at the same time",
                                     NVSHMEMX_ERROR_INVALID_VALUE);
    if (cudaLaunchCooperativeKernel(func, gridDims, blockDims, args, sharedMem, stream) != cudaSuccess)
        return expar_nvshmem_rejects("nvshmemx_collective_launch: CUDA does not launch the kernel",
                                     NVSHMEMX_ERROR_INTERNAL);
    return NVSHMEMX_SUCCESS;
}
#endif

#endif
#endif
