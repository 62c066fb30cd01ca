/* SPDX-License-Identifier: Apache-2.0 */
/* How the phases of a low-latency call are carried out: the seam between ep/low_latency and its executors.
 *
 * Called by ep/low_latency only; ep checks arguments and takes memory for results, executors own the buffer's memory
 * and the words between ranks, epochs included. exec/cpu/low_latency and exec/cuda/low_latency are the two that there
 * are. What the words are, and where they lie, is in proto/low_latency.h.
 *
 * A call has two phases. The send takes the call's epoch, tells all ranks of it by opening units, and puts rows on
 * their way; the receive takes what the others have sent. In between there may be other calls, two of a kind open at a
 * time, which are received in any order. A call that this rank refuses has no receive: its units tell the others. */
#ifndef EXPAR_EXEC_LOW_LATENCY_H
#define EXPAR_EXEC_LOW_LATENCY_H

#include "exec/executor.h"
#include "exec/step.h"
#include "group/members.h"
#include "proto/low_latency.h"
#include "proto/reserve.h"

/* What both kinds of call have. */
typedef struct ll_call {
    uint64_t number; /* twice that of the buffer's call, and one more for a combine: what waits are noted for
                        (boot_topic) */
    ll_form form;
    /* In: why ep refuses the call; status 0: it does not. Out of send: what the executor refuses it for,
       EXPAR_ERR_STATE among them. EXPAR_ERR_INDEX is no refusal but a report: such a call goes on without the tokens.
       */
    ep_refusal refusal;
    uint64_t epoch;     /* out of send */
    bool open;          /* out of send: a receive is to follow */
    bool whole;         /* the receive follows the send at once */
    mem_block *record;  /* the executor's, between the phases of a call with a hook: given back with the hook */
    int64_t *wait_ns;   /* [N], added to by receive; NULL: not wanted */
    ep_verdict verdict; /* out of receive; of forms that differ the other rank's, and this one's in the same call */
} ll_call;

/* What a dispatch leaves for combines; its arrays lie in the block (ll_route_map_of) and are filled by receive, but for
   idx, which send fills. */
typedef struct ll_routing {
    mem_block *block;
    int32_t tokens, topk, weights; /* T, K; 1: weights came along */
    uint32_t route;                /* stamp of the dispatch */
    int64_t *range;
    int32_t *src_info, *messages, *idx, *returns;
    uint8_t *headers;
} ll_routing;

typedef struct ll_dispatch_step {
    ll_call call;
    int32_t tokens;
    const void *x;
    int64_t x_pitch_bytes;
    bool x_stays; /* until receive is done; else x may change once send is */
    ep_route_view route;
    ll_routing *routing; /* block and arrays are there */
    /* Results, with the strides that expar/low_latency.h gives them; filled by receive. */
    void *out_x, *out_scales;
    int32_t *out_count;
    int32_t *stats; /* [L], added to; NULL: not wanted */
} ll_dispatch_step;

typedef struct ll_combine_step {
    ll_call call;
    const void *x;
    int64_t x_expert_pitch_bytes, x_row_pitch_bytes;
    bool x_stays; /* as above */
    ep_route_view
        route; /* topk_idx, which is compared with the dispatch's; weights, which stay until receive is done */
    const ll_routing *routing;
    void *y;
    int64_t y_pitch_bytes;
} ll_combine_step;

/* A clean of masks. */
typedef struct ll_clean_step {
    ll_call call;   /* the refusal, and the verdict: the ranks that refuse */
    uint64_t calls; /* in: that this rank has made; out: the most that any has */
} ll_clean_step;

/* When the warps of a call's last kernel came where, on this rank: microseconds from the first one's start, by the
   GPU's clock. For benchmarks. */
typedef struct ll_times {
    double started_us;              /* the last one's start */
    double sent_middle_us, sent_us; /* its part of its last row stored: the median of those that send, and the last */
    double seen_us;                 /* the last flag that one waits for; as the others 0 where there is none */
    double done_us, ended_us;       /* the last one through with its work, and the kernel */
} ll_times;

/* What a buffer has done, for expar_ll_get_stats. Raised by the threads that make a call, read by any; relaxed. */
typedef struct ll_counts {
    uint64_t heap_bytes; /* of symmetric heap, from the beginning on */
    _Atomic uint64_t dispatches, combines, dispatch_messages, combine_rows, bytes_sent;
} ll_counts;

/* Beside executor_ops, whose `begin`, `place` and `end` stand around each of the two phases; or around both, where the
   receive follows at once. Every slot is filled, but where NULL has a meaning. One thread of the rank is in an
   operation at a time, but for halt and take. A refusal of this rank's is in step->call.refusal (prepare, send), one of
   any in step->call.verdict (receive); a call that ep refuses needs no place. */
typedef struct ll_ops {
    /* Before the call takes its place: may wait until the other ranks have laid out the buffer's shape. */
    expar_status (*prepare)(executor *self, ll_call *call);
    /* Both may wait for other ranks: for units where the half's call before was not read, for the reading of a half. */
    expar_status (*dispatch_send)(executor *self, exec_call *call, ll_dispatch_step *step);
    expar_status (*combine_send)(executor *self, exec_call *call, ll_combine_step *step);
    /* Of a call that is open, once: until all that the others sent is where it belongs. The verdict tells whether the
       results are whole; rank -1 where it is not known yet. */
    expar_status (*dispatch_receive)(executor *self, exec_call *call, ll_dispatch_step *step);
    expar_status (*combine_receive)(executor *self, exec_call *call, ll_combine_step *step);
    /* Brings the buffer's counts up to date. Any thread. */
    const ll_counts *(*count)(executor *self);
    /* As normal_ops.times. */
    bool (*times)(executor *self, ll_times *out);
    /* With masks: masks another rank, or takes that back. EXPAR_ERR_STATE, EXPAR_ERR_LIMIT. */
    expar_status (*mask_set)(executor *self, int32_t rank, bool masked);
    /* status: [N], 1 for masked ranks; where the data lies, by the stream of an executor that streams. */
    expar_status (*mask_query)(executor *self, int32_t *status, void *stream);
    /* Collective among the ranks that come. */
    expar_status (*mask_clean)(executor *self, ll_clean_step *step);
    /* Whether the device can carry calls of the shape out. NULL: any. */
    bool (*fits)(executor *self, const ll_shape *shape);
    /* Gives a reserve its shape, which it holds, and which no call has had yet. Local. EXPAR_ERR_MEMORY: it has none,
       as before. */
    expar_status (*lay_out)(executor *self, const ll_shape *shape);
} ll_ops;

/* ---- making ------------------------------------------------------------------------------------------------------ */

typedef struct ll_plan {
    struct expar_group *group;
    uint32_t number;       /* of the buffer in its group, the same on all ranks */
    const ll_shape *shape; /* unmapped: peers are reached through transports alone, even where they are mapped */
    expar_device device;
    int32_t num_threads; /* CPU: of a rank; 0: by the cores of the host */
    int32_t num_sms;     /* CUDA: of a call; 0: the library's choice */
    /* With masks: of this buffer's waits, where it is less than the group's; 0: none of its own. */
    int64_t late_limit_ms;
    uint64_t reserve_bytes; /* 0: the shape is there; else it has ranks and masks alone, and lay_out has the rest */
} ll_plan;
/* Collective: takes the buffer's memory, with all words zero; all ranks are made, or none is. EXPAR_ERR_UNSUPPORTED: a
   rank's memory cannot be reached as it would have to be, or the device cannot carry such calls out. */
typedef expar_status (*ll_create_fn)(const ll_plan *plan, executor **out);
/* NULL: there is none for such a device. */
ll_create_fn ll_create_of(expar_device_type type);

/* ---- low_latency.c ----------------------------------------------------------------------------------------------- */
/* EXPAR_ERR_MISMATCH, with the first member in which the other rank's shape is another one. */
expar_status ll_shape_differs(const ll_shape *own, int32_t own_rank, const ll_shape_words *said, int32_t rank);
/* Until the ranks that come to a clean have agreed (group/members.h). epochs: of the last call of each kind here; where
   no rank refuses those after which calls go on. What a rank says, this one among them, is in step->call.verdict. */
expar_status ll_clean_agree(group_members *members, ll_clean_step *step, uint64_t epochs[LL_KINDS]);

#endif
