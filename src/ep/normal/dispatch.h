/* SPDX-License-Identifier: Apache-2.0 */
/* One dispatch on its way; shared by dispatch.c, dispatch_check.c, dispatch_output.c and dispatch_room.c only. */
#ifndef EXPAR_EP_NORMAL_DISPATCH_H
#define EXPAR_EP_NORMAL_DISPATCH_H

#include "ep/normal/opening.h"

typedef struct dispatch_call {
    ep_call base;
    ep_brings brings;
    expar_dispatch_args args;
    ep_opening opening;           /* of these */
    expar_recv_counts counts;     /* that the caller wants */
    const expar_ep_handle *given; /* the caller's handle, or NULL */
    expar_ep_handle *made;        /* by a fresh dispatch */
    ep_destination to;
    expar_ep_output
        *ahead;      /* an output that has no destination yet: with room for rows that are not known, or being made */
    bool sent_ahead; /* they fit: the rows are on their way already */
    bool fills_map;  /* of the handle: none has before */
    uint64_t room_bytes;   /* of the room, that are offered */
    bool lacks_room;       /* there was none, but growth would make some */
    bool grows;            /* all ranks' pools grow before rows move, and this rank has not come to it yet */
    expar_status growth;   /* how it went: not OK, the ranks are out of step */
    ep_dispatch_step step; /* between send and receive */
} dispatch_call;

static inline bool dispatch_cached(const dispatch_call *call)
{
    return call->given != NULL;
}

/* The output's size is known before the others are asked: from the handle, or as the worst case. */
static inline bool dispatch_sized(const dispatch_call *call)
{
    return dispatch_cached(call) || call->args.num_worst_tokens;
}

static inline const expar_ep_handle *dispatch_handle(const dispatch_call *call)
{
    return dispatch_cached(call) ? call->given : call->made;
}

/* The caller's own memory for a part of the results (expar_ep_part); NULL: the library's. */
static inline const expar_tensor *dispatch_own(const dispatch_call *call, int part)
{
    const expar_dispatch_args *args = &call->args;
    const expar_tensor *const own[EP_DISPATCH_PARTS] = {[EXPAR_EP_PART_X] = &args->out_x,
                                                        [EXPAR_EP_PART_SCALES] = &args->out_scales,
                                                        [EXPAR_EP_PART_TOPK_IDX] = &args->out_topk_idx,
                                                        [EXPAR_EP_PART_TOPK_WEIGHTS] = &args->out_topk_weights,
                                                        [EXPAR_EP_PART_ROW_MAP] = &args->out_row_map,
                                                        [EXPAR_EP_PART_SRC_TOKEN] = &args->out_src_token,
                                                        [EXPAR_EP_PART_ROW_WEIGHTS] = &args->out_row_weights,
                                                        [EXPAR_EP_PART_SRC_METADATA] = &args->out_src_metadata};
    return own[part] && tensor_given(own[part]) ? own[part] : NULL;
}

/* Of column-major scales, elements from column to column; 0: they are not. */
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
/* Fills args and given, and looks at everything that can be wrong with them. */
expar_status dispatch_check(dispatch_call *call, const expar_dispatch_args *args, const expar_dispatch_result *result);

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */
/* Offers and rows, as a step. */
ep_dispatch_step dispatch_step(const dispatch_call *call);

/* ---- dispatch_output.c ------------------------------------------------------------------------------------------- */
/* What the results are to be, as far as rows are known. */
ep_wish dispatch_wish(const dispatch_call *call);
/* Takes the memory of all results, whose rows the handle tells. A graph that is being captured keeps them. */
expar_status dispatch_make_output(dispatch_call *call);
/* The output's numbers of tokens for each expert, of a fresh dispatch whose counts are known; *sum of them. */
expar_status dispatch_count_experts(const dispatch_call *call, expar_ep_output *output, int64_t *sum);
/* Sizes of the blocks that the call takes, where they are known before the others are asked; returns how many. */
int32_t dispatch_sizes_ahead(dispatch_call *call, uint64_t sizes[3]);
/* The output found no room in the pool, which was to have it. */
bool dispatch_lies_beside(const dispatch_call *call);
/* Takes part in the growth of the pools, if there is one and it has not: for the blocks of the call where these are
   sized. */
void dispatch_grow(dispatch_call *call, bool sized);
/* Rows that have arrived, to where the results are to be. */
expar_status dispatch_arrange(dispatch_call *call);

/* ---- dispatch_room.c --------------------------------------------------------------------------------------------- */
/* Makes the output of a fresh dispatch, with room for what may come, where the executor takes rooms, the pool has some,
   and nothing can go wrong with it afterwards: an offer of room is binding where the rows fit. */
void dispatch_room_take(dispatch_call *call);
/* Of what was taken. */
ep_room dispatch_room(const dispatch_call *call);
/* Leaves the room what the rows need, which are known now, or gives it back where they do not fit. */
void dispatch_room_settle(dispatch_call *call);

#endif
