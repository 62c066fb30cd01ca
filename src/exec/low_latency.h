/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between ep/low_latency and its executors: how the phases of a low-latency call are carried out.
 *
 * Only ep/low_latency calls it. ep checks arguments and takes memory for results. Executors own the buffer's memory and
 * the words between ranks, epochs included. There are two: exec/cpu/low_latency and exec/cuda/low_latency.
 * proto/low_latency.h says what the words are, and where they lie.
 *
 * A call has two phases. The send takes the call's epoch, announces it to all ranks by message headers, and sends rows.
 * The receive takes what the others have sent. In between there may be other calls. Two of a kind may be open at a
 * time, and are received in any order. A call that this rank rejects has no receive: its headers tell the others. */
#ifndef EXPAR_EXEC_LOW_LATENCY_H
#define EXPAR_EXEC_LOW_LATENCY_H

#include "exec/executor.h"
#include "exec/step.h"
#include "group/members.h"
#include "proto/low_latency.h"
#include "proto/reserve.h"
#include "proto/signals.h"

/* The members of both kinds of call, with which the step of either begins. */
typedef struct ll_call {
    ll_kind kind;
    /* Twice the number of the buffer's call, plus one for a combine. The wait registry names waits by it
       (boot_topic). */
    uint64_t number;
    ll_form form;
    /* In: why ep rejects the call; status 0: it does not. Out of send: why the executor rejects it, for example
       EXPAR_ERR_STATE. EXPAR_ERR_INDEX is no rejection but a report: such a call goes on without the tokens. */
    ep_rejection rejection;
    uint64_t epoch; /* out of send */
    bool open;      /* out of send: a receive must follow */
    bool whole;     /* the receive follows the send at once */
    /* For the executor, between the phases of a call with a hook; freed with the hook. */
    mem_block *record;
    int64_t *wait_ns; /* [N], receive adds to it; NULL: not wanted */
    /* Out of receive. If forms differ it has the other rank's form, and this one's in the same call. */
    ep_vote vote;
} ll_call;

/* The routing that a dispatch leaves for combines. Its arrays lie in the block (ll_route_map_of). Send fills idx, and
   receive fills the others. */
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
    bool x_stays;              /* until receive has ended; else x may change once send has ended */
    const float *global_scale; /* of NVFP4, where the data lies; read by send */
    ep_route_view route;
    ll_routing *routing; /* block and arrays are there */
    /* Results, with the strides that expar/low_latency.h gives them. Receive fills them. */
    void *out_x, *out_scales;
    int32_t *out_count;
    int32_t *stats; /* [L], receive adds to it; NULL: not wanted */
} ll_dispatch_step;

typedef struct ll_combine_step {
    ll_call call;
    const void *x;
    int64_t x_expert_pitch_bytes, x_row_pitch_bytes;
    bool x_stays; /* as in ll_dispatch_step */
    ep_route_view
        route; /* topk_idx, which is compared with the dispatch's; weights, which stay until receive is done */
    const ll_routing *routing;
    /* Send waits for these before it reads x, unless ll_ops.await_signals exists. words NULL: there are none. */
    ll_signals signals;
    void *y;
    int64_t y_pitch_bytes;
} ll_combine_step;

/* A clean of masks. */
typedef struct ll_clean_step {
    ll_call call;   /* the rejection, and the result of the vote: which ranks reject */
    uint64_t calls; /* in: how many this rank has made; out: the most that any rank has made */
} ll_clean_step;

/* Moments at which the warps of a call's last kernel reached certain points on this rank. They are in microseconds from
   the first warp's start, by the GPU's clock. For benchmarks. */
typedef struct ll_times {
    double started_us; /* the start of the last warp */
    /* The warps have stored their part of their last row: the median of the warps that send, and the last one. */
    double sent_middle_us, sent_us;
    /* The last awaited flag was seen. This one and the others are 0 if there is no such moment. */
    double seen_us;
    double done_us, ended_us; /* when the last warp finished its work, and when the kernel ended */
} ll_times;

/* Counts of a buffer's work, for expar_ll_get_stats. The threads that make a call raise them, any thread reads them;
   relaxed. */
typedef struct ll_counts {
    uint64_t heap_bytes; /* of the symmetric heap, constant */
    _Atomic uint64_t dispatches, combines, dispatch_messages, combine_rows, bytes_sent;
} ll_counts;

/* `begin`, `place` and `end` of executor_ops enclose each of the two phases, or both if the receive follows at once.
   Every slot is filled, unless NULL has a meaning. One thread of the rank is in an operation at a time, except for halt
   and take. A rejection by this rank is in call->rejection (prepare, send). A rejection by any rank is in
   call->vote (receive). A call that ep rejects needs no place. */
typedef struct ll_ops {
    /* Comes before the call takes its place. May wait until the other ranks have laid out the buffer's shape. */
    expar_status (*prepare)(executor *self, ll_call *call);
    /* Waits until a GEMM has written the rows of a combine, before the other ranks are told of the call. NULL: send
       waits, on the call's stream. EXPAR_ERR_STATE: the time-out. */
    expar_status (*await_signals)(executor *self, const ll_signals *signals);
    /* `call` begins the ll_dispatch_step, or the ll_combine_step, that its kind says. May wait for other ranks: for
       headers if the slot's last call was not read, and for acknowledgements of a slot. */
    expar_status (*send)(executor *self, exec_call *exec, ll_call *call);
    /* For a call that is open, once. Waits until all data of the others are in their places. call->vote says whether
       the results are complete; its rank is -1 if that is not known yet. */
    expar_status (*receive)(executor *self, exec_call *exec, ll_call *call);
    /* Returns the buffer's counts, brought up to date. Any thread. */
    const ll_counts *(*count)(executor *self);
    /* Brings base.sent up to date, after all that calls have sent whose ends this rank has seen. NULL: it always is. */
    void (*count_sent)(executor *self);
    /* As normal_ops.times. */
    bool (*times)(executor *self, ll_times *out);
    /* With masks: masks another rank, or unmasks it. EXPAR_ERR_STATE, EXPAR_ERR_LIMIT. */
    expar_status (*mask_set)(executor *self, int32_t rank, bool masked);
    /* status: [N], 1 for masked ranks. It is written where the data lies, on the stream if the executor streams. */
    expar_status (*mask_query)(executor *self, int32_t *status, void *stream);
    /* Collective among the ranks that come. */
    expar_status (*mask_clean)(executor *self, ll_clean_step *step);
    /* Says whether the device can carry out calls of the shape. NULL: it can for any. */
    bool (*fits)(executor *self, const ll_shape *shape);
    /* Gives a reserve its shape, which fits into it, before any call has used one. Local. EXPAR_ERR_MEMORY: it still
       has none. */
    expar_status (*lay_out)(executor *self, const ll_shape *shape);
} ll_ops;

/* ---- making ------------------------------------------------------------------------------------------------------ */

typedef struct ll_plan {
    struct expar_group *group;
    uint32_t number; /* of the buffer in its group, the same on all ranks */
    /* unmapped: peers are reached only through transports, even if they are mapped */
    const ll_shape *shape;
    expar_device device;
    int32_t num_threads; /* CPU: of a rank; 0: chosen by the cores of the host */
    int32_t num_sms;     /* CUDA: of a call; 0: the library's choice */
    /* With masks: a limit for this buffer's waits, if it is less than the group's; 0: none of its own. */
    int64_t late_limit_ms;
    /* 0: the shape is there; else it has only ranks and masks, and lay_out gets the rest */
    uint64_t reserve_bytes;
} ll_plan;
/* Collective: takes the buffer's memory, with all words zero; all ranks are made, or none is. EXPAR_ERR_UNSUPPORTED: a
   rank's memory cannot be reached as it must be, or the device cannot carry out such calls. */
typedef expar_status (*ll_create_fn)(const ll_plan *plan, executor **out);
/* Returns NULL if there is none for such a device. */
ll_create_fn ll_create_of(expar_device_type type);

/* ---- low_latency.c ----------------------------------------------------------------------------------------------- */
/* Returns EXPAR_ERR_MISMATCH, and names the first member in which the other rank's shape differs. */
expar_status ll_shape_differs(const ll_shape *own, int32_t own_rank, const ll_shape_words *said, int32_t rank);
/* Waits until the ranks that come to a clean have agreed (group/members.h). epochs: of the last call of each kind here.
   If no rank rejects, they become those after which calls go on. A rejection by any rank is in step->call.verdict. */
expar_status ll_clean_agree(group_members *members, ll_clean_step *step, uint64_t epochs[LL_KINDS]);

#endif
