/* SPDX-License-Identifier: Apache-2.0 */
/* launch: lets a subcommand start its own ranks if no launcher has started them. */
#ifndef EXPAR_TOOL_LAUNCH_H
#define EXPAR_TOOL_LAUNCH_H

#include <stdbool.h>

/* True when this process was started as a rank: by expar run, torchrun, Open MPI's mpirun, or a process manager
   that speaks PMIx (srun --mpi=pmix). */
bool launch_inside(void);
/* Returns the number of ranks of this process's job. 0: it is in no job, or its launcher's variables do not say. */
int launch_job_size(void);

/* Call this before any use of a GPU. Ranks that are threads of this process need a hardware queue each, because running
   kernels wait for kernels of other ranks. Variables that the user has set stay. */
void launch_prepare_gpus(void);

/* Runs num_ranks copies of this very program as the ranks of one job, with a subcommand's arguments (argv[0] is its
   name, as the subcommand got them). They share this process's stdout and stderr; rank 0 has its stdin. Returns the
   job's exit code: 0 when every rank ended with 0, else that of the first that failed (128 + signal). Prints what went
   wrong. bind: each rank stays on one core. */
int launch_self(int num_ranks, bool bind, int argc, char **argv);

#endif
