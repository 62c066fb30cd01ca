/* SPDX-License-Identifier: Apache-2.0 */
/* pgas/stream: calls on symmetric memory in the order of a stream (expar/stream.h).
 *
 * Programs call it through include/expar/stream.h, and pgas through this header. It calls pgas, pgas/team, group,
 * shmem, cuda and base. There are two ways. Where the stream's GPU reaches both sides, the driver's copies and writes
 * of words carry the data (call.c). Else the stream asks a thread of the library, and waits until that thread has
 * carried out the host's call (job.c, cuda/command.h). Waits and collectives take the second way, too: the thread ends
 * a wait if a rank is lost. Every operation has arrived when its stream goes on, so fence and quiet put nothing on the
 * stream. */
#ifndef EXPAR_PGAS_STREAM_STREAM_H
#define EXPAR_PGAS_STREAM_STREAM_H

#include "group/group.h"
#include "pgas/pgas.h"

/* Prepares the group's calls on streams, if that has not been done: takes pinned memory and starts a thread. Local. The
   group has memory of a GPU or pinned memory. A failure is logged; the next call on a stream tries again. */
void stream_prepare(expar_group *group);

/* Returns the first failure of a call on a stream with the context, or with the group (ctx NULL), as this thread's last
   error. Afterwards it counts as returned. */
expar_status stream_failure_take(const expar_group *group, const expar_ctx *ctx);

#endif
