/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the collectives. Private to pgas/team.
 *
 * A collective works on *circles* (team.h). Where all members are one node, or each is one, that is the circle of all
 * members. Else it goes in three steps if it is small, or would cross the network more than once a node. They are:
 * inside each node to its leader, in the circle of leaders, and from the leaders to their nodes (fan.c). choice.h says
 * what is small. */
#ifndef EXPAR_PGAS_TEAM_COLLECTIVE_H
#define EXPAR_PGAS_TEAM_COLLECTIVE_H

#include "pgas/pgas.h"
#include "pgas/team/choice.h"
#include "pgas/team/team.h"
#include <expar/collective.h>

/* A collective's arguments as all kinds have them. */
typedef struct collective {
    const char *call;
    expar_team *team;
    void *dest;
    const void *source;
    kinds_place dest_place; /* of dest, once checked */
} collective;

/* The place that begins after `bytes` bytes. */
static inline kinds_place place_after(kinds_place place, uint64_t bytes)
{
    return (kinds_place){.memory = place.memory, .offset = place.offset + bytes};
}

/* Checks the team, that dest is symmetric over dest_bytes (0: none is needed), and that there is a source. */
expar_status collective_check(collective *c, size_t dest_bytes, size_t source_bytes);
/* Computes the bytes of an argument of the size `count`, with `each` bytes for each of it. Where that is no size the
   member's argument is rejected. The team is sound. */
expar_status collective_bytes(const collective *c, const char *argument, size_t count, size_t each, size_t *bytes);
/* Copies this member's own part of a result; each side may be of any kind. */
expar_status collective_copy(const expar_team *team, void *to, const void *from, size_t bytes);

/* Bytes at the offset `at` of everybody's dest. */
typedef struct span {
    size_t at, bytes;
} span;
/* Puts this member's part of dest, which lies at `source`, into the dest of all others of the circle, and waits for
   theirs. */
expar_status collective_spread(const collective *c, const circle *among, const void *source, span part);

/* ---- inside a node (fan.c) --------------------------------------------------------------------------------------- */

/* The leader hears that all of its node have come. */
expar_status fan_in(const circle *node, const char *call);

/* Data that a node's leader gives to all of its node. */
typedef struct fan {
    int32_t lead;         /* the leader's place */
    kinds_place from, to; /* where the leader has it, and where the others get it */
    size_t bytes;
} fan;
expar_status fan_out(const circle *node, const char *call, const fan *what);
/* Part of dest, from the node's first member to the others. */
expar_status fan_out_dest(const collective *c, span part);

#endif
