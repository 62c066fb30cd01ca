/* SPDX-License-Identifier: Apache-2.0 */
/* launch: reads what a launcher has told this process: boot_request_from_env and boot_request_end of boot.h.
 *
 * Called by the group through boot.h; calls meet.h (ids, the roll), wire and base. Nothing here is for other folders.
 *
 *   environment.c   expar run, torchrun, Open MPI: by variables
 *   pmix.c          PMIx: by its library, which the process manager answers; pmix_absent.c in builds without it */
#ifndef EXPAR_BOOT_LAUNCH_LAUNCH_H
#define EXPAR_BOOT_LAUNCH_LAUNCH_H

#include "boot/boot.h"

/* Gets rank, size and meeting place from a process manager that speaks PMIx: mpirun of Open MPI, srun --mpi=pmix. Fills
   rank and size, and makes (rank 0) or gets the unique id; waits for rank 0 as long as request->timeout_ms. Sets
   request->own_id on rank 0. EXPAR_ERR_UNSUPPORTED: this build has no PMIx, or its library cannot be loaded; the text
   says how to get it. */
expar_status boot_pmix_request(boot_request *request);

#endif
