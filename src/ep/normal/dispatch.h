/* SPDX-License-Identifier: Apache-2.0 */
/* A dispatch in progress; shared by the files of dispatch, request.c and plan.c only. */
#ifndef EXPAR_EP_NORMAL_DISPATCH_H
#define EXPAR_EP_NORMAL_DISPATCH_H

#include "ep/normal/plan.h"
#include "ep/normal/prologue.h"

#include <stddef.h>

typedef struct dispatch_call {
    ep_call base;
    ep_requirements brings;
    expar_ep_dispatch_args args;
    ep_prologue prologue;         /* of these */
    expar_ep_recv_counts counts;  /* that the caller wants */
    const expar_ep_handle *given; /* the caller's handle, or NULL */
    expar_ep_handle *made;        /* by a fresh dispatch */
    ep_plan plan;                 /* its output may exist before: while it is made, or with spare memory for rows */
    uint64_t offered_bytes;       /* of spare memory, advertised before the number of rows is known; 0: none */
    uint64_t lacking_bytes;       /* of spare memory that the pool lacked; 0: it had enough, or was not asked */
    bool sent_ahead;              /* the rows fit the advertised memory, and are already on their way */
    bool fills_map;               /* of the handle: none has before */
    bool grows;                   /* all ranks' pools grow before rows move, and this rank has not done so yet */
    expar_status growth;          /* the result of growing; not OK: the ranks are out of step */
    ep_dispatch_step step;        /* between send and receive */
} dispatch_call;

static inline bool dispatch_cached(const dispatch_call *call)
{
    return call->given != NULL;
}

/* Says whether the output's size is known before the header exchange: from the handle, or as the worst case. */
static inline bool dispatch_sized(const dispatch_call *call)
{
    return dispatch_cached(call) || call->args.num_worst_tokens;
}

static inline const expar_ep_handle *dispatch_handle(const dispatch_call *call)
{
    return dispatch_cached(call) ? call->given : call->made;
}

/* Returns the caller's own memory for a part of the results (expar_ep_part); NULL: the library's. */
static inline const expar_tensor *dispatch_own(const dispatch_call *call, int part)
{
    static const size_t own[EP_DISPATCH_PARTS] = {
        [EXPAR_EP_PART_X] = offsetof(expar_ep_dispatch_args, out_x),
        [EXPAR_EP_PART_SCALES] = offsetof(expar_ep_dispatch_args, out_scales),
        [EXPAR_EP_PART_TOPK_IDX] = offsetof(expar_ep_dispatch_args, out_topk_idx),
        [EXPAR_EP_PART_TOPK_WEIGHTS] = offsetof(expar_ep_dispatch_args, out_topk_weights),
        [EXPAR_EP_PART_ROW_MAP] = offsetof(expar_ep_dispatch_args, out_row_map),
        [EXPAR_EP_PART_SRC_TOKEN] = offsetof(expar_ep_dispatch_args, out_src_token),
        [EXPAR_EP_PART_ROW_WEIGHTS] = offsetof(expar_ep_dispatch_args, out_row_weights),
        [EXPAR_EP_PART_SRC_METADATA] = offsetof(expar_ep_dispatch_args, out_src_metadata)};
    const expar_tensor *tensor = (const void *)((const char *)&call->args + own[part]);
    return own[part] && tensor_given(tensor) ? tensor : NULL;
}

/* Returns the number of elements from column to column of column-major scales; 0: they are not column-major. */
static inline int64_t dispatch_scales_pitch(const dispatch_call *call)
{
    const expar_tensor *own = dispatch_own(call, EXPAR_EP_PART_SCALES);
    const expar_ep_handle *handle = dispatch_handle(call);
    if (!call->args.column_scales) return 0;
    if (own && own->shape[1] > 1) return own->strides[1];
    return (int64_t)ep_column_pitch(call->args.expert_major ? handle->expert_rows : handle->rows);
}

static inline bool dispatch_weighs_rows(const dispatch_call *call)
{
    return call->args.row_weights || tensor_given(&call->args.out_row_weights);
}

static inline int64_t dispatch_row_bytes(const dispatch_call *call)
{
    const expar_tensor *x = &call->args.x;
    return x->shape[1] * (int64_t)expar_dtype_bytes(x->dtype);
}

/* ---- dispatch_check.c -------------------------------------------------------------------------------------------- */
/* Fills args and given, and checks them. */
expar_status dispatch_check(dispatch_call *call, const expar_ep_dispatch_args *args,
                            const expar_ep_dispatch_result *result);
/* Returns the name of the argument for a part: "out_x" for EXPAR_EP_PART_X, and so on. */
const char *dispatch_out_name(int part);

/* ---- plan.c ------------------------------------------------------------------------------------------------------ */
/* Fills the plan, whose output exists, and takes the memory of all results, whose rows the handle knows. A graph that
   is being captured keeps them. On failure the output has been freed. */
expar_status dispatch_plan(dispatch_call *call);
/* Says that the output did not fit into the pool, where it should be. */
bool dispatch_lies_beside(const dispatch_call *call);

/* ---- request.c --------------------------------------------------------------------------------------------------- */
/* Fills the sizes of the blocks that the call takes, if its rows are known; returns their number. */
int32_t dispatch_sizes(const dispatch_call *call, uint64_t sizes[3]);
/* Does the same if they are known before the header exchange; else returns 0. */
int32_t dispatch_sizes_ahead(dispatch_call *call, uint64_t sizes[3]);
/* Makes the output of a fresh dispatch, with spare memory for rows that may come. It does so if the executor sends
   ahead, the pool has memory, and nothing can fail afterwards: this advertisement is binding if the rows fit. */
void dispatch_take_spare(dispatch_call *call);
/* Returns the spare memory that was taken, for the advertisement. */
ep_free_space dispatch_advert_spare(const dispatch_call *call);
/* Trims the spare memory to the rows, whose number is now known, or frees it if they do not fit. */
void dispatch_settle_spare(dispatch_call *call);

/* ---- dispatch_results.c ------------------------------------------------------------------------------------------ */
/* Moves rows that have arrived to the places of the results. */
expar_status dispatch_arrange(dispatch_call *call);
/* Fills the caller's result; the output keeps those tensors that are in it. */
void dispatch_tell(const dispatch_call *call, expar_ep_dispatch_result *result);

#endif
