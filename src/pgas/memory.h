/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and steps that the calls of expar/memory.h share. Private to pgas. */
#ifndef EXPAR_PGAS_MEMORY_H
#define EXPAR_PGAS_MEMORY_H

#include "group/group.h"
#include "shmem/kinds.h"
#include <expar/memory.h>

/* A public call begins: the group stays while it runs, even if a thread abandons it meanwhile. EXPAR_OK: memory_leave
   ends it. */
expar_status memory_enter(expar_group *group, const char *what);
/* Returns status. After a success, handles of kernels know the group's memory as it is now. */
expar_status memory_leave(expar_group *group, expar_status status);
/* Completes this rank's operations, also those of its kernels, before a block goes. */
expar_status block_settle(const expar_group *group, const char *what);
/* Collective. All ranks come here with the same block, or none of them goes on. place NULL: no block. own: this rank's
   rejection of its arguments. */
expar_status memory_agree_on_block(sym *sym, const char *what, const kinds_place *place, expar_status own);

/* Gives the memory of that kind. EXPAR_ERR_ARGUMENT: the value names none; `name` is the argument's. */
expar_status memory_find_kind(const char *what, const char *name, int kind, transport_memory *out);

#endif
