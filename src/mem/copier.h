/* SPDX-License-Identifier: Apache-2.0 */
/* copier: copies by the driver for calls of the host, between memory of GPUs and of CPUs.
 *
 * Called by shmem and link; calls cuda and base. A copy is complete when the call returns. Copies use streams of the
 * copier's own. So they wait for none of the caller's streams, and no call waits for a whole context. Host memory that
 * the driver does not know passes through pinned pieces, two at a time, unless the caller has registered it. All memory
 * and all streams are made with the copier, because making them may wait for kernels. */
#ifndef EXPAR_MEM_COPIER_H
#define EXPAR_MEM_COPIER_H

#include "mem/registry.h"

/* MEM_PINNED is host memory that the driver has registered, in pieces that end at multiples of MEM_REGISTERED_UNIT.
   MEM_DEVICE covers managed memory, too. */
#define MEM_REGISTERED_UNIT ((uint64_t)2 << 20)
typedef enum mem_side_kind { MEM_PAGEABLE, MEM_PINNED, MEM_DEVICE } mem_side_kind;
/* One side of a copy. */
typedef struct mem_side {
    void *at;
    mem_side_kind kind;
} mem_side;
/* The part of a side that begins after `bytes` bytes. */
static inline mem_side mem_side_after(mem_side side, uint64_t bytes)
{
    return (mem_side){.at = (uint8_t *)side.at + bytes, .kind = side.kind};
}

typedef struct mem_copier mem_copier;
/* A stream with its pinned pieces. One thread uses it at a time. */
typedef struct mem_lane mem_lane;
enum { MEM_LANE_PIECES = 2 };

/* Opens the GPU of that index for itself. Memory of the registry, which may be NULL, is pinned as long as the copier
   lives. EXPAR_ERR_MEMORY: there is no pinned memory left. */
expar_status mem_copier_create(int32_t index, mem_registry *registry, mem_copier **out);
/* No copy is in progress any more. NULL is allowed. */
void mem_copier_destroy(mem_copier *copier);

/* Gives the core away between two looks at work of a GPU; looks: how many there were. */
void mem_copier_rest(int64_t looks);

/* Copies [source, source + bytes) to dest; they do not overlap. Any thread may call it. While others use all lanes, it
   waits for one of them. Copies from device memory to device memory, which may wait for kernels, do not keep others
   waiting. */
expar_status mem_copier_copy(mem_copier *copier, mem_side dest, mem_side source, uint64_t bytes);

/* Takes a lane for several copies; waits while others use all of them. */
mem_lane *mem_copier_borrow(mem_copier *copier);
void mem_copier_return(mem_copier *copier, mem_lane *lane);
/* Returns a lane that mem_copier_borrow never gives, so that no other thread's copy delays the one that uses it. */
mem_lane *mem_copier_own_lane(mem_copier *copier);
/* As mem_copier_copy, on that lane. */
expar_status mem_lane_copy(mem_lane *lane, mem_side dest, mem_side source, uint64_t bytes);
/* Returns a pinned piece, of *bytes bytes. Copies through pieces overwrite it: only those with a side of MEM_PAGEABLE
   do. */
mem_side mem_lane_piece(const mem_lane *lane, int32_t number, uint64_t *bytes);

#endif
