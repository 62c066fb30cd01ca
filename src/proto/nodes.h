/* SPDX-License-Identifier: Apache-2.0 */
/* Index arithmetic of normal mode across nodes: rails, and where their records and rings lie in an EP buffer.
 *
 * N = M · P ranks are numbered node by node: rank m · P + l is the l-th of node m. The rail of a rank consists of the
 * ranks with its l on the other nodes. It sends over the network only to them. Like normal.h, this header compiles as
 * C17 and under NVRTC.
 *
 * The memory follows that of normal.h, at the same offsets in every PE's heap. The table shows it as its owner sees it.
 * The index M is the node of the rank on its rail:
 *
 *     headers  [2][M]        opening_bytes the record with which a rank of the rail opens a call for all ranks here
 *                                          (`header`); by parity of the epoch
 *     replies  [2][M]        reply_bytes   whether that rank goes on, once it knows its output
 *     flags    [2][M]        64            completion flags of that rank (`done`): "I have sent and read
 *                                          all that I will"
 *     heads    [C][M][8]     8             rings that this rank sends into: chunks that were read, by place
 *     places   [C][M][K]     place bytes   rings that this rank receives from: a chunk, which ends with its tail
 *     staged   [C][M][K]     place bytes   outgoing chunks, for the same places
 *     outgoing [2][M]        opening_bytes   outgoing headers
 *
 * All of it keeps its size and its place, even if the part of normal.h before it grows and moves: the network reaches
 * nothing else. A ring belongs to a channel and a node. Both dispatch and combine use it, since calls follow each
 * other: a dispatch for the source's records to its rail, a combine for a node's sums back to the source. */
#ifndef EXPAR_PROTO_NODES_H
#define EXPAR_PROTO_NODES_H

#include "proto/normal.h"

/* ---- ranks and nodes --------------------------------------------------------------------------------------------- */

typedef struct ep_rails {
    int32_t nodes, each; /* M, P */
    int32_t chunks;      /* places of a ring for chunks: 2 to EP_MOST_CHUNKS */
    /* Bytes of a chunk that a place holds. Larger slots go in pieces; there are none in buffers with limits. */
    uint64_t chunk_bytes;
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
/* Returns the rank's place on another node: the rank of its rail there. */
EP_FUNC int32_t ep_rail_of(const ep_rails *rails, int32_t node, int32_t rank)
{
    return node * rails->each + ep_local_of(rails, rank);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* The header that opens a call. The network delivers it in one message that ends with the flag. The owner reads it
   after it has acquired the flag. If with_counts is 1, counts stand before the struct: int32 records[C], the tokens of
   the source's channels 0..c that go to this node. Then for each of its P ranks come int32 channel_prefix[C] and int32
   expert_counts[L] as in a header of normal.h; L follows from the E of the form. A call that makes records larger opens
   a second time in its epoch, and then the flag's value is 2. */
typedef struct ep_rail_header {
    ep_form form;
    ep_rejection rejection;
    int32_t with_counts;
    int32_t growth; /* ep_growth; valid with counts */
    /* as in ep_header. The network sets it (release), the owner polls it (acquire). */
    EP_SHARED(uint64_t) flag;
} ep_rail_header;
EP_FUNC uint64_t ep_rail_counts(int32_t each, int32_t channels, int32_t local_experts)
{
    return (uint64_t)channels + (uint64_t)each * ((uint64_t)channels + (uint64_t)local_experts);
}

/* A bit beside the value of the flag. Without it the rank goes on, and `rejection` holds nothing, or text of an earlier
   call. */
#define EP_REPLY_REJECTS 4u
typedef struct ep_rail_reply {
    EP_SHARED(uint64_t) flag; /* set and polled as in ep_rail_header */
    ep_rejection rejection;
} ep_rail_reply;

/* ---- slots and chunks -------------------------------------------------------------------------------------------- */

/* One token of a dispatch, or one sum of a combine, in a chunk: the offsets of its parts. A token starts with words of
   64 bits that its forwarder keeps. The mask tells by bits which of the node's ranks have the token. If slots are kept,
   the ranks of its slots' experts follow (uint16, as ep_routing.owners).

   `number` is the token's number at its source. For a sum, or a row that goes back by itself, it is the number in the
   ring. For such a row the next 32 bits are 1 if the row is there: it may have been dropped. */
typedef struct ep_rail_slot {
    uint64_t number, x, scales, idx, weights, bytes;
} ep_rail_slot;
EP_FUNC int32_t ep_mask_words(int32_t each)
{
    return (each + 63) / 64;
}
/* slots: the number of slots that are kept of a token */
EP_FUNC int32_t ep_kept_words(int32_t each, int32_t slots)
{
    return ep_mask_words(each) + (slots + 3) / 4;
}
/* kept_words: 0 for a sum */
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

/* Returns the bytes of the largest slot in calls up to this form: records that carry scales and slots, and sums that
   have not been rounded. */
EP_FUNC uint64_t ep_largest_rail_slot(int32_t each, int64_t row_bytes, int32_t scales, int32_t topk)
{
    const uint64_t record = ep_rail_slot_of(ep_kept_words(each, topk), row_bytes, scales, topk).bytes;
    const uint64_t sum = ep_rail_slot_of(0, 2 * row_bytes, 0, topk).bytes;
    return record > sum ? record : sum;
}

/* Chunks where the library chooses. A few of them cover the bytes that a network of 10 Gbit/s carries in a round
   trip. */
#define EP_CHUNK_BYTES (128 << 10)
#define EP_CHUNKS      4
/* The bytes for which ring_slots counts if rows have no largest size. */
#define EP_FREE_SLOT_BYTES (4 << 10)
/* ring_slots: as the caller gave it, or 0 */
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

/* Headers keep the size for which the buffer was made. If E has no limit, they are made for so many experts. */
#define EP_MOST_RAIL_EXPERTS (1 << 16)
EP_FUNC int32_t ep_rail_experts(const ep_shape *shape)
{
    const int32_t most = EP_MOST_RAIL_EXPERTS / shape->ranks;
    return shape->local_experts ? shape->local_experts : most > 0 ? most : 1;
}

/* Offsets from the start of the EP buffer. */
typedef struct ep_rail_space {
    uint64_t opening_bytes, reply_bytes;
    uint64_t headers, replies, dones, heads, places, staged, outgoing;
    /* of the buffer, with the part of normal.h */
    uint64_t total_bytes;
} ep_rail_space;

/* The end of a chunk, which comes with the chunk. The chunk stands right before it, however long it is, so its flag has
   the same place in all calls. */
typedef struct ep_rail_end {
    uint64_t bytes; /* of the chunk */
    /* The network sets it (release); the owner polls it (acquire). */
    EP_SHARED(uint64_t) tail;
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
    s.opening_bytes = ep_round(sizeof(ep_rail_header) + 4 * counts, EP_LINE_BYTES);
    s.reply_bytes = ep_round(sizeof(ep_rail_reply), EP_LINE_BYTES);
    s.headers = ep_round(ep_space_of(shape).total_bytes, EP_ALIGN_BYTES);
    s.replies = s.headers + 2 * nodes * s.opening_bytes;
    s.dones = s.replies + 2 * nodes * s.reply_bytes;
    s.heads = s.dones + 2 * nodes * EP_LINE_BYTES;
    s.places = ep_round(s.heads + rings * EP_LINE_BYTES, EP_ALIGN_BYTES);
    s.staged = s.places + places;
    s.outgoing = s.staged + places;
    s.total_bytes = ep_round(s.outgoing + 2 * nodes * s.opening_bytes, 4096);
    return s;
}

/* Returns the offset of the struct, which is at the end of its place. */
EP_FUNC uint64_t ep_rail_header_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    const uint64_t place = (uint64_t)(epoch & 1) * (uint64_t)nodes + (uint64_t)node;
    return s->headers + (place + 1) * s->opening_bytes - sizeof(ep_rail_header);
}
EP_FUNC uint64_t ep_rail_outgoing_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    return s->outgoing + ep_rail_header_at(s, nodes, epoch, node) - s->headers;
}
EP_FUNC uint64_t ep_rail_reply_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    return s->replies + ((uint64_t)(epoch & 1) * (uint64_t)nodes + (uint64_t)node) * s->reply_bytes;
}
EP_FUNC uint64_t ep_rail_done_at(const ep_rail_space *s, int32_t nodes, uint32_t epoch, int32_t node)
{
    return s->dones + ((uint64_t)(epoch & 1) * (uint64_t)nodes + (uint64_t)node) * EP_LINE_BYTES;
}
/* Returns the offset of a word after a completion flag, in its line. No rank reads it. */
EP_FUNC uint64_t ep_rail_last_at(const ep_rail_space *s, int32_t nodes, int32_t node)
{
    return ep_rail_done_at(s, nodes, 0, node) + 8;
}
/* Returns a ring's number, from channel and node; the next function returns the offset of its word. */
EP_FUNC uint64_t ep_rail_ring(int32_t nodes, int32_t channel, int32_t node)
{
    return (uint64_t)channel * (uint64_t)nodes + (uint64_t)node;
}
EP_FUNC uint64_t ep_rail_head_at(const ep_rail_space *s, uint64_t ring, int32_t place)
{
    return s->heads + ring * EP_LINE_BYTES + 8 * (uint64_t)place;
}
/* Returns where the place's chunk ends, in an ep_rail_end, as an offset from `places` or from `staged`. */
EP_FUNC uint64_t ep_rail_chunk_end(const ep_rails *rails, uint64_t ring, int32_t place)
{
    return (ring * (uint64_t)rails->chunks + (uint64_t)place) * ep_rail_place_bytes(rails) + rails->chunk_bytes;
}

#endif
