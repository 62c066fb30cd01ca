/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU executor: steps carried out by worker threads over mapped memory. Private to this folder, and to nodes/,
 * which carries them across nodes.
 *
 *   create.c    the object: its place in the heap, its pools, its table of operations
 *   count.c     the layout by itself, without a buffer
 *   routing.c   the memory of a routing
 *   layout.c    routing → targets and counts
 *   board.c     the records that open and close a call: post, await, judge
 *   records.c   where records and rings lie, and how they grow
 *   ring.c      the queue rings: slots, heads, tails
 *   lane.c      taking turns at rings until all rows have moved
 *   notify.c    hellos with counts
 *   dispatch.c  rows from their source to their receivers; combine.c the way back
 *   expert.c    rows to expert-major order and back, on one rank
 *   report.c    what a wait that failed was waiting for
 *   moves.h     what dispatch.c and combine.c share with nodes/, which carries rows and records across nodes
 *   nodes.h     what a call asks of nodes/
 *   rows.h      moving rows (copy.c), adding them (sum.c)
 *   workers.h   a pool of threads that run one function side by side (workers.c)
 *
 * A call goes through the board's phases in the calling thread; in between lanes (one a worker) move the rows. */
#ifndef EXPAR_EXEC_CPU_NORMAL_CPU_H
#define EXPAR_EXEC_CPU_NORMAL_CPU_H

#include "exec/cpu/core/delay.h"
#include "exec/cpu/core/rows.h"
#include "exec/cpu/core/workers.h"
#include "exec/normal.h"
#include "group/group.h"
#include "proto/decisions.h"

/* This rank's two ends of the ring (channel, peer), for one call. A peer of another node stands for what is forwarded:
   see ring.c. Touched only by the lane that has the channel. */
typedef struct cpu_ring {
    uint32_t put;       /* rows written into the ring towards the peer */
    uint32_t published; /* of these, announced by the tail */
    uint32_t taken;     /* rows taken out of the ring from the peer */
    uint32_t freed;     /* of these, returned by the head */
} cpu_ring;

/* Where a channel stands in its rank's tokens; touched only by its lane. */
typedef struct cpu_cursor {
    int64_t token;  /* next token */
    int64_t target; /* next entry of routing.targets (dispatch) */
    uint32_t part;  /* of the token, which comes in parts (combine) */
    int32_t place;  /* of the part, whose rows come one by one (combine across nodes in one order); 0: not begun */
} cpu_cursor;

/* [workers][each] scratch of one token's sum. Combine: biases and rows, or weights, [2 + N + K]. Reduce: rows, then
   weights as floats, [2·K]. */
typedef struct cpu_sources {
    const void **rows;
    int64_t each;
    int32_t workers;
} cpu_sources;

typedef struct cpu_nodes_ops cpu_nodes_ops; /* nodes.h */
struct cpu_rails;                           /* what they keep */

typedef struct cpu_executor {
    executor base;
    sym *sym;
    uint32_t number;    /* of the buffer in its group */
    int32_t host_ranks; /* ranks of the group on this host */
    ep_shape shape;
    ep_space space;
    uint64_t buffer; /* offset of the records in the heap that the buffer begins with */
    uint8_t **bases; /* [N] where each rank's records begin here; NULL: it is on another node */
    /* Ranks that map each other, this one among them: all, or those of its node. */
    int32_t near_first, near_ranks;
    const cpu_nodes_ops *nodes; /* for the others; NULL: there are none */
    struct cpu_rails *rails;    /* likewise */
    int32_t given_slots;        /* of a ring, by the caller; 0: by the rows of each call */
    mem_pool *record_pool;      /* larger records come from here: the group's store, without limit */
    mem_block *records;         /* NULL: those in the heap */
    mem_block *old_records;     /* the ones before, until the next hellos have come; by the thread that awaits these */
    ep_slot slot;               /* of the call whose rows move */
    uint32_t slots;             /* of a ring, in that call */
    cpu_workers *workers;
    int32_t num_workers;     /* of the buffer */
    bool chose_workers;      /* the library did: calls of few bytes go on with fewer */
    int32_t active;          /* of the call whose rows move; by the thread that moves them */
    cpu_ring *rings;         /* [C][N] */
    cpu_cursor *cursors;     /* [C] */
    executor_delay_fn delay; /* tests only: see executor_cpu_delay; NULL otherwise */
    void *delay_context;
    /* Rows are moving, by the queue or in a combine. Set by the thread that carries the call out, read by the one that
       opens the next (relaxed: it only decides whether the other's time-out runs). */
    atomic_bool moving;
    /* The group was sound when this rank posted its last done: who has left since may have heard the end of that call.
       By the thread that carries calls out. */
    bool sound_at_done;
    atomic_bool halted; /* by any thread, once; read by waits (relaxed: it publishes nothing, and the bell wakes) */
    cpu_sources sources;
    /* Outputs whose rows come by the queue; taken when the first does. By whoever makes a call. */
    mem_pool *private_pool;
} cpu_executor;

static inline cpu_executor *cpu_of(executor *base)
{
    return (cpu_executor *)base;
}

/* A place between two steps of a protocol. */
static inline void cpu_step(const cpu_executor *self)
{
    if (self->delay) self->delay(self->delay_context);
}

/* Address of an offset of the EP buffer in pe's memory. */
static inline void *cpu_at(const cpu_executor *self, int32_t pe, uint64_t offset)
{
    return self->bases[pe] + offset;
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
/* Before a call's rows move, so many bytes on this rank: self->active is what the call asks for, as far as there is
   memory and there are threads; where the library chose, no more than the bytes are worth. By the thread that moves
   them. */
void cpu_call_workers(cpu_executor *self, const exec_call *call, int64_t bytes);

/* ---- routing.c --------------------------------------------------------------------------------------------------- */
/* See executor_ops.routing_make, which needs no executor here. */
expar_status cpu_routing_make(ep_routing *routing, int32_t most_targets);

/* ---- count.c ----------------------------------------------------------------------------------------------------- */
expar_status cpu_count(const ep_count_step *step);

/* ---- layout.c ---------------------------------------------------------------------------------------------------- */
/* Fills the layout part of the routing. EXPAR_ERR_INDEX names token and slot. */
expar_status cpu_layout(const ep_route_view *route, ep_routing *routing);
/* EXPAR_ERR_INDEX, likewise; OK without topk_idx. */
expar_status cpu_check_range(const ep_route_view *route, const ep_routing *routing);

/* ---- board.c ----------------------------------------------------------------------------------------------------- */
/* What this rank offers: the same to all, but for first_row, which follows from the prefix of rows that it receives
   from ranks 0..s ([N]; NULL: it stays 0). */
typedef struct cpu_offers {
    ep_offer offer;
    const int32_t *rank_prefix;
} cpu_offers;
/* Tells every rank that this one opens call `epoch`. offers: NULL without. counts: routing whose layout part is sent,
 * or NULL. */
expar_status cpu_hello_post(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_refusal *refusal,
                            const cpu_offers *offers, const ep_routing *counts);
/* The hello of a rank that has given the buffer up; waits for nobody for long. */
void cpu_retirement_post(cpu_executor *self, uint32_t epoch, const ep_refusal *refusal);
expar_status cpu_reply_post(cpu_executor *self, uint32_t epoch, const ep_refusal *refusal, const cpu_offers *offers);
expar_status cpu_done_post(cpu_executor *self, uint32_t epoch);
/* A record for pe has been filled: its flag is set, and pe woken if it was the last of its board. */
void cpu_record_publish(cpu_executor *self, ep_board board, uint32_t epoch, int32_t pe, _Atomic uint64_t *flag);
/* Waits for the record of every rank. `what` is the phase, for error texts. */
expar_status cpu_board_await(cpu_executor *self, ep_board board, uint32_t epoch, const char *what);
/* What a wait in the call is for: the records of a board. Stays as it is as long as the wait goes on. */
typedef struct cpu_missing {
    const cpu_executor *self;
    ep_board board;
    uint32_t epoch;
} cpu_missing;
void cpu_expect(sym_rest *rest, const cpu_missing *missing);
/* This rank's copies of the records, after they were awaited. */
const ep_hello *cpu_hello_from(const cpu_executor *self, uint32_t epoch, int32_t source);
const ep_reply *cpu_reply_from(const cpu_executor *self, uint32_t epoch, int32_t source);
void cpu_hello_judge(const cpu_executor *self, uint32_t epoch, ep_verdict *verdict);
void cpu_reply_judge(const cpu_executor *self, uint32_t epoch, ep_verdict *verdict);

/* ---- records.c --------------------------------------------------------------------------------------------------- */
bool cpu_fits(executor *self, const ep_form *form, int64_t row_bytes);
expar_status cpu_grow(executor *self, const ep_grow_step *step, ep_verdict *verdict);
/* Hellos have come from all ranks: what they had to write to old records they have written before. */
void cpu_records_heard(cpu_executor *self);
/* Before rows of a call move: slots of the rings as its form needs them. */
void cpu_rings_form(cpu_executor *self, const ep_form *form, int64_t row_bytes);
expar_status cpu_sources_make(const ep_shape *shape, int32_t workers, cpu_sources *out);

/* ---- ring.c ------------------------------------------------------------------------------------------------------ */
void cpu_rings_reset(cpu_executor *self);
static inline cpu_ring *cpu_ring_of(cpu_executor *self, int32_t channel, int32_t peer)
{
    return &self->rings[(int64_t)channel * self->shape.ranks + peer];
}
/* Whether the words of all the channel's rings may be what peers wrote; else EXPAR_ERR_PEER. For lanes that wait. */
expar_status cpu_rings_check(const cpu_executor *self, uint32_t epoch, int32_t channel);
/* The next free slot towards peer, in the peer's memory; NULL while the ring is full. */
uint8_t *cpu_ring_slot_free(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* The slot has been filled; announces a chunk when one is complete. */
void cpu_ring_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* Rows that lie ready from the peer; 0 where its word is unsound. */
uint32_t cpu_ring_ready(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* The oldest row from the peer, in this rank's memory; there must be one. */
const uint8_t *cpu_ring_front(cpu_executor *self, int32_t channel, int32_t peer);
/* The oldest row has been read; returns a chunk of slots when one is complete. */
void cpu_ring_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t peer);
/* Announces all rows put and returns all slots taken, on all of a channel's rings. */
void cpu_ring_flush(cpu_executor *self, uint32_t epoch, int32_t channel);

/* ---- lane.c ------------------------------------------------------------------------------------------------------ */
/* What one look at a lane's channels found. */
typedef struct cpu_lane_turn {
    uint64_t open;       /* what is left to do */
    expar_status status; /* not OK: the lane is to end with it */
} cpu_lane_turn;
/* What one worker does for its channels when there may be something to wait for. */
typedef struct cpu_lane {
    const char *what; /* the phase, for error texts */
    /* One look at all channels of the lane: true when anything moved. */
    bool (*turn)(const void *context, int32_t worker, cpu_lane_turn *turn);
    /* Adds to the text of a wait that failed what it was waiting for. Returns status. */
    expar_status (*report)(const void *context, int32_t worker, expar_status status);
} cpu_lane;
/* Takes turns until nothing is left of the call. Never waits for one ring alone. */
expar_status cpu_lane_run(cpu_executor *self, const cpu_lane *lane, uint32_t epoch, const void *context,
                          int32_t worker);

/* ---- report.c ---------------------------------------------------------------------------------------------------- */
typedef struct cpu_report {
    char text[768];
    size_t length;
} cpu_report;
/* "; rows from rank 3: 12 of 40", unless all came. */
void cpu_report_add(cpu_report *report, int32_t peer, const char *what, uint64_t came, uint64_t all);
/* Puts the report behind this thread's error text. Returns status. */
/* A word in this rank's memory, which `rank` writes, holds what it never wrote: EXPAR_ERR_PEER, with what was seen. */
expar_status cpu_word_spoilt(int32_t rank, const char *what, uint64_t word, uint32_t epoch);
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
