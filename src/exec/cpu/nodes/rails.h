/* SPDX-License-Identifier: Apache-2.0 */
/* Normal mode across nodes, on the CPU: what of a call goes over the network, as the operations that it is called by
 * (exec/cpu/normal/nodes.h). Private to this folder, and to create.c, which makes rails; calls link/link.h.
 *
 *   rails.c     a buffer's rails: links, memory, state of a call, table of operations
 *   board.c     records that open and close a call, by rail: sent once a node, handed on through mapped memory
 *   routing.c   what a handle keeps of its rail
 *   ring.c      rings of chunks: places, heads, tails
 *   room.c      memory of this rank's own, by the largest calls so far
 *   dispatch.c  a token's record to each node, and from there to the node's ranks
 *   combine.c   a node's sum back to the token's rank
 *   one_order.c rows that go back by themselves, to be added in one order over all nodes
 *   exact.c     sums that are rounded at the end alone
 *
 * Who waits for whom, and why not in a circle: docs/internals/across-nodes.md. */
#ifndef EXPAR_EXEC_CPU_NODES_RAILS_H
#define EXPAR_EXEC_CPU_NODES_RAILS_H

#include "exec/cpu/normal/nodes.h"
#include "link/link.h"
#include "proto/nodes.h"

/* This rank's two ends of the rings (channel, node), for one call. Touched only by the lane that has the channel. */
typedef struct rail_ring {
    /* Towards the node: */
    uint32_t goes;        /* slots in this call */
    uint32_t put;         /* slots written */
    uint32_t filled;      /* of these, in the chunk that has not been sent */
    uint32_t pieces_left; /* of the last one, where slots go in pieces */
    uint32_t chunks_put;  /* chunks sent */
    int64_t token;        /* dispatch: next one to look at */
    uint32_t record;      /* combine: the oldest one that has not gone back whole */
    uint32_t part;        /* … next one of its rows */
    int32_t row;          /* … next one in that part, where each goes back by itself */
    /* From the node: */
    uint32_t comes;        /* slots in this call */
    uint32_t taken;        /* slots read */
    uint32_t come;         /* slots up to the end of the chunk that is being read */
    uint32_t pieces_here;  /* of the oldest slot, where they come in pieces */
    uint32_t chunks_taken; /* chunks read */
    int32_t target;        /* dispatch: local rank that the oldest slot goes to next */
} rail_ring;

/* Where parts of a token's scratch begin, behind its row. */
typedef struct rail_scratch {
    uint64_t weights, owners, bytes;
} rail_scratch;
typedef struct rail_room {
    uint8_t *scratch; /* [C] of one token that is added; by the channel's lane */
    rail_scratch map;
    int64_t row_bytes; /* that scratch holds */
    /* [C][M][2] a slot that goes, and one that comes, in pieces; by the channel's lane. NULL: all fit a place. */
    uint8_t *wide;
    uint64_t wide_bytes; /* of such a slot */
} rail_room;

typedef struct cpu_rails {
    ep_rails shape;
    ep_rail_space space;
    int32_t node, local; /* this rank's place */
    link_peer *links;    /* [M] to the rank of this rail on each other node */
    link_counts counts;
    /* Hellos under way, by parity; flags of which nothing is to be known. Any thread sends with these, by link.h. */
    link_batch hellos[2], flags;
    /* Chunks and heads of a call may be quiet and not have come. By the thread that sees calls through. */
    bool unconfirmed;
    int64_t gone_ns;     /* when this rank stops waiting for the network, having given the buffer up; 0: it has not */
    link_batch *batches; /* [C][M][K] of the chunk that was sent last from each place; by the channel's lane */
    /* [3][2][M] by board and parity: word of the record from the node that this rank has handed on last. By the thread
       that awaits the board. */
    uint64_t *handed;
    rail_ring *rings; /* [C][M] */
    int32_t *next;    /* [C][M][P] rows of the channel that went to, or come from, a local rank; by its lane */
    rail_room room;
    rail_room grown;   /* that not all ranks have gone over to; by the thread that opens calls */
    uint8_t *here;     /* this rank's memory, which the offsets of `space` are in */
    ep_rail_slot slot; /* of the call whose rows move */
    uint32_t slots;    /* of a chunk, in that call; 1 where each goes in `pieces`, more than 1 */
    uint32_t pieces;
    bool back; /* … in which sums go back; else records go */
    /* Flags of hellos and replies of the call whose records have grown, which opens a second time; and the form of this
       rank's last hello, and whether it had counts. By the thread that opens calls. */
    uint64_t again;
    ep_form form;
    bool counted;
} cpu_rails;

/* ---- rails.c ----------------------------------------------------------------------------------------------------- */
/* Of a buffer whose ranks do not all map each other; ranks and nodes are those of the group, or, where nobody maps a
   peer, each rank is a node. */
expar_status rail_make(cpu_executor *self, const executor_plan *plan);
/* Makes flags empty, before anybody can post. */
void rail_clear(cpu_executor *self);
/* sound: all that is under way is to arrive; else only what does soon. */
void rail_free(cpu_executor *self, bool sound);
/* Before rows of a call move: slots as it needs them, a record each, nothing put or taken, and of each channel's rows
   none that go to, or come from, a local rank. joined: channels of the routing, by a ring; back: records' sums move. */
void rail_begin(cpu_executor *self, const ep_rail_slot *slot, const ep_routing *routing, int32_t joined, bool back);
/* An offset of the rails' memory, which stays in the heap where the buffer's records have grown. */
static inline void *rail_at(const cpu_executor *self, uint64_t offset)
{
    return self->rails->here + offset;
}
static inline rail_ring *rail_ring_of(const cpu_executor *self, int32_t channel, int32_t node)
{
    return &self->rails->rings[ep_rail_ring(self->rails->shape.nodes, channel, node)];
}
static inline int32_t *rail_next_of(const cpu_executor *self, int32_t channel, int32_t node)
{
    const cpu_rails *rails = self->rails;
    return rails->next + ep_rail_ring(rails->shape.nodes, channel, node) * (uint64_t)rails->shape.each;
}
/* The other nodes in turn, from the next one on, so that no node is everybody's first: i from 0 to M - 2. */
static inline int32_t rail_node_in_turn(const cpu_rails *rails, int32_t i)
{
    return (rails->node + 1 + i) % rails->shape.nodes;
}

/* Between the two this thread's waits for the network end soon, for the buffer has been given up: link.linger from
   the first time on. */
void rail_linger_begin(cpu_executor *self);
void rail_linger_end(void);

/* What a link has come to. Where the group has failed that is the reason, whoever else cannot be reached for it. */
expar_status rail_ended(const cpu_executor *self, expar_status status);

/* ---- board.c ----------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status rail_hello_post(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_refusal *refusal,
                             const ep_routing *counts, bool rows_follow);
expar_status rail_reply_post(cpu_executor *self, uint32_t epoch, const ep_refusal *refusal);
expar_status rail_done_post(cpu_executor *self, uint32_t epoch);
void rail_retirement_post(cpu_executor *self, uint32_t epoch, const ep_refusal *refusal);
/* What stands before a hello that has counts, of so many experts a rank, or by its form. */
static inline int32_t *rail_hello_counts(const cpu_executor *self, const ep_rail_hello *hello, int32_t local_experts)
{
    const uint64_t counts = ep_rail_counts(self->rails->shape.each, self->shape.channels, local_experts);
    return (int32_t *)(uintptr_t)hello - counts;
}
void rail_end(cpu_executor *self, const ep_routing *routing);
expar_status rail_relay(cpu_executor *self, ep_board board, uint32_t epoch);
bool rail_done_is_here(const cpu_executor *self, uint32_t epoch, int32_t source);

/* ---- routing.c --------------------------------------------------------------------------------------------------- */
expar_status rail_routing_make(const cpu_executor *self, ep_routing *routing);
/* Records to each node. */
void rail_layout(const ep_routing *routing);
/* Operations. */
expar_status rail_collect(const cpu_executor *self, uint32_t epoch, ep_routing *routing);
void rail_admit(const ep_routing *routing, bool back, ep_refusal *refusal);
/* A dispatch has brought all masks. */
void rail_masks_settle(const ep_routing *routing);
static inline bool rail_masks_are_known(const ep_routing *routing)
{
    return atomic_load_explicit(&routing->rails->masks_known, memory_order_acquire);
}
/* Of a record by its number among those of the node; the word of so many ranks. */
static inline _Atomic uint64_t *rail_mask_at(const ep_rail_routing *known, int32_t node, int64_t record)
{
    _Atomic uint64_t *masks = atomic_load_explicit(&known->masks, memory_order_acquire);
    return masks + (known->first_mask[node] + record) * known->kept_words;
}
static inline bool rail_mask_has(const _Atomic uint64_t *mask, int32_t local)
{
    return atomic_load_explicit(&mask[local / 64], memory_order_relaxed) >> (local % 64) & 1;
}
/* Of a node, channels' prefix: [C]. */
static inline const int32_t *rail_records_out(const ep_routing *routing, int32_t node)
{
    return routing->rails->records_out + (int64_t)node * routing->channels;
}
static inline const int32_t *rail_records_in(const ep_routing *routing, int32_t node)
{
    return routing->rails->records_in + (int64_t)node * routing->channels;
}
static inline const int32_t *rail_rows_in(const ep_routing *routing, int32_t node, int32_t local)
{
    const ep_rail_routing *known = routing->rails;
    return known->rows_in + ((int64_t)node * known->each + local) * routing->channels;
}
/* Row of a local rank's output that holds the first of those from this rail's rank on the node. */
static inline int32_t rail_first_row(const ep_routing *routing, int32_t node, int32_t local)
{
    return routing->rails->first_row[(int64_t)node * routing->rails->each + local];
}
/* The token's first target on the node, or NULL; *end: behind its last there. */
const ep_target *rail_targets(const ep_routing *routing, int64_t token, int32_t node, const ep_target **end);

/* ---- room.c ------------------------------------------------------------------------------------------------------ */
/* For calls of this shape. */
expar_status rail_room_make(const cpu_executor *self, const ep_shape *shape, rail_room *out);
void rail_room_free(rail_room *room);
/* Operations. */
bool rail_fits(const cpu_executor *self, const ep_form *form, int64_t row_bytes);
expar_status rail_grow(cpu_executor *self, const ep_shape *shape);
void rail_grown(cpu_executor *self, uint32_t epoch, bool all);

/* ---- ring.c ------------------------------------------------------------------------------------------------------ */
/* The next slot towards the node, of all that go, to be filled here; NULL while there is none. *status: why there will
   be none. */
uint8_t *rail_slot_free(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status);
/* Sends what has found no place yet of a slot that goes in pieces; true when any went. */
bool rail_slot_go_on(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status);
/* It has been filled; sends the chunk when that is full, or holds the last slot that goes. */
expar_status rail_slot_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node);
/* The oldest slot from the node; NULL while there is none. */
const uint8_t *rail_slot_front(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status);
/* It has been read; returns the place of its chunk when that is read, and is needed again. */
expar_status rail_slot_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node);
/* Those that have not been sent to their end. */
static inline uint64_t rail_slots_left(const rail_ring *ring)
{
    return (uint64_t)(ring->goes - ring->put) + (ring->pieces_left > 0);
}
/* Operation. */
void rail_report(const cpu_executor *self, int32_t rings, int32_t worker, cpu_report *report);

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */
/* Operations. */
void rail_dispatch_begin(const cpu_dispatch_run *run);
bool rail_dispatch_turn(const cpu_dispatch_run *run, int32_t channel, cpu_lane_turn *turn);

/* ---- combine.c --------------------------------------------------------------------------------------------------- */
/* The record that a part came with, by this rail. */
struct cpu_origin {
    int32_t node;
    const _Atomic uint64_t *kept; /* its mask, and behind it the ranks of its slots */
};

/* Operations. */
void rail_combine_begin(const cpu_combine_run *run);
bool rail_combine_turn(const cpu_combine_run *run, int32_t worker, int32_t channel, cpu_lane_turn *turn);
bool rail_add(const cpu_combine_run *run, int32_t worker, const cpu_token_part *part, int32_t *place,
              expar_status *status);
/* Of a token that begins to be added: its weights from all nodes, if they come with the part. */
void rail_add_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows);
/* The oldest sum, or row, from a node, which has to be the ring's next one; NULL while it has not come. */
const uint8_t *rail_sum_front(const cpu_combine_run *run, int32_t channel, int32_t node, expar_status *status);
/* Whether nodes' sums are FP32 until the end. */
static inline bool rail_is_exact(const cpu_combine_run *run)
{
    return run->step->form.options & EP_OPTION_EXACT_NODES;
}
/* Whose rows a record, or a token, brings here. Their ranks are numbered from 0 in the node. */
cpu_places rail_places(const cpu_combine_run *run, const cpu_token_part *part);
/* The channel's scratch, from one of its parts on. */
static inline void *rail_scratch_of(const cpu_combine_run *run, int32_t channel, uint64_t part)
{
    const cpu_rails *rails = run->self->rails;
    return rails->room.scratch + (uint64_t)channel * rails->room.map.bytes + part;
}

/* ---- one_order.c ------------------------------------------------------------------------------------------------- */
static inline bool rail_is_one_order(const cpu_combine_run *run)
{
    return run->step->form.options & EP_OPTION_ONE_ORDER;
}
/* What goes and comes by each ring: rows, and not sums. */
void rail_count_rows(const cpu_combine_run *run);
/* Of the record at this rank: how many of its rows go back for each part, and the number `row` of these into a slot. */
int32_t rail_rows_of_record(const cpu_combine_run *run, const cpu_token_part *part);
void rail_fill_row(const cpu_combine_run *run, uint8_t *slot, const cpu_token_part *part, int32_t row);
/* As rail_add, where the first row of each other node lies ready, too: adds rows from the place on, in the order of the
   call. rows: room for sources. */
bool rail_add_rows(const cpu_combine_run *run, const cpu_token_part *part, const void **rows, int32_t *place,
                   expar_status *status);

/* ---- exact.c ----------------------------------------------------------------------------------------------------- */
/* sums += row */
void rail_add_row(expar_dtype dtype, float *sums, const void *row, int64_t elements);
/* y = sums, rounded. */
void rail_round_sums(expar_dtype dtype, void *y, const float *sums, int64_t elements);
/* out = Σ rows[i], i ascending: FP32 from +0, not rounded. */
void rail_sum_wide(expar_dtype dtype, float *out, const void *const *rows, int32_t num_rows, int64_t elements);
/* y = Σ rows[i], i ascending, the first num_biases of dtype, the others FP32: FP32 from +0, rounded once. */
void rail_sum_exact(expar_dtype dtype, void *y, const void *const *rows, int32_t num_biases, int32_t num_rows,
                    int64_t elements);

#endif
