/* SPDX-License-Identifier: Apache-2.0 */
/* pgas: the public calls on symmetric memory: its allocation, put and get, atomics, signals, waits, locks, contexts.
 *
 * Called by programs, the tools and openshmem through include/expar (memory, globals, rma, atomics, wait, lock,
 * context), and by pgas/team, which makes teams and collectives, through this header. Calls pgas/team (team.h), link,
 * group, shmem, net (p2p/access.h) and base. It stands beside ep: neither knows the other.
 *
 * A call checks its arguments (target.h). It takes the short way where the PE is mapped here (direct.h). Else it starts
 * an operation by a link, which takes a transport or the proxy's ring (link/link.h). */
#ifndef EXPAR_PGAS_PGAS_H
#define EXPAR_PGAS_PGAS_H

#include "pgas/context.h"
#include "pgas/target.h"

#endif
