/* SPDX-License-Identifier: Apache-2.0 */
/* The places of the rows of one dispatch or combine on this rank, and their way. plan.c decides both once, before the
 * call is sent. All later steps follow that. */
#ifndef EXPAR_EP_NORMAL_PLAN_H
#define EXPAR_EP_NORMAL_PLAN_H

#include "ep/normal/normal.h"

/* One part of the rows: where peers write or read it, and where the caller has it. The two are one place, or one is a
   copy of the other: made after the rows of a dispatch have come, before those of a combine go. */
typedef struct ep_plan_place {
    void *data;           /* the result, or what a combine returns; NULL: the call is without the part */
    void *travels;        /* where peers write or read it; NULL: it is made on this rank */
    uint64_t offset;      /* of that, where the way is DIRECT: in the heap, or in the mapping */
    uint64_t bytes;       /* that a copy has; 0: another step makes one of the two from the other */
    int64_t pitch_bytes;  /* of a combine, from row to row */
    exec_mapping mapping; /* of the caller's memory, where peers read it */
} ep_plan_place;

enum { EP_PLAN_BLOCKS = 5 };
typedef struct ep_plan {
    ep_mode mode;                         /* the way of this rank's rows: the path that is counted */
    int64_t rows;                         /* there is space for so many */
    ep_plan_place parts[EP_OUTPUT_PARTS]; /* by expar_ep_part; of a combine: x, weights, row map */
    expar_ep_output *output;              /* of a dispatch: owns its blocks, and goes to the caller */
    mem_block *blocks[EP_PLAN_BLOCKS];    /* of a combine: the plan's own */
    int32_t num_blocks;
    bool mapped, copied; /* peers read a combine's rows where the caller has them, beside the heap; or in a copy */
} ep_plan;

/* ---- plan.c ------------------------------------------------------------------------------------------------------ */
/* In a capture: the graph keeps what its kernels touch, whatever becomes of the caller's references. */
expar_status plan_keep(const ep_call *call, const ep_plan *plan, const expar_ep_handle *handle);
/* In a capture: lists the addresses of the parts and of the handle's map. */
void plan_list(const ep_plan *plan, const expar_ep_handle *handle, exec_replay *replay);
/* Copies each part that has two places: to where the caller has it, or (back) from there. */
expar_status plan_copy(ep_call *call, const ep_plan *plan, bool back);
/* The call has ended well: counts it in the statistics. */
void plan_count(expar_ep *ep, const ep_plan *plan);
/* Gives back all that the plan holds. One of zeros is allowed. */
void plan_release(const ep_call *call, ep_plan *plan);

#endif
