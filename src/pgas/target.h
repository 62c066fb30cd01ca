/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks that the public one-sided calls share. Private to pgas. */
#ifndef EXPAR_PGAS_TARGET_H
#define EXPAR_PGAS_TARGET_H

#include "pgas/context.h"

/* Checks the group, that it is sound, and that pe is one of its ranks. */
expar_status target_check_pe(const char *call, expar_group *group, int32_t pe);
/* Checks that [address, address + bytes) is symmetric and gives its offset; `name` is the argument's. */
expar_status target_check_range(const char *call, expar_group *group, const char *name, const void *address,
                                size_t bytes, uint64_t *offset);
/* A word of 2, 4 or 8 bytes: symmetric, and aligned to its size. */
expar_status target_check_word(const char *call, expar_group *group, const char *name, const void *address,
                               size_t bytes, uint64_t *offset);
/* The link by which the operation goes to pe, whose number has been checked. EXPAR_ERR_UNSUPPORTED: nothing there does
   what it needs (link_needs). */
expar_status target_link(const ops_origin *from, int32_t pe, unsigned needs, link_peer *out);

#endif
