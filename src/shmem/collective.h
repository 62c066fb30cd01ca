/* SPDX-License-Identifier: Apache-2.0 */
/* What the collectives share. Private to shmem. */
#ifndef EXPAR_SHMEM_COLLECTIVE_H
#define EXPAR_SHMEM_COLLECTIVE_H

#include "shmem/target.h"
#include "shmem/team.h"
#include <expar/collective.h>

/* A collective's arguments as all kinds have them. */
typedef struct collective {
    const char *call;
    expar_team *team;
    void *dest;
    const void *source;
    uint64_t dest_offset; /* of dest in the heap, once checked */
} collective;

/* Checks the team, that dest is symmetric over dest_bytes (0: none is needed), and that there is a source. */
expar_status collective_check(collective *c, size_t dest_bytes, size_t source_bytes);
/* The product of two sizes, or an error. */
expar_status collective_bytes(const char *call, size_t count, size_t bytes, size_t *product);
/* Member that comes `step` behind this one; each member so starts with another one. */
static inline int32_t collective_next(const expar_team *team, int32_t step)
{
    return (int32_t)(((int64_t)team->me + step) % team->size);
}
/* Tells all others, and hears them all. */
expar_status collective_tell_others(const collective *c);
expar_status collective_hear_others(const collective *c);
/* This member's own part of a result. */
void collective_copy(void *to, const void *from, size_t bytes);

#endif
