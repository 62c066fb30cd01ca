/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks that the public one-sided calls share. Private to pgas. */
#ifndef EXPAR_PGAS_TARGET_H
#define EXPAR_PGAS_TARGET_H

#include "group/group.h"

/* Checks the group, that it is sound, and that pe is one of its ranks. */
expar_status target_check_pe(const char *call, expar_group *group, int32_t pe);
/* Checks that [address, address + bytes) is symmetric and gives its offset; `name` is the argument's. */
expar_status target_check_range(const char *call, expar_group *group, const char *name, const void *address,
                                size_t bytes, uint64_t *offset);
/* A word of 2, 4 or 8 bytes: symmetric, and aligned to its size. */
expar_status target_check_word(const char *call, expar_group *group, const char *name, const void *address,
                               size_t bytes, uint64_t *offset);
/* The transport in `table` for pe, or EXPAR_ERR_UNSUPPORTED. */
expar_status target_transport(const char *call, expar_group *group, transport *const *table, int32_t pe,
                              transport **out);

#endif
