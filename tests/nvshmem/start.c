/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes start by a unique id, twice; and starts that are rejected. */
#include "expect.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PES = 2 };

static void rejected_starts(void)
{
    nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
    EXPECT(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_SHMEM, &attr) == NVSHMEMX_ERROR_INVALID_VALUE);
    EXPECT(nvshmemx_init_attr(1u << 9, &attr) == NVSHMEMX_ERROR_INVALID_VALUE);
    EXPECT(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, NULL) == NVSHMEMX_ERROR_INVALID_VALUE);
    EXPECT(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr) == NVSHMEMX_ERROR_INVALID_VALUE);
    EXPECT(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_MPI_COMM, &attr) == NVSHMEMX_ERROR_INVALID_VALUE);
    attr.mpi_comm = &attr;
    EXPECT(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_MPI_COMM, &attr) == NVSHMEMX_ERROR_NOT_SUPPORTED);
    EXPECT(nvshmem_my_pe() == -1);
}

/* Starts, adds this PE's number to a word of PE 0, and ends. */
static void run_pe(const nvshmemx_uniqueid_t *id, int pe)
{
    nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
    EXPECT(!nvshmemx_set_attr_uniqueid_args(pe, PES, id, &attr));
    EXPECT(!nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr));
    EXPECT(nvshmem_my_pe() == pe && nvshmem_n_pes() == PES);
    long *sum = nvshmem_calloc(1, sizeof *sum);
    nvshmem_long_atomic_add(sum, pe + 1, 0);
    nvshmem_barrier_all();
    EXPECT(nvshmem_long_g(sum, 0) == 3);
    nvshmem_finalize();
    EXPECT(nvshmem_my_pe() == -1);
}

/* The processes are forked before the id is made, because a thread of this process then serves the id. A child that is
   forked later may inherit locks that the thread held. Each child reads the id from the pipe. */
int main(void)
{
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    pid_t children[PES];
    int ends[2];
    int wrong = 0;
    rejected_starts();
    if (pipe(ends)) return 1;
    for (int pe = 0; pe < PES; pe++) {
        children[pe] = fork();
        if (children[pe] == 0) {
            close(ends[1]);
            EXPECT(read(ends[0], &id, sizeof id) == (ssize_t)sizeof id);
            run_pe(&id, pe);
            run_pe(&id, pe);
            _exit(0);
        }
    }
    EXPECT(nvshmemx_get_uniqueid(&id) == NVSHMEMX_SUCCESS);
    for (int pe = 0; pe < PES; pe++)
        EXPECT(write(ends[1], &id, sizeof id) == (ssize_t)sizeof id);
    close(ends[1]);
    for (int pe = 0; pe < PES; pe++) {
        int status = 1;
        wrong |= waitpid(children[pe], &status, 0) != children[pe] || status != 0;
    }
    return wrong;
}
