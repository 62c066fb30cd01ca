/* SPDX-License-Identifier: Apache-2.0 */
/* What a dispatch wants to receive; shared by wish.c and plan.c only. */
#ifndef EXPAR_EP_NORMAL_WISH_H
#define EXPAR_EP_NORMAL_WISH_H

#include "ep/normal/dispatch.h"

#define PART_BIT(part) (1u << (part))

typedef struct wish {
    ep_block_shape shape; /* of all results; x_rows differs from rows when expert-major */
    bool expert_major;
    bool rows_known; /* the host knows how many rows come; else they are at most shape.rows */
    expar_path path;
    const expar_tensor *out[EP_DISPATCH_PARTS]; /* the caller's memory for a part (expar_ep_part); NULL: ours */
    uint32_t staged; /* bits of parts that come to a block first, and are copied to the caller's memory */
} wish;

/* As far as rows are known: from the handle. Nothing is staged. */
wish wish_of(const dispatch_call *call);
/* Bytes of one row of a part that rows bring along; 0: none does. */
int64_t wish_row_bytes(const wish *w, int part);
/* The part is made on this rank: the map, and what goes by it. */
bool wish_makes(const wish *w, int part);
/* Expert-major rows and scales come to a block of their own first. */
bool wish_expands(const wish *w, int part);
/* A step makes the result of what has come. */
bool wish_remakes(const wish *w, int part);
/* Rows of the part come straight to the caller's memory, unless they are staged. */
bool wish_arrives_there(const wish *w, int part);
/* The part has its place in the block of the results. */
bool wish_in_block(const wish *w, int part);
/* The block of the results, without what is the caller's. */
ep_block_map wish_block(const wish *w);
/* That of token-major rows and scales on their way to an expert-major output. */
ep_block_map wish_arrival(const wish *w);
/* Where a part begins in a block. */
uint64_t wish_begin(const ep_block_map *map, int part);
/* No block is empty. */
static inline uint64_t wish_at_least_one(uint64_t bytes)
{
    return bytes ? bytes : 1;
}

#endif
