/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks that the public one-sided calls share. Private to pgas. */
#ifndef EXPAR_PGAS_TARGET_H
#define EXPAR_PGAS_TARGET_H

#include "pgas/context.h"
#include "shmem/kinds.h"

/* Checks the group, that it is sound, and that pe is one of its ranks. */
expar_status target_check_pe(const char *call, expar_group *group, int32_t pe);
/* Checks that [address, address + bytes) is symmetric memory, and gives its place; `name` is the argument's. */
expar_status target_check_place(const char *call, expar_group *group, const char *name, const void *address,
                                size_t bytes, kinds_place *place);
/* A word of 2, 4 or 8 bytes: the same, and aligned to its size. */
expar_status target_check_word(const char *call, expar_group *group, const char *name, const void *address,
                               size_t bytes, kinds_place *place);
/* Checks memory of the caller's that the CPU reads or writes, such as results; NULL is allowed. EXPAR_ERR_ADDRESS: it
   is memory of a GPU. */
expar_status target_check_host(const char *call, const expar_group *group, const char *name, const void *address);
/* The link by which the operation goes to that memory of pe, whose number has been checked. `local` is the caller's
   side of a put or a get, or NULL. EXPAR_ERR_UNSUPPORTED: nothing there does what it needs (link_needs). */
expar_status target_link(const ops_origin *from, int32_t pe, transport_memory memory, unsigned needs, const void *local,
                         link_peer *out);
/* Copies this rank's own device memory to ordinary memory. What arrived there before the call is seen. */
expar_status target_load(const char *call, const expar_group *group, const void *address, void *out, size_t bytes);
/* After a put to that place of pe, which may wait for words in it. */
void target_ring(const expar_group *group, int32_t pe, const kinds_place *place, size_t bytes);

#endif
