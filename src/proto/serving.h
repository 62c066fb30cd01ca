/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the warps of a GPU's dispatch serve the ranks, and the number of rows that they keep under way
 * (docs/internals/measurements/gpu.md, "Orders of ranks"). The benchmark includes this header, too, so that its copies
 * have the same order. It compiles as C17, by nvcc and by NVRTC. */
#ifndef EXPAR_PROTO_SERVING_H
#define EXPAR_PROTO_SERVING_H

#include "base/portable.h"

/* Returns the number-th rank that `rank` serves: itself, then the next ones, so that no two ranks start with the same
   one. */
PORTABLE_FUNC int32_t ep_served(int32_t rank, int32_t ranks, int32_t number)
{
    return rank + number < ranks ? rank + number : rank + number - ranks;
}

/* The most rows that a GPU keeps under way, one for each warp. More rows would only meet on the links. */
#define EP_ROWS_UNDER_WAY 180

/* Returns how many warps each of so many blocks uses. `fit` have space for a row, and `least` is the minimum. With many
   blocks of few warps each, rounding down would keep less than three quarters of the rows under way. Then it is one
   more. */
PORTABLE_FUNC int32_t ep_warps_under_way(int32_t blocks, int32_t fit, int32_t least)
{
    int32_t warps = EP_ROWS_UNDER_WAY / blocks;
    if (warps * blocks < EP_ROWS_UNDER_WAY * 3 / 4) warps++;
    warps = warps < least ? least : warps;
    return warps < fit ? warps : fit;
}

#endif
