/* SPDX-License-Identifier: Apache-2.0 */
/* launch: how a subcommand starts its own ranks when nobody has started them. */
#ifndef EXPAR_TOOL_LAUNCH_H
#define EXPAR_TOOL_LAUNCH_H

#include <stdbool.h>

/* True when this process was started as a rank: by expar run, torchrun, Open MPI's mpirun, or a process manager
   that speaks PMIx (srun --mpi=pmix). */
bool launch_inside(void);
/* The ranks of the job that this process is a rank of; 0: not in one, or its launcher's variables do not tell. */
int launch_job_size(void);

/* Before anything asks for a GPU: ranks that are threads of this process need a hardware queue each, and kernels that
   are there before others wait for them. What a user has set stays. */
void launch_prepare_gpus(void);

/* Runs num_ranks copies of this very program as the ranks of one job, with a subcommand's arguments (argv[0] is its
   name, as the subcommand got them). They share this process's stdout and stderr; rank 0 has its stdin. Returns the
   job's exit code: 0 when every rank ended with 0, else that of the first that failed (128 + signal). Prints what went
   wrong. bind: each rank stays on one core. */
int launch_self(int num_ranks, bool bind, int argc, char **argv);

#endif
