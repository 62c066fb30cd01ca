/* SPDX-License-Identifier: Apache-2.0 */
/* Deals: one routing with all its options, and moves: the calls that are made with it, checked against the oracle.
 *
 * Unlike traffic, deals are drawn by every rank for itself from one random source, so that a run of any length keeps
 * little in memory. A move is started and finished apart: in between others may run, when it is asynchronous. */
#ifndef TESTS_EP_HARNESS_DEAL_H
#define TESTS_EP_HARNESS_DEAL_H

#include "ep/harness/trial.h"

/* Whether a call whose wait_event is still to come keeps its caller waiting, asynchronous or not. So it is on GPUs: no
   test may then signal the event after such a call. */
#ifndef EVENTS_HOLD_UP_THE_CALLER
#define EVENTS_HOLD_UP_THE_CALLER false
#endif

/* Whether a test is shown counts that the host does not know when a call returns. So it is on GPUs, where they are read
   from the handle. */
#ifndef COUNTS_ARE_SHOWN
#define COUNTS_ARE_SHOWN false
#endif

typedef enum deal_worst {
    WORST_NONE,
    WORST_EXACT,     /* W = R; where R is 0 that means none */
    WORST_ONE_SHORT, /* W = R - 1 */
    WORST_ONE,       /* W = 1 */
    WORST_LARGER,    /* W = R + 3 */
    WORST_KINDS
} deal_worst;

/* The number of rows of an expert-major output that a first dispatch gives. X: what it would have without. */
typedef enum deal_limit {
    LIMIT_NONE,
    LIMIT_EXACT, /* X; where X is 0 that means none */
    LIMIT_ONE_SHORT,
    LIMIT_HALF,
    LIMIT_LARGER, /* X + 3 */
    LIMIT_KINDS
} deal_limit;

/* How x_scales lie in memory. */
typedef enum deal_scales {
    SCALES_CONTIGUOUS,
    SCALES_TRANSPOSED, /* [S][T] in memory */
    SCALES_SPREAD,     /* gaps between all of them */
    SCALES_REVERSED,   /* columns by a negative stride */
    SCALES_ORDERS
} deal_scales;

/* In which order a combine adds rows. */
typedef enum deal_order { ORDER_BY_RANK, ORDER_BY_SLOT, ORDER_EACH_SLOT, ORDERS } deal_order;

/* How one rank makes one call. All zero is the plain way. */
typedef struct deal_choice {
    expar_ep_path path;
    trial_place place;  /* of recv_x, of a combine's x (PLACE_LIBRARY: private) */
    int32_t pad;        /* as in trial_choice */
    bool null_if_empty; /* tensors with zero extents have no memory */
    bool async;
    int32_t num_sms;   /* of the call; 0: the buffer's */
    bool expert_major; /* of a repeat or combine: only where the first dispatch was */
    /* Dispatches: */
    bool zero_padding;
    bool row_weights; /* where there are any */
    bool counts;      /* recv_counts is given, and topk_idx_copy of a fresh one with topk_idx */
    uint32_t own; /* bit i: the part i (expar_ep_part) of the results but recv_x is the caller's own, as far as there */
    bool own_symmetric; /* is one; in the area, where it fits */
    deal_scales scales;
    bool column_scales; /* of the result */
    int32_t alignment;  /* these two: of the first dispatch */
    deal_worst worst;
    deal_limit limit; /* of the first dispatch, where it is expert-major */
    /* Combines: */
    bool expert_weights; /* with expert_major */
    int32_t biases;      /* bit i: bias[i] is given */
} deal_choice;

typedef struct deal_plan {
    int32_t num_ranks, topk /* 0: without topk_idx, by hand alone */, num_experts;
    int32_t ranks_per_node; /* 0: one node */
    bool wide, with_weights;
    bool by_hand;     /* token_in_rank is given */
    bool keep_slots;  /* of the first dispatch; with topk_idx */
    bool with_counts; /* tokens_per_expert is given, without topk_idx */
    routing_kind routing;
    int64_t disturb;
    const int64_t *num_tokens;  /* [N] */
    const deal_choice *choices; /* [N] of the first dispatch */
} deal_plan;

typedef struct deal {
    oracle_job job; /* without rows */
    bool wide, with_weights, keep_slots;
    oracle_input *inputs; /* [N] */
    deal_choice *choices; /* [N] */
} deal;

deal *deal_make(const deal_plan *plan, random_source *random);
void deal_free(deal *d);
/* The job as `rank` sees it: with its alignment. */
oracle_job deal_job_of(const deal *d, int32_t rank);

typedef enum move_kind { MOVE_DISPATCH, MOVE_REPEAT, MOVE_COMBINE } move_kind;

/* One rank's arguments may be refused: as soon as they are looked at, or once it knows how much it will receive. */
typedef enum move_rejection { REJECTION_NONE, REJECTION_EARLY, REJECTION_LATE /* not of a combine */ } move_rejection;

/* The part of a move that is equal on all ranks. */
typedef struct move_form {
    move_kind kind;
    oracle_type type;
    int32_t hidden;
    int32_t num_scales; /* of dispatches; 0: none */
    bool packed;        /* scales are i32 */
    bool with_weights;  /* these three of a combine; order: EACH_SLOT wants expert_major choices */
    deal_order order;
    bool owners_weights;
    oracle_nodes nodes;              /* of a combine */
    bool src_tokens, global_experts; /* of dispatches */
    int32_t src_stride;              /* likewise; 0: none */
    bool routed;                     /* of a first dispatch: expar_ep_route comes before it, and makes the handle */
    bool with_topk; /* of a repeat: topk_idx, and topk_weights if the deal has them, are carried again */
    move_rejection rejection;
    int32_t refuser; /* the rank that is refused; late: one that receives rows */
} move_form;

/* One call of all ranks with its data. */
typedef struct deal_move {
    const deal *deal;
    move_form form;
    oracle_job job;       /* the deal's, with type, hidden, scales and rows */
    oracle_input *inputs; /* [N] */
    deal_choice *choices; /* [N] */
    /* Combines, [N] each: */
    void **x;                  /* [rows][H] or expert-major */
    uint32_t **weights;        /* [rows][K], or [expert-major rows][1] (move_weighs_rows) */
    uint32_t **expert_weights; /* [rows][K], or NULL */
    void **bias[2];            /* [T][H], or NULL */
} deal_move;

/* choices: [N], copied; those of a first dispatch are the deal's. */
deal_move *move_make(const deal *d, const move_form *form, const deal_choice *choices, random_source *random);
void move_free(deal_move *m);

expar_dtype deal_dtype(oracle_type type);
/* Rows of a combine's x on a rank. */
int64_t move_num_x_rows(const deal_move *m, int32_t rank);
/* Its weights are one an expert-major row; then their extents. */
bool move_weighs_rows(const deal_move *m, int32_t rank);
int64_t move_num_weights_rows(const deal_move *m, int32_t rank);
int64_t move_weights_width(const deal_move *m, int32_t rank);

/* Whether the move is one call that learns of routing and rows at once. */
static inline bool move_is_fresh(const move_form *form)
{
    return form->kind == MOVE_DISPATCH && !form->routed;
}

/* One rank's part in one move. */
typedef struct deal_call {
    const deal_move *move;
    int32_t rank;
    expar_ep_dispatch_args args;
    expar_ep_route_result route;
    expar_ep_recv_counts counts; /* arrays of the call's own */
    expar_ep_dispatch_result result;
    expar_ep_combine_args back;
    void *memory[2];    /* the caller's own recv_x; scales */
    void *own[9];       /* what it has of other parts */
    size_t area_used;   /* by all of these */
    expar_event *event; /* of an asynchronous call */
    bool started;
    bool issued; /* it runs, or has run, to its end */
    bool told;   /* a dispatch whose R the host knew when it returned */
} deal_call;

/* area: for PLACE_SYMMETRIC. handle: of the deal's first dispatch, for the others. wait_event: NULL or the event that
   the call waits for. True when the call went as it had to, which may be a rejection. */
bool deal_call_start(deal_call *call, expar_ep *ep, const deal_move *m, int32_t rank, const trial_area *area,
                     const expar_ep_handle *handle, expar_event *wait_event);
/* The status that the call ends with: EXPAR_ERR_DROPPED where rows do not fit, or that of a rejection. */
expar_status deal_call_ending(const deal_call *call);
/* The status that the call itself returns: an asynchronous one ends otherwise only at its event. */
expar_status deal_call_returning(const deal_call *call);
/* The same, where the call has returned `status` on this buffer. One without limits that is to grow for a call hears of
   an early rejection at once, also where the call is asynchronous. The deal does not know whether it has to grow. */
expar_status deal_call_returning_on(const deal_call *call, const expar_ep *ep, expar_status status);
/* Waits for the end, compares everything, and frees all but the handle. */
bool deal_call_finish(deal_call *call);

/* Both at once, for moves that stand alone. */
bool deal_call_make(deal_call *call, expar_ep *ep, const deal_move *m, int32_t rank, const trial_area *area,
                    const expar_ep_handle *handle);

/* ---- between the files of the harness ---------------------------------------------------------------------------- */

/* The content of the caller's own outputs before a dispatch, and how many rows longer than needed they are. */
#define DEAL_SPARE_BYTE 0x5a
#define DEAL_SPARE_ROWS 2

static inline int64_t move_row_bytes(const deal_move *m)
{
    return m->form.hidden * (int64_t)oracle_element_bytes(m->form.type);
}

static inline bool move_carries_topk(const deal_move *m)
{
    return m->job.topk && (m->form.kind == MOVE_DISPATCH || m->form.with_topk);
}

static inline bool move_tells_sources(const move_form *form)
{
    return form->src_tokens || form->src_stride;
}

static inline bool deal_call_weighs_rows(const deal_call *call)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    return choice->row_weights && choice->expert_major && move_carries_topk(call->move) &&
           call->move->deal->with_weights;
}

bool deal_dispatch_start(deal_call *call, expar_ep *ep, const trial_area *area, const expar_ep_handle *handle,
                         expar_event *wait_event);
bool deal_dispatch_check(const deal_call *call);
/* For a dispatch or a route: the counts where the tensors lie. */
bool deal_told_check(const deal_call *call);
void deal_dispatch_clean(deal_call *call);
bool deal_combine_start(deal_call *call, expar_ep *ep, const trial_area *area, const expar_ep_handle *handle,
                        expar_event *wait_event);
bool deal_combine_check(const deal_call *call);
void deal_combine_clean(deal_call *call);

#endif
