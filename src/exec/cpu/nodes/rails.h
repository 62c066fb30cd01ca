/* SPDX-License-Identifier: Apache-2.0 */
/* Normal mode across nodes, on the CPU: the part of a call that goes over the network, as the operations by which it is
 * called (exec/cpu/normal/nodes.h). Private to this folder, and to create.c, which makes rails; calls link/link.h.
 *
 *     rails.c     a buffer's rails: links, memory, state of a call, table of operations
 *     mailbox.c     records that open and close a call, by rail: sent once to each node, passed on by mapped memory
 *     routing.c   the part of a handle about its rail
 *     ring.c      rings of chunks: places, heads, tails
 *     scratch.c      memory of this rank's own, sized by the largest calls so far
 *     dispatch.c  a token's record to each node, and from there to the node's ranks
 *     combine.c   a node's sum back to the token's rank
 *     one_order.c rows that go back by themselves, to be added in one order over all nodes
 *     exact.c     sums that are rounded only at the end
 *
 * docs/internals/across-nodes.md says which rank waits for which, and why not in a circle. */
#ifndef EXPAR_EXEC_CPU_NODES_RAILS_H
#define EXPAR_EXEC_CPU_NODES_RAILS_H

#include "exec/cpu/normal/nodes.h"
#include "link/link.h"
#include "proto/nodes.h"

/* This rank's two ends of the rings (channel, node), for one call. Only the lane that has the channel uses this. */
typedef struct rail_ring {
    /* towards the node: */
    uint32_t goes;        /* slots in this call */
    uint32_t put;         /* slots written */
    uint32_t filled;      /* how many of these are in the chunk that has not been sent */
    uint32_t pieces_left; /* pieces of the last slot that are still to go, if slots go in pieces */
    uint32_t chunks_full; /* chunks filled, though a carrier may still be at work on their rows */
    uint32_t chunks_put;  /* chunks sent */
    int64_t token;        /* dispatch: next token to look at */
    /* combine: the oldest record that has not gone back completely */
    uint32_t record;
    uint32_t part; /* combine: the record's next part */
    /* combine: the next row in that part, if each row goes back by itself */
    int32_t row;
    /* from the node: */
    uint32_t comes;        /* slots in this call */
    uint32_t taken;        /* slots read */
    uint32_t come;         /* slots up to the end of the chunk that is being read */
    uint32_t pieces_here;  /* pieces of the oldest slot that are here, if slots come in pieces */
    uint32_t chunks_taken; /* chunks read, though a carrier may still be reading their rows */
    uint32_t chunks_freed; /* chunks whose places have been returned */
    /* dispatch: the local rank to which the oldest slot goes next */
    int32_t target;
} rail_ring;

/* Offsets of the parts of a token's scratch, which follow its row. */
typedef struct rail_scratch {
    uint64_t weights, owners, gathered, bytes;
} rail_scratch;
/* Rows of a token that a carrier is going to add, as far as they have come. */
typedef struct rail_gathered {
    int64_t count;
    const void *rows[];
} rail_gathered;
typedef struct rail_space {
    /* [C] scratch of one token that is added; for the channel's lane */
    uint8_t *scratch;
    rail_scratch map;
    int64_t row_bytes; /* bytes of the longest row that scratch holds */
    /* [C][M][2] an outgoing slot and an incoming one, in pieces; for the channel's lane. NULL: all slots fit a
       place. */
    uint8_t *wide;
    uint64_t wide_bytes; /* of such a slot */
} rail_space;

typedef struct cpu_rails {
    ep_rails shape;
    ep_rail_space space;
    int32_t node, local; /* this rank's place among nodes, and on its node */
    link_peer *links;    /* [M] link to the rank of this rail on each other node */
    link_counts counts;
    /* Headers under way, by parity; and flags whose result no thread needs. Any thread sends with these, as link.h
       allows. */
    link_batch headers[2], flags;
    /* Chunks and heads of a call may be quiet and not have arrived. For the thread that completes calls. */
    bool unconfirmed;
    /* when this rank stops waiting for the network, after it has given the buffer up; 0: it has not */
    int64_t gone_ns;
    /* [C][M][K] batch of the chunk that was sent last from each place; for the channel's lane */
    link_batch *batches;
    /* [2][C][M][K] with a carrier, outgoing places first. It is the number of the work on the last chunk of the place,
       after which the chunk is sent, or its place returned. For the channel's lane. */
    uint64_t *work;
    /* [3][2][M] by kind of record and parity: word of the record from the node that this rank has passed on last. For
       the thread that awaits the records. */
    uint64_t *passed;
    rail_ring *rings; /* [C][M] */
    /* [C][M][P] rows of the channel that went to, or came from, a local rank; for its lane */
    int32_t *next;
    rail_space spare;
    /* memory that not all ranks use yet; for the thread that opens calls */
    rail_space grown;
    /* this rank's memory, to which the offsets of `space` belong */
    uint8_t *here;
    ep_rail_slot slot; /* layout of a slot in the call whose rows move */
    /* slots of a chunk in that call; 1 if each goes in more than one of `pieces` */
    uint32_t slots;
    uint32_t pieces;
    bool back; /* sums go back in that call; else records go out */
    /* Places that have been read in that call stay until rail_places_settle: a carrier has not been asked yet to read
       their rows. */
    bool holds;
    /* `again`: flags of headers and replies of a call that opens a second time, since its records have grown. `form` is
       that of this rank's last header, and `counted` says whether that had counts. For the thread that opens calls. */
    uint64_t again;
    ep_form form;
    bool counted;
} cpu_rails;

/* ---- rails.c ----------------------------------------------------------------------------------------------------- */
/* Makes the rails of a buffer whose ranks do not all map each other. Ranks and nodes are those of the group. If no rank
   maps a peer, each rank is a node. */
expar_status rail_make(cpu_executor *self, const executor_plan *plan);
/* Clears the flags, before any rank can post. */
void rail_clear(cpu_executor *self);
/* sound: waits until everything under way has arrived; else only for data that arrive soon */
void rail_free(cpu_executor *self, bool sound);
/* Comes before rows of a call move. Sets the layout of slots, which have one record each. At this point nothing has
   been put or taken, and no row of any channel has gone to, or come from, a local rank. `joined` is the number of the
   routing's channels in one ring. `back` says that records' sums move. */
void rail_begin(cpu_executor *self, const ep_rail_slot *slot, const ep_routing *routing, int32_t joined, bool back);
/* Returns the address of an offset of the rails' memory, which stays in the heap when the buffer's records have
   grown. */
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
/* Returns the i-th other node, counted from the next one on, so that not all ranks start with the same node; i from 0
   to M - 2. */
static inline int32_t rail_node_in_turn(const cpu_rails *rails, int32_t i)
{
    return (rails->node + 1 + i) % rails->shape.nodes;
}

/* Between the two calls this thread's waits for the network end soon, since the buffer has been given up. The limit is
   link.linger from the first time on. */
void rail_linger_begin(cpu_executor *self);
void rail_linger_end(void);

/* Returns the result of a link. If the group has failed, that is the reason, whatever other rank cannot be reached
   because of it. */
expar_status rail_ended(const cpu_executor *self, expar_status status);

/* ---- mailbox.c --------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status rail_header_post(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_rejection *rejection,
                              const ep_routing *counts, bool rows_follow);
expar_status rail_post(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, const ep_rejection *rejection);
void rail_retirement_post(cpu_executor *self, uint32_t epoch, const ep_rejection *rejection);
/* Returns the counts before a header that has them, for so many experts of a rank: this rank's number, or that of its
   form. */
static inline int32_t *rail_header_counts(const cpu_executor *self, const ep_rail_header *header, int32_t local_experts)
{
    const uint64_t counts = ep_rail_counts(self->rails->shape.each, self->shape.channels, local_experts);
    return (int32_t *)(uintptr_t)header - counts;
}
void rail_end(cpu_executor *self, const ep_routing *routing);
expar_status rail_relay(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch);
bool rail_done_is_here(const cpu_executor *self, uint32_t epoch, int32_t source);
bool rail_owes_done(const cpu_executor *self, uint32_t epoch, int32_t rank);

/* ---- routing.c --------------------------------------------------------------------------------------------------- */
expar_status rail_routing_make(const cpu_executor *self, ep_routing *routing);
/* Counts the records to each node. */
void rail_layout(const ep_routing *routing);
/* Operations. */
expar_status rail_collect(const cpu_executor *self, uint32_t epoch, ep_routing *routing);
void rail_forget(const ep_routing *routing);
void rail_admit(const ep_routing *routing, bool back, ep_rejection *rejection);
/* A dispatch has brought all masks. */
void rail_masks_settle(const ep_routing *routing);
static inline bool rail_masks_are_known(const ep_routing *routing)
{
    return atomic_load_explicit(&routing->rails->masks_known, memory_order_acquire);
}
/* Returns a record's mask and kept words, by its number among those of the node. */
static inline _Atomic uint64_t *rail_mask_at(const ep_rail_routing *known, int32_t node, int64_t record)
{
    _Atomic uint64_t *masks = atomic_load_explicit(&known->masks, memory_order_acquire);
    return masks + (known->first_mask[node] + record) * known->kept_words;
}
static inline bool rail_mask_has(const _Atomic uint64_t *mask, int32_t local)
{
    return atomic_load_explicit(&mask[local / 64], memory_order_relaxed) >> (local % 64) & 1;
}
/* Return the prefix of channels for a node: [C]. */
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
/* Returns the row of a local rank's output that holds the first row from this rail's rank on the node. */
static inline int32_t rail_first_row(const ep_routing *routing, int32_t node, int32_t local)
{
    return routing->rails->first_row[(int64_t)node * routing->rails->each + local];
}
/* Returns the token's first target on the node, or NULL; *end: after its last one there. */
const ep_target *rail_targets(const ep_routing *routing, int64_t token, int32_t node, const ep_target **end);

/* ---- scratch.c --------------------------------------------------------------------------------------------------- */
/* Makes the memory for calls of this shape. */
expar_status rail_space_make(const cpu_executor *self, const ep_shape *shape, rail_space *out);
void rail_space_free(rail_space *spare);
/* Operations. */
bool rail_fits(const cpu_executor *self, const ep_form *form, int64_t row_bytes);
expar_status rail_grow(cpu_executor *self, const ep_shape *shape);
void rail_grown(cpu_executor *self, uint32_t epoch, bool all);

/* ---- ring.c ------------------------------------------------------------------------------------------------------ */
/* Returns the next slot towards the node, which the caller fills, or NULL while there is none. *status: why there will
   be none. */
uint8_t *rail_slot_free(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status);
/* Sends pieces of a slot for which there was no place before. With a carrier it sends chunks that are filled by now,
   and returns places that have been read. Returns true if any went. */
bool rail_slot_go_on(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status);
/* Call this after filling a slot. It sends the chunk when that is full, or has the last slot that goes. */
expar_status rail_slot_push(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node);
/* Returns the oldest slot from the node, or NULL while there is none. */
const uint8_t *rail_slot_front(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node, expar_status *status);
/* Call this after reading a slot. It returns the place of the chunk when that is read, if the place is needed again. */
expar_status rail_slot_pop(cpu_executor *self, uint32_t epoch, int32_t channel, int32_t node);
/* Lets the places go that the channel holds, once the carrier has read what the lane has asked it to read. */
void rail_places_settle(const cpu_executor *self, int32_t channel);
/* Returns how many slots have not been sent completely. */
static inline uint64_t rail_slots_left(const rail_ring *ring)
{
    return (uint64_t)(ring->goes - ring->put) + (ring->pieces_left > 0) + (ring->chunks_full - ring->chunks_put);
}
/* Returns how many places have been read and not returned. */
static inline uint64_t rail_places_held(const rail_ring *ring)
{
    return ring->chunks_taken - ring->chunks_freed;
}
/* Says whether slots of a call with a form fit a place. back: sums go back in it. */
bool rail_slots_fit(const cpu_executor *self, const ep_routing *routing, const ep_form *form, int64_t row_bytes,
                    bool back);
/* Operation. */
void rail_report(const cpu_executor *self, int32_t rings, int32_t worker, cpu_report *report);

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */
/* Operations. */
void rail_dispatch_begin(const cpu_dispatch_run *run);
bool rail_dispatch_turn(const cpu_dispatch_run *run, int32_t channel, cpu_lane_turn *turn);

/* ---- combine.c --------------------------------------------------------------------------------------------------- */
/* The origin of a part: the record with which it came, by this rail. */
struct cpu_origin {
    int32_t node;
    const _Atomic uint64_t *kept; /* its mask, and after it the ranks of its slots */
};

/* Operations. */
void rail_combine_begin(const cpu_combine_run *run);
bool rail_combine_turn(const cpu_combine_run *run, int32_t worker, int32_t channel, cpu_lane_turn *turn);
bool rail_add(const cpu_combine_run *run, int32_t worker, const cpu_token_part *part, int32_t *place,
              expar_status *status);
/* Comes when a token begins to be added: adds its weights from all nodes, if they come with the part. */
void rail_add_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows);
/* Returns the oldest sum, or row, from a node, which must be the ring's next one, or NULL while it has not come. */
const uint8_t *rail_sum_front(const cpu_combine_run *run, int32_t channel, int32_t node, expar_status *status);
/* Says whether nodes' sums are FP32 until the end. */
static inline bool rail_is_exact(const cpu_combine_run *run)
{
    return run->step->form.options & EP_OPTION_EXACT_NODES;
}
/* Returns the places of the rows that a record, or a token, has here. Their ranks are numbered from 0 in the node. */
cpu_places rail_places(const cpu_combine_run *run, const cpu_token_part *part);
/* Returns the channel's scratch, from one of its parts on. */
static inline void *rail_scratch_of(const cpu_combine_run *run, int32_t channel, uint64_t part)
{
    const cpu_rails *rails = run->self->rails;
    return rails->spare.scratch + (uint64_t)channel * rails->spare.map.bytes + part;
}

/* ---- one_order.c ------------------------------------------------------------------------------------------------- */
static inline bool rail_is_one_order(const cpu_combine_run *run)
{
    return run->step->form.options & EP_OPTION_ONE_ORDER;
}
/* Counts the rows, in place of sums, that go and come by each ring. */
void rail_count_rows(const cpu_combine_run *run);
/* Says whether all rows of a token from one node find places, before any of these is returned. */
bool rail_tokens_fit(const cpu_executor *self, const ep_form *form, int64_t row_bytes);
/* For a record at this rank: the first returns how many of its rows go back for each part. The second fills the number
   `row` of these into a slot. */
int32_t rail_rows_of_record(const cpu_combine_run *run, const cpu_token_part *part);
void rail_fill_row(const cpu_combine_run *run, uint8_t *slot, const cpu_token_part *part, int32_t row);
/* Like rail_add, once the first row of each other node is ready, too: adds rows from the place on, in the order of the
   call. rows: space for sources. */
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
