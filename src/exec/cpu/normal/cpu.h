/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU executor: worker threads carry out steps over mapped memory. Private to this folder, and to nodes/, which
 * carries them across nodes.
 *
 *     create.c    the object: its place in the heap, its pools, its table of operations
 *     count.c     the layout by itself, without a buffer
 *     routing.c   the memory of a routing
 *     layout.c    routing → targets and counts
 *     mailbox.c     the records that open and close a call: post, await, judge
 *     records.c   where records and rings lie, and how they grow
 *     ring.c      the queue rings: slots, heads, tails
 *     lane.c      taking turns at rings until all rows have moved
 *     notify.c    headers with counts
 *     dispatch.c  rows from their source to their receivers; combine.c the way back
 *     expert.c    rows to expert-major order and back, on one rank
 *     sums.c      sums of rows that came back by themselves, without a buffer
 *     report.c    texts about data that a failed wait was waiting for
 *     moves.h     declarations that dispatch.c and combine.c share with nodes/, which carries rows across nodes
 *     nodes.h     operations of nodes/ that a call uses
 *     rows.h      moving rows (copy.c), adding them (sum.c)
 *     workers.h   a pool of threads that run one function side by side (workers.c)
 *
 * The calling thread exchanges the records of a call. In between, lanes (one for each worker) move the rows. */
#ifndef EXPAR_EXEC_CPU_NORMAL_CPU_H
#define EXPAR_EXEC_CPU_NORMAL_CPU_H

#include "exec/cpu/core/carrier.h"
#include "exec/cpu/core/delay.h"
#include "exec/cpu/core/rows.h"
#include "exec/cpu/core/workers.h"
#include "exec/normal.h"
#include "group/group.h"
#include "proto/decisions.h"

/* This rank's two ends of the ring (channel, peer), for one call. A peer of another node stands for rows that are
   forwarded: see ring.c. Only the lane that has the channel uses this. */
typedef struct cpu_ring {
    uint32_t put;       /* rows written into the ring towards the peer */
    uint32_t published; /* of these, announced by the tail */
    uint32_t taken;     /* rows taken out of the ring from the peer */
    uint32_t freed;     /* of these, returned by the head */
} cpu_ring;

/* The progress of a channel through its rank's tokens; only its lane uses this. */
typedef struct cpu_cursor {
    int64_t token;  /* next token */
    int64_t target; /* next entry of routing.targets (dispatch) */
    uint32_t part;  /* of the token, which arrives in parts (combine) */
    /* of the part, if its rows arrive one by one (combine across nodes in one order); 0: not begun */
    int32_t place;
} cpu_cursor;

/* [workers][each] Scratch of one token's sum. Combine: biases, rows of this node, sums of nodes, or weights,
   [2 + 2·N + K]. Reduce: rows, then weights as floats, [2·K]. */
typedef struct cpu_sources {
    const void **rows;
    int64_t each;
    int32_t workers;
} cpu_sources;

typedef struct cpu_nodes_ops cpu_nodes_ops; /* nodes.h */
struct cpu_rails;                           /* the state of these operations */

typedef struct cpu_executor {
    executor base;
    sym *sym;
    uint32_t number;    /* number of the buffer in its group */
    int32_t host_ranks; /* ranks of the group on this host */
    ep_shape shape;
    ep_space space;
    /* offset of the buffer's first records in the heap */
    uint64_t buffer;
    /* [N] address of each rank's records in this process; NULL: the rank is on another node */
    uint8_t **bases;
    /* The ranks that map each other, this one included: all, or those of its node. */
    int32_t near_first, near_ranks;
    const cpu_nodes_ops *nodes; /* for the other ranks; NULL: there are none */
    struct cpu_rails *rails;    /* NULL without other nodes */
    /* slots of a ring as the caller gave them; 0: chosen by the rows of each call */
    int32_t given_slots;
    /* Larger records come from here. It is the group's store, without limit. */
    mem_pool *record_pool;
    mem_block *records; /* NULL: the records in the heap are in use */
    /* The former records, kept until the next headers have come; for the thread that awaits these. */
    mem_block *old_records;
    ep_slot slot;   /* layout of a slot in the call whose rows move */
    uint32_t slots; /* slots of a ring in that call */
    cpu_workers *workers;
    int32_t num_workers; /* of the buffer */
    /* the library chose num_workers: calls of few bytes use fewer */
    bool chose_workers;
    /* workers of the call whose rows move; for the thread that moves them */
    int32_t active;
    /* Moves payload that the workers do not reach; NULL: there is none. Set once. */
    cpu_carrier *carrier;
    /* The carrier, if it moves the payload of the call whose rows move; else NULL. For the threads that move them. */
    cpu_carrier *carrying;
    cpu_ring *rings;     /* [C][N] */
    cpu_cursor *cursors; /* [C] */
    /* tests only (executor_cpu_delay); NULL otherwise */
    executor_delay_fn delay;
    void *delay_context;
    /* Rows are moving, by the queue or in a combine. The thread that carries the call out sets this; the thread that
       opens the next call reads it (relaxed: it only decides whether the latter's time-out runs). */
    atomic_bool moving;
    /* The group was sound when this rank posted its last completion flag. So a rank that has left since may have heard
       the end of that call. For the thread that carries calls out. */
    bool sound_at_done;
    /* ep_growth of the next header with counts. For the thread that opens calls. */
    int32_t growth;
    /* Set by any thread, once; read by waits (relaxed: it publishes nothing, and the doorbell wakes them). */
    atomic_bool halted;
    /* Graphs have calls of the buffer, so its calls have no number that all ranks know. The calling thread sets it,
       once; the threads that carry calls out read it (relaxed: it only chooses the topic of waits). */
    atomic_bool in_graphs;
    cpu_sources sources;
    /* Outputs whose rows come by the queue. The first such output makes the pool. One thread at a time takes memory,
       and publishes the pool (release). Another one may trim meanwhile (acquire). */
    _Atomic(mem_pool *) private_pool;
} cpu_executor;

static inline cpu_executor *cpu_of(executor *base)
{
    return (cpu_executor *)base;
}

/* A point between two steps of a protocol, at which tests may delay the rank. */
static inline void cpu_step(const cpu_executor *self)
{
    if (self->delay) self->delay(self->delay_context);
}

/* Returns the address of an offset of the EP buffer in pe's memory. */
static inline void *cpu_at(const cpu_executor *self, int32_t pe, uint64_t offset)
{
    return self->bases[pe] + offset;
}

/* Returns the worker that has the channel, in the call whose rows move. */
static inline int32_t cpu_worker_of(const cpu_executor *self, int32_t channel)
{
    return channel % self->active;
}

static inline bool cpu_is_near(const cpu_executor *self, int32_t rank)
{
    return rank >= self->near_first && rank < self->near_first + self->near_ranks;
}

static inline const void **cpu_sources_of(const cpu_executor *self, int32_t worker)
{
    return self->sources.rows + worker * self->sources.each;
}

/* ---- records.c: workers of a call -------------------------------------------------------------------------------- */
/* Comes before a call's rows move, which have so many bytes on this rank. Sets self->active to the number of workers
   for which the call asks, as far as there are memory and threads. If the library chooses, it is no more than the bytes
   are worth. For the thread that moves them. */
void cpu_call_workers(cpu_executor *self, const exec_call *call, int64_t bytes);
/* Looks at the advertisements of this node's ranks, as `advert_of` finds them in this rank's memory. Returns whether
   the carrier moves the rows. If not all are carried, those that are get mode EP_MODE_QUEUE. */
bool cpu_settle_carried(const cpu_executor *self, ep_advert *(*advert_of)(const cpu_executor *, uint32_t, int32_t),
                        uint32_t epoch);
/* Comes after cpu_call_workers. The carrier moves the payload of the call, or no longer does. `topk` is that of the
   call. */
void cpu_carry_begin(cpu_executor *self, bool carries, int32_t topk);
/* Waits until the carrier has completed all that a worker has asked for, in a step that awaits no other rank. */
expar_status cpu_carry_await(const cpu_executor *self, int32_t worker);
static inline void cpu_carry_end(cpu_executor *self)
{
    self->carrying = NULL;
}
/* Returns the most rows of a token's sum. */
static inline int32_t cpu_most_rows(const cpu_executor *self, int32_t topk)
{
    return 2 + 2 * self->shape.ranks + topk;
}

/* ---- routing.c --------------------------------------------------------------------------------------------------- */
/* See executor_ops.routing_make, which needs no executor here. */
expar_status cpu_routing_make(ep_routing *routing, int32_t most_targets);

/* ---- count.c ----------------------------------------------------------------------------------------------------- */
expar_status cpu_count(const ep_count_step *step);

/* ---- sums.c ------------------------------------------------------------------------------------------------------ */
expar_status cpu_terms(const ep_terms_step *step);
expar_status cpu_sum(const ep_sum_step *step);

/* ---- layout.c ---------------------------------------------------------------------------------------------------- */
/* Fills the layout part of the routing. EXPAR_ERR_INDEX names token and slot. */
expar_status cpu_layout(const ep_route_view *route, ep_routing *routing);
/* Returns EXPAR_ERR_INDEX likewise; EXPAR_OK without topk_idx. */
expar_status cpu_check_range(const ep_route_view *route, const ep_routing *routing);

/* ---- mailbox.c --------------------------------------------------------------------------------------------------- */
/* The advertisement of this rank. It is equal for all receivers, except first_row. That follows from the prefix of rows
   that this rank receives from ranks 0..s ([N]; NULL: first_row stays 0). */
typedef struct cpu_adverts {
    ep_advert advert;
    const int32_t *rank_prefix;
} cpu_adverts;
/* Posts the header of call `epoch` to every rank. `adverts`: NULL without advertisements. counts: the routing whose
 * layout part is sent, or NULL. */
expar_status cpu_header_post(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_rejection *rejection,
                             const cpu_adverts *adverts, const ep_routing *counts);
/* Posts the header of a rank that has given the buffer up; waits for no rank for long. */
void cpu_retirement_post(cpu_executor *self, uint32_t epoch, const ep_rejection *rejection);
expar_status cpu_reply_post(cpu_executor *self, uint32_t epoch, const ep_rejection *rejection,
                            const cpu_adverts *adverts);
expar_status cpu_done_post(cpu_executor *self, uint32_t epoch);
/* Call this after filling a record for pe. It sets the flag, and wakes pe if this was the last record that pe
   awaits. */
void cpu_record_publish(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, int32_t pe, _Atomic uint64_t *flag);
/* Waits for the record of every rank. `what` is the phase, for error texts. */
expar_status cpu_mailbox_await(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, const char *what);
/* The records for which a call waits. This must stay unchanged as long as the wait lasts. */
typedef struct cpu_missing {
    const cpu_executor *self;
    ep_mailbox mailbox;
    uint32_t epoch;
} cpu_missing;
void cpu_expect(sym_rest *rest, const cpu_missing *missing);
/* These return this rank's copies of the records, after they were awaited. */
const ep_header *cpu_header_from(const cpu_executor *self, uint32_t epoch, int32_t source);
const ep_reply *cpu_reply_from(const cpu_executor *self, uint32_t epoch, int32_t source);
void cpu_header_judge(const cpu_executor *self, uint32_t epoch, ep_vote *vote);
void cpu_reply_judge(const cpu_executor *self, uint32_t epoch, ep_vote *vote);

/* ---- records.c --------------------------------------------------------------------------------------------------- */
bool cpu_fits(executor *self, const ep_form *form, int64_t row_bytes);
expar_status cpu_grow(executor *self, exec_call *call, const ep_grow_step *step, ep_vote *vote);
/* Headers have come from all ranks, so these have written all that they had to write to old records. */
void cpu_records_heard(cpu_executor *self);
/* Comes before rows of a call move: lays out the rings' slots as its form needs them. */
void cpu_rings_form(cpu_executor *self, const ep_form *form, int64_t row_bytes);
expar_status cpu_sources_make(const ep_shape *shape, int32_t workers, cpu_sources *out);

/* ---- ring.c ------------------------------------------------------------------------------------------------------ */
void cpu_rings_reset(cpu_executor *self);
static inline cpu_ring *cpu_ring_of(cpu_executor *self, int32_t channel, int32_t peer)
{
    return &self->rings[(int64_t)channel * self->shape.ranks + peer];
}
/* Checks that the words of all the channel's rings may be what peers wrote; else EXPAR_ERR_PEER. For lanes that
   wait. */
expar_status cpu_rings_check(const cpu_executor *self, uint32_t epoch, int32_t channel);
/* Returns the next free slot towards peer, in the peer's memory, or NULL while the ring is full. */
uint8_t *cpu_ring_slot_free(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* Call this after filling the slot. It announces a chunk when one is complete. */
void cpu_ring_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* Returns how many rows are ready from the peer, or 0 if its word is impossible. */
uint32_t cpu_ring_ready(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* Returns the oldest row from the peer, in this rank's memory; there must be one. */
const uint8_t *cpu_ring_front(cpu_executor *self, int32_t channel, int32_t peer);
/* Call this after reading the oldest row. It returns a chunk of slots when one is complete. */
void cpu_ring_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* Announces all rows put and returns all slots taken, on all of a channel's rings. */
void cpu_ring_flush(cpu_executor *self, uint32_t epoch, int32_t channel);

/* ---- lane.c ------------------------------------------------------------------------------------------------------ */
/* The result of one look at a lane's channels. */
typedef struct cpu_lane_turn {
    uint64_t open;       /* how much is left to do */
    expar_status status; /* not EXPAR_OK: the lane must end with it */
} cpu_lane_turn;
/* The work of one worker for its channels, if it may have to wait. */
typedef struct cpu_lane {
    const char *what; /* the phase, for error texts */
    /* Looks once at all channels of the lane; returns true if anything moved. */
    bool (*turn)(const void *context, int32_t worker, cpu_lane_turn *turn);
    /* Adds to the text of a failed wait what it was waiting for. Returns status. */
    expar_status (*report)(const void *context, int32_t worker, expar_status status);
} cpu_lane;
/* Takes turns until nothing of the call is left. It never waits for one ring alone. */
expar_status cpu_lane_run(cpu_executor *self, const cpu_lane *lane, uint32_t epoch, const void *context,
                          int32_t worker);

/* ---- report.c ---------------------------------------------------------------------------------------------------- */
typedef struct cpu_report {
    char text[768];
    size_t length;
} cpu_report;
/* Adds "; rows from rank 3: 12 of 40", unless all came. */
void cpu_report_add(cpu_report *report, int32_t peer, const char *what, uint64_t came, uint64_t all);
/* Call this if a word in this rank's memory, which `rank` writes, has a value that it never wrote. Returns
   EXPAR_ERR_PEER, with a text that names the value. */
expar_status cpu_word_spoilt(int32_t rank, const char *what, uint64_t word, uint32_t epoch);
/* Adds the report to this thread's error text. Returns status. */
expar_status cpu_report_finish(const cpu_report *report, expar_status status);

/* ---- notify.c, dispatch.c, combine.c, expert.c: operations ------------------------------------------------------- */
expar_status cpu_notify(executor *self, exec_call *call, ep_notify_step *step);
expar_status cpu_tell_counts(executor *self, exec_call *call, const ep_counts_step *step);
expar_status cpu_dispatch_send(executor *self, exec_call *call, ep_dispatch_step *step);
expar_status cpu_dispatch_receive(executor *self, exec_call *call, ep_dispatch_step *step);
expar_status cpu_combine_send(executor *self, exec_call *call, ep_combine_step *step);
expar_status cpu_combine_receive(executor *self, exec_call *call, ep_combine_step *step);
expar_status cpu_map(executor *self, exec_call *call, const ep_map_step *step);
expar_status cpu_arrange(executor *self, exec_call *call, const ep_arrange_step *step);
expar_status cpu_tell_sources(executor *self, exec_call *call, const ep_sources_step *step);
expar_status cpu_reduce(executor *self, exec_call *call, const ep_reduce_step *step);

#endif
