/* SPDX-License-Identifier: Apache-2.0 */
/* pgas/device: handles, by which kernels use symmetric memory (include/expar/device.h has their side).
 *
 * Programs call it through include/expar/device_handle.h. pgas and pgas/team call it by this header when heaps have
 * grown, and when a team or a context ends. It calls pgas/team, group, shmem, boot, mem, cuda and base.
 *
 *   slot.c     the state of a handle, in memory that kernels reach; the process keeps it for later handles
 *   table.c    what the state says of heaps and ranks
 *   ways.c     by what kernels reach each rank: mapped memory, or rings of the proxy (shmem/rings.h)
 *   handles.c  all handles of a group
 *   guard.c    a thread that looks after waits of kernels, as that of exec/cuda/core does for expert parallelism
 *   launched.c launches that have not ended, during which the threads of the rings spin
 *   get.c, error.c, launch.c  the public calls */
#ifndef EXPAR_PGAS_DEVICE_HANDLES_H
#define EXPAR_PGAS_DEVICE_HANDLES_H

#include "group/group.h"
#include "pgas/pgas.h"
#include "pgas/team/team.h"

/* Call it when a heap may have grown: the group's handles then serve the new memory. */
void handles_renew(expar_group *group);
/* The team or the context ends, and with it its handles. They are still whole. */
void handles_end_of_team(const expar_team *team);
void handles_end_of_context(const expar_ctx *ctx);
/* Completes what kernels with handles of the group have started, and that have ended. Any thread. */
expar_status handles_quiet(const char *what, const expar_group *group);

#endif
