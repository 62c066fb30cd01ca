/* SPDX-License-Identifier: Apache-2.0 */
/* Index arithmetic of normal mode: which rank gets what, and where everything lies in an EP buffer.
 *
 * This header compiles as C17, under nvcc and under NVRTC: no libc, no host pointers. ep, executors and tests use it.
 *
 * An EP buffer is the same range of offsets in every PE's heap. The table shows it as its owner sees it:
 *
 *     headers  [2][N]     opening_bytes     the record with which a source rank opens a call; by parity of the epoch
 *     replies  [2][N]     sizeof(ep_reply)  advertisements of fresh dispatches, if the early one does not hold
 *     flags    [2][N]     64                completion flags: "I have written to you, and read from you, all I will"
 *     counters [3][2]     64                arrivals of the three kinds above; the last writer rings the doorbell
 *     heads    [C][N]     64                rings that this rank sends into: rows that the receiver has taken out
 *     tails    [C][N]     64                rings that this rank receives from: rows that the source has put in
 *     slots    [C][N][S]  slot_bytes        rows of those rings; on the CPU as large as the call's form needs
 *     pool                pool_bytes        outputs of direct dispatches, for executors that keep them here
 *
 * N is the number of ranks, C that of channels, and S that of the slots of a ring. [2] is the parity of the epoch. Two
 * parities are enough. Each call opens with a header from each rank to each rank. A rank opens a call only after its
 * call before the last has ended (ep/call/call.h). So no rank is two calls ahead of a rank that still reads. No record
 * is ever cleared, because every flag carries its call's epoch. */
#ifndef EXPAR_PROTO_NORMAL_H
#define EXPAR_PROTO_NORMAL_H

#include "base/portable.h"

#define EP_FUNC PORTABLE_FUNC

/* Values of expar_status that records and kernels use. The host asserts that they are equal. */
#define EXPAR_STATUS_ARGUMENT 2
#define EXPAR_STATUS_INDEX    8
#define EXPAR_STATUS_LIMIT    10
#define EXPAR_STATUS_HANDLE   12
#define EXPAR_STATUS_STATE    16
#define EXPAR_STATUS_PEER     23
#define EP_SHARED(T)          PORTABLE_SHARED(T)

#define EP_LINE_BYTES     64  /* one flag in each cache line */
#define EP_ALIGN_BYTES    128 /* alignment of parts of buffers and outputs */
#define EP_REJECTION_TEXT 220 /* bytes of a reason that is sent to other ranks, with its final zero */

/* ---- records ----------------------------------------------------------------------------------------------------- */

typedef enum ep_kind { EP_DISPATCH = 1, EP_DISPATCH_CACHED = 2, EP_COMBINE = 3, EP_ROUTE = 4 } ep_kind;

/* The members on which all ranks of a call must agree. */
typedef struct ep_form {
    int32_t kind;      /* ep_kind */
    int32_t hidden;    /* H */
    int32_t dtype;     /* expar_dtype of rows */
    int32_t topk;      /* K */
    int32_t experts;   /* E */
    int32_t idx_dtype; /* expar_dtype of topk_idx; 0 without topk_idx */
    int32_t weights;   /* 1 with topk_weights */
    int32_t scales;    /* scales of a row; 0 without x_scales */
    int32_t scale_dtype;
    int32_t sum_order;     /* ep_sum_order of a combine */
    int32_t weights_of;    /* ep_weights_of, if there are weights */
    uint32_t route;        /* epoch of the call that made the handle; 0 without handle */
    uint32_t route_buffer; /* number of the buffer of that handle: two buffers may have equal epochs */
    int32_t options;       /* EP_OPTION_… of a dispatch or a combine */
} ep_form;

#define EP_OPTION_SRC_TOKENS     1  /* each row comes with its token number at the source */
#define EP_OPTION_GLOBAL_EXPERTS 2  /* recv_topk_idx has global expert numbers, not local ones */
#define EP_OPTION_EXACT_NODES    4  /* a combine across nodes rounds its sums only at the end */
#define EP_OPTION_KEEP_SLOTS     8  /* across nodes: records name the rank of each top-k entry's expert */
#define EP_OPTION_ONE_ORDER      16 /* a combine adds single rows of all nodes in one order, not sums of nodes */
#define EP_OPTION_OWN_FIRST      32 /* a combine adds the rows of the token's own node before the other nodes' sums */

typedef enum ep_mode { EP_MODE_NONE = 0, EP_MODE_DIRECT = 1, EP_MODE_QUEUE = 2 } ep_mode;

/* A buffer advertisement. In a dispatch it says where the receiver wants this sender's rows. In a combine it says where
   the sender has left its rows for the receiver to read. With EP_SUM_EACH_SLOT those rows are expert-major, and
   idx_offset is that of the map to them. */
typedef struct ep_advert {
    uint64_t x_offset; /* from the heap's start, modulo 2^64; the other offsets likewise */
    uint64_t scales_offset;
    uint64_t idx_offset;
    uint64_t weights_offset;
    uint64_t src_offset;
    int64_t x_pitch_bytes; /* from row to row */
    int64_t weights_pitch_bytes;
    int32_t first_row; /* dispatch: the sender's first row in the output */
    int32_t rows;      /* rows with this number or a greater one were, or will be, dropped */
    int32_t mode;      /* ep_mode */
    /* 1: x lies on a GPU, and only kernels reach it there. x_offset then counts from the start of the GPU's heap. If
       not all ranks of a node say so in a call across nodes, rows of those that do go by the queue. */
    int32_t carried;
} ep_advert;

/* An early advertisement: free space for the results of a fresh dispatch. A rank on a GPU sends it with its header,
   before it knows the number of rows. The rows that come are laid out from the start of the space (ep_block_map_of). If
   they do not fit, the early advertisement does not hold, and the rank sends an ep_reply. All ranks conclude from the
   headers whether it holds. */
typedef struct ep_free_space {
    uint64_t offset; /* from the heap's start */
    uint64_t bytes;  /* 0: none */
    int32_t mode;    /* ep_mode */
    int32_t growth;  /* ep_growth; valid in each header with counts, also with 0 bytes */
} ep_free_space;
/* Says whether a rank wants its pool to grow in this call, after the counts are known and before rows move. Pools can
   grow only on all ranks together. A rank can take part if its host waits for the counts. Pools grow if some rank
   requests it and all ranks can. In such a call no early advertisement holds. */
typedef enum ep_growth {
    EP_GROWTH_NONE = 0,
    EP_GROWTH_CAN = 1,
    EP_GROWTH_REQUESTED = 2 /* together with EP_GROWTH_CAN */
} ep_growth;
/* The most ranks of a group that sends early advertisements. To check them, each rank adds up the counts of all pairs
   of ranks, as in a route; ranks of a larger group avoid that. */
#define EP_SPACE_RANKS 16
EP_FUNC int32_t ep_tells_space(int32_t ranks)
{
    return ranks <= EP_SPACE_RANKS;
}

/* The reason why a rank cannot carry out the call. With status 0 it can. */
typedef struct ep_rejection {
    int32_t status;
    char text[EP_REJECTION_TEXT];
} ep_rejection;

/* The header that opens a call. The source rank writes it into the memory of its reader, the owner. The owner first
   acquires `flag`, whose high 32 bits are then the call's epoch. In a fresh dispatch or a route, arrays of int32 follow
   this struct. The first is channel_prefix[C]: the tokens that the source's channels 0..c send here. The second is
   expert_counts[max L]: the tokens for each local expert. In a route, and on GPUs with N ≤ EP_SPACE_RANKS, a third is
   sent[N]: the tokens that the source sends to each rank. */
typedef struct ep_header {
    /* epoch << 32 | 1. The source stores it last (release); the owner polls it (acquire). */
    EP_SHARED(uint64_t) flag;
    ep_form form;
    ep_advert advert;    /* of a cached dispatch or a combine */
    ep_free_space spare; /* of a fresh dispatch on a GPU; across nodes, only what it says of growth */
    ep_rejection rejection;
} ep_header;

/* Each receiver of a fresh dispatch writes this to each sender as soon as it knows its output, unless its early
   advertisement holds. */
typedef struct ep_reply {
    EP_SHARED(uint64_t) flag; /* as in ep_header */
    ep_advert advert;
    ep_rejection rejection;
} ep_reply;

/* Flags, heads and tails have the epoch in the high 32 bits and a value in the low ones. Epochs wrap, and 0 is an
   ordinary epoch. A word that was never written is 0. It cannot be mistaken for a flag of epoch 0, whose value is 1; as
   a head or tail of epoch 0 it means that no row has moved. A word from 2^32 calls ago would look valid, but only if no
   call in between has written it. */
EP_FUNC uint64_t ep_word(uint32_t epoch, uint32_t value)
{
    return (uint64_t)epoch << 32 | value;
}
EP_FUNC uint32_t ep_word_epoch(uint64_t word)
{
    return (uint32_t)(word >> 32);
}
/* Returns the value if the word is of this epoch, else 0, since this call has not moved that head or tail yet. */
EP_FUNC uint32_t ep_word_value(uint64_t word, uint32_t epoch)
{
    return ep_word_epoch(word) == epoch ? (uint32_t)word : 0;
}
/* Says whether the calling rank can find this word as a flag, head or tail while it waits in the epoch. Its value is at
   most `most`. Its epoch is not later, because no rank is ahead of a rank that still waits for it. A network may have
   delivered only a part of the word, its lowest byte first. If the word was 0 before, only low bytes of the new epoch
   are there, and the loop accepts them. Over an older word the mixed epoch is not later, either. */
EP_FUNC int32_t ep_word_is_sound(uint64_t word, uint32_t epoch, uint32_t most)
{
    const uint32_t seen = ep_word_epoch(word);
    if ((uint32_t)word > most) return 0;
    for (int32_t bits = 0; bits < 32; bits += 8)
        if (seen == (epoch & (((uint32_t)1 << bits) - 1))) return 1;
    return (int32_t)(seen - epoch) <= 0;
}

/* ---- experts and channels ---------------------------------------------------------------------------------------- */

/* Returns the rank of an existing expert, 0 … E - 1. */
EP_FUNC int32_t ep_expert_owner(int64_t expert, int32_t local_experts)
{
    return (int32_t)((uint32_t)expert / (uint32_t)local_experts);
}
/* Returns the local expert number that recv_topk_idx has at `rank` for a top-k entry, or -1. It avoids a division,
   because it runs for each top-k entry of each row. */
EP_FUNC int32_t ep_expert_seen_by(int64_t expert, int32_t rank, int32_t local_experts)
{
    int64_t local = expert - (int64_t)rank * local_experts;
    return expert >= 0 && local >= 0 && local < local_experts ? (int32_t)local : -1;
}
/* Counts of an expert's tokens are rounded up to a multiple of at most EP_MOST_ALIGNMENT. One rank may send at most
   ep_most_of_expert tokens to an expert. So the rounded sum over all ranks fits 31 bits. Each rank rejects a greater
   number of its own tokens before the call opens. The receiver alone would notice too late to tell the others. */
#define EP_MOST_ALIGNMENT (1 << 30)
EP_FUNC int32_t ep_most_of_expert(int32_t ranks)
{
    return (1 << 30) / ranks;
}
/* First token of channel c of C; channel c ends where c + 1 begins. */
EP_FUNC int64_t ep_channel_begin(int64_t tokens, int32_t channels, int32_t c)
{
    int64_t share = (tokens + channels - 1) / channels;
    int64_t begin = share * c;
    return begin < tokens ? begin : tokens;
}
/* A handle from another buffer may have more channels than this buffer has rings. Then each ring carries `joined`
   channels, adjacent in tokens and in rows. Returns this number, which is the same on all ranks. */
EP_FUNC int32_t ep_channels_joined(int32_t channels, int32_t rings)
{
    return (channels + rings - 1) / rings;
}
/* Returns the number of rings in use. */
EP_FUNC int32_t ep_rings_of(int32_t channels, int32_t joined)
{
    return (channels + joined - 1) / joined;
}
/* First token of ring i; it ends where i + 1 begins. */
EP_FUNC int64_t ep_ring_begin(int64_t tokens, int32_t channels, int32_t joined, int32_t i)
{
    return ep_channel_begin(tokens, channels, i * joined);
}
/* Both read one rank's inclusive prefix array [C]. The first function returns the number of rows before ring i, the
   second one the number of rows that ring i carries. */
EP_FUNC int32_t ep_rows_before_ring(const int32_t *prefix, int32_t joined, int32_t i)
{
    return i ? prefix[i * joined - 1] : 0;
}
EP_FUNC int32_t ep_rows_of_ring(const int32_t *prefix, int32_t channels, int32_t joined, int32_t i)
{
    int32_t end = (i + 1) * joined;
    return prefix[(end < channels ? end : channels) - 1] - ep_rows_before_ring(prefix, joined, i);
}
/* Returns the sum of the entries before entry i, from an inclusive prefix array. */
EP_FUNC int32_t ep_prefix_before(const int32_t *prefix, int32_t i)
{
    return i ? prefix[i - 1] : 0;
}

/* ---- orders of sums ---------------------------------------------------------------------------------------------- */

/* Says which rows a combine adds for a token, and in which order: values of expar_ep_sum_order. In sums a "slot" is one
   of the token's K top-k entries. */
typedef enum ep_sum_order { EP_SUM_BY_RANK = 0, EP_SUM_BY_SLOT = 1, EP_SUM_EACH_SLOT = 2 } ep_sum_order;
/* Says how combined weights are made: values of expar_ep_weights_of. */
typedef enum ep_weights_of { EP_WEIGHTS_OF_ALL = 0, EP_WEIGHTS_OF_OWNER = 1 } ep_weights_of;

/* A handle keeps the rank of each slot's expert, owners[T][K], for the orders by slot. This value stands for a slot
   without an expert. */
#define EP_NO_OWNER 0xffffu

typedef struct ep_sum {
    int32_t order; /* ep_sum_order */
    int32_t ranks, topk;
    /* 1: the caller chose the ranks (token_in_rank), so a token may go to a rank that has none of its experts */
    int32_t strangers;
} ep_sum;
/* A place of a token's sum, and the rank whose row is added there. It follows from the order alone: the token may not
   have gone to that rank, and then there is no row to add. */
typedef struct ep_place {
    int32_t rank; /* -1: no row is added */
    /* with EP_SUM_EACH_SLOT the slot whose row is added; else -1: a rank has one row for the token */
    int32_t slot;
} ep_place;

/* Returns the number of a token's places. */
EP_FUNC int32_t ep_sum_places(const ep_sum *sum)
{
    if (sum->order == EP_SUM_BY_RANK) return sum->ranks;
    return sum->topk + (sum->order == EP_SUM_BY_SLOT && sum->strangers ? sum->ranks : 0);
}
/* Says whether one of the slots from `first` on belongs to the rank. */
EP_FUNC int32_t ep_has_slot(const uint16_t *owners, int32_t first, int32_t topk, int32_t rank)
{
    int32_t found = 0;
    for (int32_t k = first; k < topk; k++)
        found |= owners[k] == rank;
    return found;
}
/* Returns place `number` of a token. Rows are added from place 0 on, so this function defines the order of sums.
   owners[K] are those of the token; EP_SUM_BY_RANK ignores them. With EP_SUM_BY_SLOT a rank has the place of its last
   slot, and ranks without a slot come first. */
EP_FUNC ep_place ep_sum_place(const ep_sum *sum, const uint16_t *owners, int32_t number)
{
    ep_place place;
    place.rank = number;
    place.slot = -1;
    if (sum->order == EP_SUM_BY_RANK) return place;
    int32_t strangers = ep_sum_places(sum) - sum->topk, slot = number - strangers;
    if (slot < 0) {
        if (ep_has_slot(owners, 0, sum->topk, number)) place.rank = -1;
        return place;
    }
    place.rank = owners[slot] == EP_NO_OWNER ? -1 : owners[slot];
    if (sum->order == EP_SUM_EACH_SLOT)
        place.slot = slot;
    else if (ep_has_slot(owners, slot + 1, sum->topk, place.rank))
        place.rank = -1;
    return place;
}

/* ---- the buffer -------------------------------------------------------------------------------------------------- */

/* The values that determine the sizes of a buffer, the same on all ranks. A buffer without limits grows: the values are
   then its present sizes, and its rings have no slots before the first call. */
typedef struct ep_shape {
    int32_t ranks;         /* N */
    int32_t channels;      /* C */
    int32_t ring_slots;    /* S */
    int32_t topk;          /* largest K */
    int32_t scales;        /* most scales of a row */
    int32_t local_experts; /* largest L */
    int64_t tokens;        /* largest T */
    int64_t row_bytes;     /* largest row */
    /* bytes of a pool inside the buffer; 0: outputs lie elsewhere */
    uint64_t pool_bytes;
} ep_shape;

/* Offsets from the start of the buffer. */
typedef struct ep_space {
    uint64_t header_sent; /* inside a header: of sent[N] */
    uint64_t opening_bytes, slot_bytes;
    /* inside a ring's slot, after the row; the row's part has at least 16 bytes for each top-k entry */
    uint64_t slot_scales, slot_idx, slot_weights, slot_src;
    uint64_t headers, replies, dones, counters, heads, tails, slots, pool;
    uint64_t total_bytes;
} ep_space;

EP_FUNC uint64_t ep_round(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* The contents of a ring's slot: a row, then its parts at these offsets. */
typedef struct ep_slot {
    uint64_t scales, idx, weights, src, bytes;
} ep_slot;
EP_FUNC ep_slot ep_slot_of(int64_t row_bytes, int32_t scales, int32_t topk)
{
    ep_slot s;
    s.scales = ep_round((uint64_t)row_bytes, 16);
    if (s.scales < 16 * (uint64_t)topk) s.scales = 16 * (uint64_t)topk;
    s.idx = s.scales + ep_round(4 * (uint64_t)scales, 16);
    s.weights = s.idx + ep_round(8 * (uint64_t)topk, 16);
    s.src = s.weights + 4 * (uint64_t)topk;
    s.bytes = ep_round(s.src + 4, EP_LINE_BYTES);
    return s;
}

/* Returns the number of slots of a ring if the caller does not set it. Rings are small enough to stay in a cache: a row
   that goes through main memory costs twice as much (measured: docs/internals/measurements/cpu.md). */
#define EP_RING_BYTES       (64 << 10)
#define EP_LEAST_RING_SLOTS 4
#define EP_MOST_RING_SLOTS  64
EP_FUNC int32_t ep_ring_slots_for(int64_t row_bytes)
{
    int64_t slots = row_bytes > 0 ? EP_RING_BYTES / row_bytes : EP_MOST_RING_SLOTS;
    return (int32_t)(slots < EP_LEAST_RING_SLOTS  ? EP_LEAST_RING_SLOTS
                     : slots > EP_MOST_RING_SLOTS ? EP_MOST_RING_SLOTS
                                                  : slots);
}

/* Returns the layout of a buffer; no other code computes it. The caller has bounded the shape, so that nothing
   overflows (ep_shape_make). */
EP_FUNC ep_space ep_space_of(const ep_shape *shape)
{
    ep_space s;
    uint64_t n = (uint64_t)shape->ranks, rings = n * (uint64_t)shape->channels;
    s.header_sent = sizeof(ep_header) + 4 * ((uint64_t)shape->channels + (uint64_t)shape->local_experts);
    s.opening_bytes = ep_round(s.header_sent + 4 * n, EP_LINE_BYTES);
    ep_slot slot = ep_slot_of(shape->row_bytes, shape->scales, shape->topk);
    s.slot_scales = slot.scales;
    s.slot_idx = slot.idx;
    s.slot_weights = slot.weights;
    s.slot_src = slot.src;
    s.slot_bytes = slot.bytes;
    s.headers = 0;
    s.replies = ep_round(s.headers + 2 * n * s.opening_bytes, EP_ALIGN_BYTES);
    s.dones = ep_round(s.replies + 2 * n * ep_round(sizeof(ep_reply), EP_LINE_BYTES), EP_ALIGN_BYTES);
    s.counters = s.dones + 2 * n * EP_LINE_BYTES;
    s.heads = s.counters + 6 * EP_LINE_BYTES;
    s.tails = s.heads + rings * EP_LINE_BYTES;
    s.slots = ep_round(s.tails + rings * EP_LINE_BYTES, EP_ALIGN_BYTES);
    s.pool = ep_round(s.slots + rings * (uint64_t)shape->ring_slots * s.slot_bytes, 4096);
    s.total_bytes = s.pool + shape->pool_bytes;
    return s;
}

/* Returns how many bytes of a row one slot of a ring carries in a combine. Normally that is the whole row. With
   EP_SUM_EACH_SLOT a ring's slot carries the same part of each of the token's K rows, side by side, and the next slots
   carry the next parts. So K rows fit rings of any length. Such a slot has int32 [K] in place of the indices; a
   negative entry means that there is no row. */
EP_FUNC int64_t ep_slot_part_bytes(uint64_t slot_scales, const ep_sum *sum, int64_t row_bytes)
{
    if (sum->order != EP_SUM_EACH_SLOT) return row_bytes;
    int64_t part = (int64_t)(slot_scales / 16 / (uint64_t)sum->topk * 16);
    return part < row_bytes ? part : row_bytes;
}
EP_FUNC int64_t ep_ring_part_bytes(const ep_space *s, const ep_sum *sum, int64_t row_bytes)
{
    return ep_slot_part_bytes(s->slot_scales, sum, row_bytes);
}

EP_FUNC uint64_t ep_header_at(const ep_space *s, int32_t ranks, uint32_t epoch, int32_t source)
{
    return s->headers + ((uint64_t)(epoch & 1) * (uint64_t)ranks + (uint64_t)source) * s->opening_bytes;
}
EP_FUNC uint64_t ep_reply_at(const ep_space *s, int32_t ranks, uint32_t epoch, int32_t source)
{
    return s->replies +
           ((uint64_t)(epoch & 1) * (uint64_t)ranks + (uint64_t)source) * ep_round(sizeof(ep_reply), EP_LINE_BYTES);
}
EP_FUNC uint64_t ep_completion_at(const ep_space *s, int32_t ranks, uint32_t epoch, int32_t source)
{
    return s->dones + ((uint64_t)(epoch & 1) * (uint64_t)ranks + (uint64_t)source) * EP_LINE_BYTES;
}
typedef enum ep_mailbox { EP_MAILBOX_HEADER = 0, EP_MAILBOX_REPLY = 1, EP_MAILBOX_COMPLETION = 2 } ep_mailbox;
EP_FUNC uint64_t ep_counter_at(const ep_space *s, ep_mailbox mailbox, uint32_t epoch)
{
    return s->counters + ((uint64_t)mailbox * 2 + (epoch & 1)) * EP_LINE_BYTES;
}
/* In these functions `peer` is the receiver of the ring for heads, and its source for tails and slots. */
EP_FUNC uint64_t ep_head_at(const ep_space *s, int32_t ranks, int32_t channel, int32_t peer)
{
    return s->heads + ((uint64_t)channel * (uint64_t)ranks + (uint64_t)peer) * EP_LINE_BYTES;
}
EP_FUNC uint64_t ep_tail_at(const ep_space *s, int32_t ranks, int32_t channel, int32_t peer)
{
    return s->tails + ((uint64_t)channel * (uint64_t)ranks + (uint64_t)peer) * EP_LINE_BYTES;
}
EP_FUNC uint64_t ep_slot_at(const ep_space *s, const ep_shape *shape, int32_t channel, int32_t peer, uint32_t row)
{
    uint64_t ring = (uint64_t)channel * (uint64_t)shape->ranks + (uint64_t)peer;
    return s->slots + (ring * (uint64_t)shape->ring_slots + row % (uint32_t)shape->ring_slots) * s->slot_bytes;
}

/* Returns a count of rows as int32. A larger count becomes the largest int32. */
EP_FUNC int32_t ep_saturate(int64_t count)
{
    const int32_t most = 0x7fffffff;
    return count < most ? (int32_t)count : most;
}

/* ---- outputs of a dispatch --------------------------------------------------------------------------------------- */

/* The parts of one output block: recv_x, recv_scales, recv_topk_idx, recv_topk_weights, recv_row_map, recv_src_token,
   recv_row_weights, recv_src_metadata and column-major scales, in this order. */
typedef struct ep_block_shape {
    int64_t x_rows;      /* rows of recv_x, its scales and its weights */
    int64_t rows;        /* rows of the other parts */
    int64_t row_bytes;   /* 0: no recv_x */
    int64_t scale_bytes; /* of a row; 0: none */
    int32_t topk;
    int32_t idx_bytes;    /* of an index; 0: none */
    int32_t weights;      /* 1: with weights */
    int32_t map;          /* 1: with a row map */
    int32_t src;          /* 1: with numbers at the source */
    int32_t row_weights;  /* 1: with one weight for each row of recv_x */
    int32_t metadata;     /* 1: with the metadata of sources */
    int64_t column_bytes; /* bytes of a row's scales in column-major order; 0: none */
} ep_block_shape;
/* Returns the distance between two columns of column-major scales, in elements. */
EP_FUNC uint64_t ep_column_pitch(int64_t rows)
{
    return ep_round((uint64_t)rows, 4);
}
/* Offsets from the block's start. */
typedef struct ep_block_map {
    uint64_t x, scales, idx, weights, map, src, row_weights, metadata, columns, total_bytes;
} ep_block_map;
EP_FUNC ep_block_map ep_block_map_of(const ep_block_shape *shape)
{
    ep_block_map m;
    uint64_t slots = (uint64_t)shape->rows * (uint64_t)shape->topk;
    m.x = 0;
    m.scales = m.x + ep_round((uint64_t)shape->x_rows * (uint64_t)shape->row_bytes, EP_ALIGN_BYTES);
    m.idx = m.scales + ep_round((uint64_t)shape->x_rows * (uint64_t)shape->scale_bytes, EP_ALIGN_BYTES);
    m.weights = m.idx + ep_round(slots * (uint64_t)shape->idx_bytes, EP_ALIGN_BYTES);
    m.map = m.weights + (shape->weights ? ep_round(4 * slots, EP_ALIGN_BYTES) : 0);
    m.src = m.map + (shape->map ? ep_round(4 * slots, EP_ALIGN_BYTES) : 0);
    m.row_weights = m.src + (shape->src ? ep_round(4 * (uint64_t)shape->rows, EP_ALIGN_BYTES) : 0);
    m.metadata = m.row_weights + (shape->row_weights ? ep_round(4 * (uint64_t)shape->x_rows, EP_ALIGN_BYTES) : 0);
    m.columns = m.metadata + (shape->metadata ? ep_round(4 * (slots + 2 * (uint64_t)shape->rows), EP_ALIGN_BYTES) : 0);
    m.total_bytes =
        m.columns + ep_round(ep_column_pitch(shape->x_rows) * (uint64_t)shape->column_bytes, EP_ALIGN_BYTES);
    return m;
}
/* Returns the shape of a block that has one row of recv_x for each row that comes. idx_bytes: bytes of an index; 0:
   none. */
EP_FUNC ep_block_shape ep_block_shape_of(const ep_form *form, int64_t row_bytes, int32_t idx_bytes, int64_t rows)
{
    ep_block_shape s;
    s.x_rows = s.rows = rows;
    s.row_bytes = row_bytes;
    s.scale_bytes = 4 * (int64_t)form->scales;
    s.topk = form->topk;
    s.idx_bytes = idx_bytes;
    s.weights = form->weights;
    s.map = 0;
    s.src = form->options & EP_OPTION_SRC_TOKENS ? 1 : 0;
    s.row_weights = s.metadata = 0;
    s.column_bytes = 0;
    return s;
}

#endif
