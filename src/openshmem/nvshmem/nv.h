/* SPDX-License-Identifier: Apache-2.0 */
/* openshmem/nvshmem: NVSHMEM's names on top of expar's public calls; a library of its own, libexpar-nvshmem.
 *
 * Called by programs through expar/compat/nvshmem.h, most of whose functions are inline. The library keeps what these
 * share: the group, the teams by their numbers, and the handles of kernels. It calls nothing of expar but the public
 * interface. Every call checks its status by exit_must. */
#ifndef EXPAR_OPENSHMEM_NVSHMEM_NV_H
#define EXPAR_OPENSHMEM_NVSHMEM_NV_H

#define EXPAR_NVSHMEM_CPU_KERNELS
#include <expar/compat/nvshmem.h>

#include "openshmem/exit.h"

#include <pthread.h>

/* The memory is not known before the first allocation. */
typedef enum nv_memory { NV_UNKNOWN = 0, NV_DEVICE, NV_HOST } nv_memory;

/* Between nvshmem_init and nvshmem_finalize. Collective calls alone write it, one thread of a PE at a time. */
typedef struct nv_job {
    expar_group *group; /* NULL: not started, or ended */
    expar_team *teams[EXPAR_NV_TEAMS];
    nv_memory memory;
    int32_t device; /* this PE's GPU, if memory is NV_DEVICE */
    /* [EXPAR_NV_TEAMS] of the teams; one without PEs is none. For GPUs `table` is a copy in this PE's device memory. */
    expar_device_handle handles[EXPAR_NV_TEAMS];
    expar_device_handle *table;
} nv_job;
extern nv_job nv;

/* Chooses the memory, and gives all teams handles. Collective; later calls do nothing. */
void nv_prepare(void);
/* Gives one team a handle, if the memory is known, or takes it away. */
void nv_handle_make(nvshmem_team_t team);
void nv_handle_drop(nvshmem_team_t team);
/* Ends the job if a kernel's call with any handle has failed. */
void nv_check_kernels(void);

/* Forgets what is registered, after which the group ends. */
void nv_registered_end(void);

/* The GPU of the calling thread; 0 if nobody has chosen one. */
int32_t nv_modules_device(void);
/* Fills the variables of all modules, and of those that come later, until nv_modules_end. */
void nv_modules_begin(const expar_nv_state *state);
void nv_modules_end(void);

#endif
