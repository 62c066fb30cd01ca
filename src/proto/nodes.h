/* SPDX-License-Identifier: Apache-2.0 */
/* Index arithmetic of normal mode across nodes: rails, and where their records and rings lie in an EP buffer.
 *
 * N = M · P ranks, numbered node by node: rank m · P + l is the l-th of node m. The rail of a rank are the ranks with
 * its l on the other nodes; nothing else of it crosses the network. As normal.h: compiles as C17 and under NVRTC. It
 * stands behind that buffer, at the same offsets in every PE's heap. Seen from its owner, by node of the rank on its
 * rail:
 *
 *     hellos   [2][M]        hello_bytes   what a rank of the rail opens a call with, for all ranks here; by parity
 *     replies  [2][M]        reply_bytes   whether it goes on, once it knows its output
 *     dones    [2][M]        64            "I have sent and read all that I will", in the name of that rank
 *     heads    [C][M][8]     8             rings that this rank sends into: chunks that were read, by place
 *     places   [C][M][K]     place bytes   rings that this rank receives from: a chunk, which ends with its tail
 *     staged   [C][M][K]     place bytes   chunks on their way out, from the same places
 *     outgoing [2][M]        hello_bytes   hellos on their way out
 *
 * All of it stays as large as it was made, whatever becomes of the buffer before it: the network reaches nothing else.
 * A ring belongs to a channel and a node, and serves dispatch (the source's records to its rail) and combine (the sums
 * of a node back to the source) alike: calls follow each other. */
#ifndef EXPAR_PROTO_NODES_H
#define EXPAR_PROTO_NODES_H

#include "proto/normal.h"

/* ---- ranks and nodes --------------------------------------------------------------------------------------------- */

typedef struct ep_rails {
    int32_t nodes, each;  /* M, P */
    int32_t chunks;       /* places of a ring for chunks: 2 to EP_MOST_CHUNKS */
    uint64_t chunk_bytes; /* that a place holds. Larger slots go in pieces; where calls have limits there are none */
} ep_rails;

#define EP_MOST_CHUNKS 8 /* their heads fill a line */

EP_FUNC int32_t ep_node_of(const ep_rails *rails, int32_t rank)
{
    return rank / rails->each;
}
EP_FUNC int32_t ep_local_of(const ep_rails *rails, int32_t rank)
{
    return rank % rails->each;
}
/* The rank's place on another node: that of its rail there. */
EP_FUNC int32_t ep_rail_of(const ep_rails *rails, int32_t node, int32_t rank)
{
    return node * rails->each + ep_local_of(rails, rank);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Brought by the network in one message that ends with the flag, and read by the owner once it has acquired that.
   Before the struct stand, where with_counts is 1: int32 records[C], tokens of the source's channels 0..c that go to
   this node; then for each of its P ranks what a hello of normal.h has for it: int32 channel_prefix[C], int32
   expert_counts[L], by the E of its form. A call that makes records larger opens a second time in its epoch: then the
   flag's value is 2. */
typedef struct ep_rail_hello {
    ep_form form;
    ep_refusal refusal;
    int32_t with_counts;
    int32_t unused;
    EP_SHARED(uint64_t) flag; /* as in ep_hello. Set by the network (release), polled by the owner (acquire) */
} ep_rail_hello;
EP_FUNC uint64_t ep_rail_counts(int32_t each, int32_t channels, int32_t local_experts)
{
    return (uint64_t)channels + (uint64_t)each * ((uint64_t)channels + (uint64_t)local_experts);
}

/* Beside the value of the flag. Without it the rank goes on, and what lies in `refusal` is of an earlier call, if of
   any. */
#define EP_REPLY_REFUSES 4u
typedef struct ep_rail_reply {
    EP_SHARED(uint64_t) flag; /* likewise */
    ep_refusal refusal;
} ep_rail_reply;

/* ---- slots and chunks -------------------------------------------------------------------------------------------- */

/* One token of a dispatch, or one sum of a combine, in a chunk: where its parts begin. First, in words of 64 bits, what
   its forwarder keeps of a token: the mask, which says by bits which of the node's ranks have it, and behind it, where
   slots are kept, the ranks of its slots' experts (uint16, as ep_routing.owners). `number` is the token's at its
   source, and of a sum, or a row that goes back by itself, which one of the ring's it is. Of such a row the next 32
   bits are 1 where there is one: it may have been dropped. */
typedef struct ep_rail_slot {
    uint64_t number, x, scales, idx, weights, bytes;
} ep_rail_slot;
EP_FUNC int32_t ep_mask_words(int32_t each)
{
    return (each + 63) / 64;
}
/* slots: that are kept of a token. */
EP_FUNC int32_t ep_kept_words(int32_t each, int32_t slots)
{
    return ep_mask_words(each) + (slots + 3) / 4;
}
/* kept_words: of a sum 0. */
EP_FUNC ep_rail_slot ep_rail_slot_of(int32_t kept_words, int64_t row_bytes, int32_t scales, int32_t topk)
{
    ep_rail_slot s;
    s.number = 8 * (uint64_t)kept_words;
    s.x = ep_round(s.number + 4, 16);
    s.scales = s.x + ep_round((uint64_t)row_bytes, 16);
    s.idx = s.scales + ep_round(4 * (uint64_t)scales, 16);
    s.weights = s.idx + ep_round(8 * (uint64_t)topk, 16);
    s.bytes = s.weights + ep_round(4 * (uint64_t)topk, 16);
    return s;
}

/* The largest of calls up to this form: records that bring scales and slots, and sums that have not been rounded. */
EP_FUNC uint64_t ep_largest_rail_slot(int32_t each, int64_t row_bytes, int32_t scales, int32_t topk)
{
    const uint64_t record = ep_rail_slot_of(ep_kept_words(each, topk), row_bytes, scales, topk).bytes;
    const uint64_t sum = ep_rail_slot_of(0, 2 * row_bytes, 0, topk).bytes;
    return record > sum ? record : sum;
}

/* Chunks of the library's choice: a few of them cover what a network of 10 Gbit/s brings in a trip there and back. */
#define EP_CHUNK_BYTES (128 << 10)
#define EP_CHUNKS      4
/* What ring_slots counts where there is no longest row. */
#define EP_FREE_SLOT_BYTES (4 << 10)
/* ring_slots: as the caller gave it; 0: none. */
EP_FUNC ep_rails ep_rails_of(int32_t nodes, int32_t each, const ep_shape *shape, int32_t ring_slots)
{
    ep_rails r;
    const uint64_t largest = ep_largest_rail_slot(each, shape->row_bytes, shape->scales, shape->topk);
    const uint64_t slot = shape->row_bytes ? largest : (uint64_t)EP_FREE_SLOT_BYTES;
    const int32_t share = ring_slots / EP_CHUNKS;
    const uint64_t wanted = ring_slots ? slot * (uint64_t)(share > 0 ? share : 1) : (uint64_t)EP_CHUNK_BYTES;
    r.nodes = nodes;
    r.each = each;
    r.chunks = EP_CHUNKS;
    r.chunk_bytes = ep_round(wanted > slot ? wanted : slot, EP_ALIGN_BYTES);
    return r;
}

/* ---- the buffer -------------------------------------------------------------------------------------------------- */

/* Hellos are as large as the buffer was made for: where E has no limit, for so many experts. */
#define EP_MOST_RAIL_EXPERTS (1 << 16)
EP_FUNC int32_t ep_rail_experts(const ep_shape *shape)
{
    const int32_t most = EP_MOST_RAIL_EXPERTS / shape->ranks;
    return shape->local_experts ? shape->local_experts : most > 0 ? most : 1;
}

/* Offsets from the start of the EP buffer. */
typedef struct ep_rail_space {
    uint64_t hello_bytes, reply_bytes;
    uint64_t hellos, replies, dones, heads, places, staged, outgoing;
    uint64_t total_bytes; /* of the buffer, with what normal.h has of it */
} ep_rail_space;

/* A chunk, however long it is, ends before this, whose flag so has one place in all calls. It comes with the chunk. */
typedef struct ep_rail_end {
    uint64_t bytes;           /* of the chunk */
    EP_SHARED(uint64_t) tail; /* set by the network (release), polled by the owner (acquire) */
} ep_rail_end;
EP_FUNC uint64_t ep_rail_place_bytes(const ep_rails *rails)
{
    return rails->chunk_bytes + EP_LINE_BYTES;
}

EP_FUNC ep_rail_space ep_rail_space_of(const ep_rails *rails, const ep_shape *shape)
{
    ep_rail_space s;
    const uint64_t nodes = (uint64_t)rails->nodes, rings = nodes * (uint64_t)shape->channels;
    const uint64_t counts = ep_rail_counts(rails->each, shape->channels, ep_rail_experts(shape));
    const uint64_t places = rings * (uint64_t)rails->chunks * ep_rail_place_bytes(rails);
    s.hello_bytes = ep_round(sizeof(ep_rail_hello) + 4 * counts, EP_LINE_BYTES);
    s.reply_bytes = ep_round(sizeof(ep_rail_reply), EP_LINE_BYTES);
    s.hellos = ep_round(ep_space_of(shape).total_bytes, EP_ALIGN_BYTES);
    s.replies = s.hellos + 2 * nodes * s.hello_bytes;
    s.dones = s.replies + 2 * nodes * s.reply_bytes;
    s.heads = s.dones + 2 * nodes * EP_LINE_BYTES;
    s.places = ep_round(s.heads + rings * EP_LINE_BYTES, EP_ALIGN_BYTES);
    s.staged = s.places + places;
    s.outgoing = s.staged + places;
    s.total_bytes = ep_round(s.outgoing + 2 * nodes * s.hello_bytes, 4096);
    return s;
}

/* Of the struct, at the end of its place. */
EP_FUNC uint64_t ep_rail_hello_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    const uint64_t place = (uint64_t)(epoch & 1) * (uint64_t)nodes + (uint64_t)node;
    return s->hellos + (place + 1) * s->hello_bytes - sizeof(ep_rail_hello);
}
EP_FUNC uint64_t ep_rail_outgoing_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    return s->outgoing + ep_rail_hello_at(s, nodes, epoch, node) - s->hellos;
}
EP_FUNC uint64_t ep_rail_reply_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    return s->replies + ((uint64_t)(epoch & 1) * (uint64_t)nodes + (uint64_t)node) * s->reply_bytes;
}
EP_FUNC uint64_t ep_rail_done_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    return s->dones + ((uint64_t)(epoch & 1) * (uint64_t)nodes + (uint64_t)node) * EP_LINE_BYTES;
}
/* Behind a done, in its line: what nobody reads. */
EP_FUNC uint64_t ep_rail_last_at(const ep_rail_space *s, int32_t nodes, int32_t node)
{
    return ep_rail_done_at(s, nodes, 0, node) + 8;
}
/* A ring's number, of channel and node; and where its words and places lie. */
EP_FUNC uint64_t ep_rail_ring(int32_t nodes, int32_t channel, int32_t node)
{
    return (uint64_t)channel * (uint64_t)nodes + (uint64_t)node;
}
EP_FUNC uint64_t ep_rail_head_at(const ep_rail_space *s, uint64_t ring, int32_t place)
{
    return s->heads + ring * EP_LINE_BYTES + 8 * (uint64_t)place;
}
/* Where the place's chunk ends, in an ep_rail_end: from `places`, or from `staged`. */
EP_FUNC uint64_t ep_rail_chunk_end(const ep_rails *rails, uint64_t ring, int32_t place)
{
    return (ring * (uint64_t)rails->chunks + (uint64_t)place) * ep_rail_place_bytes(rails) + rails->chunk_bytes;
}

#endif
