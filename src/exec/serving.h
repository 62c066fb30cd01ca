/* SPDX-License-Identifier: Apache-2.0 */
/* In which order the warps of a GPU serve the ranks of a call in normal mode, and how many rows they have on their way
 * at a time. Each rank chooses for itself: what is computed is the same. Compiles as C17, by nvcc and by NVRTC. */
#ifndef EXPAR_EXEC_SERVING_H
#define EXPAR_EXEC_SERVING_H

#include "base/portable.h"

typedef enum ep_order {
    EP_ORDER_ASCENDING = 0, /* by number, so that all ranks begin with the same one */
    EP_ORDER_ROTATED = 1,   /* from the rank behind this one on, this rank last */
    EP_ORDER_OWN_FIRST = 2, /* from this rank on */
    EP_ORDER_SPREAD = 3     /* the others from another one on for each token, this rank last */
} ep_order;

typedef struct ep_serving {
    int32_t order;     /* ep_order */
    int32_t rows;      /* a warp has one on its way: so many on the whole GPU at most; 0: as many as warps fit */
    int32_t own_warps; /* of each block, that carry a dispatch's rows for this rank and no others; 0: all carry both */
    int32_t unused;
} ep_serving;

/* The rank that is served as the number-th of a token's. */
PORTABLE_FUNC int32_t ep_served(const ep_serving *s, int32_t rank, int32_t ranks, int64_t token, int32_t number)
{
    const int32_t others = ranks - 1;
    int32_t behind = s->order == EP_ORDER_OWN_FIRST ? number : number + 1; /* this rank */
    if (s->order == EP_ORDER_ASCENDING) return number;
    if (s->order == EP_ORDER_SPREAD && number < others) {
        behind += (int32_t)((uint32_t)token % (uint32_t)others);
        if (behind > others) behind -= others;
    }
    return rank + behind < ranks ? rank + behind : rank + behind - ranks;
}

#endif
