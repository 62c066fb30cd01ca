/* SPDX-License-Identifier: Apache-2.0 */
/* One combine on its way; shared by combine.c and combine_check.c only. */
#ifndef EXPAR_EP_NORMAL_COMBINE_H
#define EXPAR_EP_NORMAL_COMBINE_H

#include "ep/normal/normal.h"

typedef struct combine_call {
    ep_call base;
    ep_brings brings;
    expar_combine_args args;
    mem_block *reduced;                                /* expert-major: one row a token */
    mem_block *spread;                                 /* expert-major: weights of its rows, at their slots */
    mem_block *staged_x, *staged_weights, *staged_map; /* copies of what peers could not reach where it is */
    const void *x;                                     /* the rows that travel: the caller's, or the reduced ones */
    int64_t x_rows, x_pitch_bytes;
    const float *weights; /* that travel, [R][K]: the caller's, or the spread ones; NULL: none */
    int64_t weights_pitch;
    ep_mode mode;
    uint64_t x_offset, weights_offset, map_offset; /* in the heap, when DIRECT; or of these mappings */
    exec_mapping x_mapping, weights_mapping;       /* of the caller's memory, where peers read it */
    bool x_mapped;
    ep_combine_step step; /* between send and receive */
} combine_call;

/* Every expert-major row travels, and the owner adds them. */
static inline bool combine_adds_each_slot(const combine_call *call)
{
    return call->args.sum_order == EXPAR_SUM_EACH_SLOT;
}

static inline bool combine_wants_owners_weights(const combine_call *call)
{
    return call->args.weights_of == EXPAR_WEIGHTS_OF_OWNER && tensor_given(&call->args.topk_weights);
}

/* Weights are given one an expert-major row. */
static inline bool combine_weighs_rows(const combine_call *call)
{
    return call->args.expert_major && combine_wants_owners_weights(call);
}

static inline bool combine_goes_row_by_row(const combine_call *call)
{
    return call->args.exact_across_nodes == EXPAR_NODES_ONE_ORDER && call->base.buffer->exec->by_node;
}

/* ---- combine_check.c --------------------------------------------------------------------------------------------- */
/* Fills args, and looks at everything that can be wrong with them. */
expar_status combine_check(combine_call *call, const expar_combine_args *args);

#endif
