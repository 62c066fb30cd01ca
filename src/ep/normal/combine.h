/* SPDX-License-Identifier: Apache-2.0 */
/* A combine in progress; shared by combine.c, combine_check.c and plan.c only. */
#ifndef EXPAR_EP_NORMAL_COMBINE_H
#define EXPAR_EP_NORMAL_COMBINE_H

#include "ep/normal/plan.h"

typedef struct combine_call {
    ep_call base;
    ep_requirements brings;
    expar_ep_combine_args args;
    ep_plan plan;
    ep_combine_step step; /* between send and receive */
} combine_call;

static inline int64_t combine_row_bytes(const combine_call *call)
{
    return call->args.x.shape[1] * (int64_t)expar_dtype_bytes(call->args.x.dtype);
}

/* Rows that this rank has, or may have where the host does not know. */
static inline int64_t combine_rows_held(const combine_call *call)
{
    const expar_ep_handle *handle = call->args.handle;
    return handle->recv_tokens < 0 ? handle->rows : handle->recv_tokens;
}

/* Every expert-major row travels, and the owner adds them. */
static inline bool combine_adds_each_slot(const combine_call *call)
{
    return call->args.sum_order == EXPAR_EP_SUM_ORDER_EACH_SLOT;
}

/* Otherwise one row for each token travels, which is made of them. */
static inline bool combine_reduces(const combine_call *call)
{
    return call->args.expert_major && !combine_adds_each_slot(call);
}

static inline bool combine_wants_owners_weights(const combine_call *call)
{
    return call->args.weights_of == EXPAR_EP_WEIGHTS_OF_OWNER && tensor_given(&call->args.topk_weights);
}

/* There is one weight for each expert-major row. */
static inline bool combine_weighs_rows(const combine_call *call)
{
    return call->args.expert_major && combine_wants_owners_weights(call);
}

static inline bool combine_goes_row_by_row(const combine_call *call)
{
    return call->args.nodes_sum == EXPAR_EP_NODES_SUM_ONE_ORDER && call->base.buffer->exec->by_node;
}

/* ---- combine_check.c --------------------------------------------------------------------------------------------- */
/* Fills args, and checks them. */
expar_status combine_check(combine_call *call, const expar_ep_combine_args *args,
                           const expar_ep_combine_result *result);

/* ---- plan.c ------------------------------------------------------------------------------------------------------ */
/* Fills the plan, and takes the memory that it needs. A graph that is being captured keeps it. On failure plan_release
   frees what is held. */
expar_status combine_plan(combine_call *call);

#endif
