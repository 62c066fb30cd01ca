/* SPDX-License-Identifier: Apache-2.0 */
/* pmix: rank, size and meeting place from a process manager that speaks PMIx: mpirun of Open MPI, srun --mpi=pmix. */
#ifndef EXPAR_BOOT_PMIX_H
#define EXPAR_BOOT_PMIX_H

#include "boot/boot.h"

/* Fills rank and size, and makes (rank 0) or gets the unique id; waits for rank 0 as long as request->timeout_ms. Sets
   request->own_id on rank 0. EXPAR_ERR_UNSUPPORTED: this build has no PMIx, or
   its library cannot be loaded; the text says how to get it. */
expar_status boot_pmix_request(boot_request *request);
#endif
