/* SPDX-License-Identifier: Apache-2.0 */
/* group, tools' part: what the tools of this repository see of a group beyond the public calls.
 *
 * Called by `expar check`, which compares hosts; calls boot. boot.h also has what it asks about interfaces and ids. */
#ifndef EXPAR_GROUP_TOOLS_H
#define EXPAR_GROUP_TOOLS_H

#include "group/group.h"

/* Returns the address at which the other ranks met this one; "": all ranks are on one host. */
static inline const char *group_ip(const expar_group *group)
{
    return group->boot->ip;
}

/* Returns a number that is equal for two ranks if they are on one host. */
static inline uint64_t group_host(const expar_group *group, int32_t rank)
{
    return group->boot->places[rank].host;
}

#endif
