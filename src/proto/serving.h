/* SPDX-License-Identifier: Apache-2.0 */
/* In which order the warps of a GPU's dispatch serve the ranks, and how many rows they have on their way at a time
 * (docs/internals/measurements/gpu.md, "Orders of ranks"). The benchmark includes this, too: its copies are served
 * alike. Compiles as C17, by nvcc and by NVRTC. */
#ifndef EXPAR_PROTO_SERVING_H
#define EXPAR_PROTO_SERVING_H

#include "base/portable.h"

/* The number-th rank that `rank` serves: itself, then those behind it, so that no two begin with the same one. */
PORTABLE_FUNC int32_t ep_served(int32_t rank, int32_t ranks, int32_t number)
{
    return rank + number < ranks ? rank + number : rank + number - ranks;
}

/* Rows that a GPU has on their way, each by a warp: more of them only meet on the links. */
#define EP_ROWS_UNDER_WAY 180

/* Warps of each of so many blocks, of which `fit` have room for a row, and at least `least`. One more where three
   quarters of the rows were not under way else: many blocks have few warps each. */
PORTABLE_FUNC int32_t ep_warps_under_way(int32_t blocks, int32_t fit, int32_t least)
{
    int32_t warps = EP_ROWS_UNDER_WAY / blocks;
    if (warps * blocks < EP_ROWS_UNDER_WAY * 3 / 4) warps++;
    warps = warps < least ? least : warps;
    return warps < fit ? warps : fit;
}

#endif
