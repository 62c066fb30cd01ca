/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that alltoall(s) exchange, and their way by leaders. Private to pgas/team. */
#ifndef EXPAR_PGAS_TEAM_BLOCKS_H
#define EXPAR_PGAS_TEAM_BLOCKS_H

#include "pgas/team/collective.h"

/* A block as it stands in source and dest; plain blocks have elements of one byte, one after the other. Equal on all
   members. */
typedef struct blocks {
    size_t element_bytes, count;   /* of a block */
    size_t dest_step, source_step; /* from one element to the next, in bytes */
} blocks;

static inline bool blocks_plain(const blocks *b)
{
    return b->element_bytes == 1 && b->dest_step == 1 && b->source_step == 1;
}

/* The most elements of each block that one round by leaders carries; 0: not even one. */
size_t relay_elements(const expar_team *team, const blocks *b);
/* Elements [first, first + count) of all blocks. Collective. */
expar_status relay_round(const collective *c, const blocks *b, size_t first, size_t count);

#endif
