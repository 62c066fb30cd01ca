/* SPDX-License-Identifier: Apache-2.0 */
/* Index arithmetic of low-latency mode, and the layout of its memory: who writes where, and which words tell ranks
 * about it.
 *
 * This header compiles as C17, under nvcc and under NVRTC: no libc, no pointers to host objects. ep/low_latency, its
 * executors and the tests use it.
 *
 * A low-latency buffer is the same range of offsets in every PE's heap. The table lists the parts of this range in
 * their order, with dimensions, and the bytes of one element. It shows them from the owner's side: a source is a rank
 * that writes to the owner. N is the number of ranks, B the most tokens of a rank, K the buffer's top-k, and L the
 * number of local experts. Each kind of call (dispatch, combine) has a double buffer: the parity of a call's epoch
 * chooses the slot (`half` in the code).
 *
 *     headers       [kind][N][4]  unit_bytes      message headers (`unit`) from each source, by epoch modulo 4
 *     acks          [N][kind][2]  8               acknowledgements (`read`), "I have read that slot", from each rank
 *                                                 to which the owner sends
 *     message flags [2][N][B]     8               a flag for each message
 *     row flags     [2][B][P]     8               a flag for each place
 *     weight flags  [2][N][B]     8               a flag for the weights of each message that are sent ahead
 *     word messages [2][N][W]     2 message_bytes messages of small batches, in words
 *     word rows     [2][W][P]     2 place_bytes   rows of small batches' places, in words
 *     weights       [2][N][B][K]  4               weights of a reduced combine whose dispatch had none
 *     messages      [2][N][B]     message_bytes   dispatch: two message slots (`bank`), each with a share for each
 *                                                 source, which has messages in the order of the source's tokens
 *     places        [2][B][P]     place_bytes     combine: P places for the rows of token b. P is K, or min(K, N)
 *                                                 without exact sums
 *
 * If some ranks are not mapped, these follow:
 *
 *     returns       [2][R]        piece           combine: rows from ranks that are not mapped, in pieces
 *     stage         [32]          piece           outgoing messages and rows, which leave from here. Only the owner
 *                                                 uses it. With masks it is [regions][32]
 *
 * A rank that is not mapped sends its messages and rows in pieces of LL_PIECE_ROWS, one put for each piece. The last
 * piece may have fewer. A piece ends with a flag, which has a cache line of its own at a fixed place. The rows end
 * right before this line. So a piece is contiguous, however many rows it has and however long they are. The share of
 * such a source among the messages is divided into pieces, too. Its message slot is the one of the call's parity. R
 * pieces suffice for B * P rows, however these are divided among N ranks. Flags of pieces are zero when the buffer is
 * made.
 *
 * Everything before the weights consists of words, which are all zero when the buffer is made. Calls need not clear
 * words, since each word carries the stamp of its call's epoch.
 *
 * A small batch has W tokens at most. A rank with such a batch sends its messages, and gets its rows back, in words
 * that carry 32 bits of data each. That takes twice the bytes, but readers need not wait for a flag that comes after
 * the data. W is 0 if the executor does not use words for data.
 *
 * All messages that a dispatch sends to one rank lie in one message slot. The source chooses a free one there, and its
 * message flags name it. So this slot need not have the parity of the call. An executor whose flags name no slot uses
 * the one of that parity.
 *
 * A buffer with masks has several regions of row flags, places and returns: [regions][2][B][P]. Each slot of the double
 * buffer lies in one region. It moves to another region when a masked rank may still write to the present one. Every
 * other word has only one writer, so late stores of a masked rank change no other rank's words. After the weight flags
 * such a buffer has
 *
 *     maskers       [N]           64              "you are masked here", from each rank
 *     cleans        [N]           clean_bytes     words that each rank writes in a clean
 *
 * Epochs of a kind count from 1 in 64 bits. Words have 32 bits for them (ll_stamp), and stamp 0 belongs to no epoch.
 * Epochs that differ by 2^32 - 4 have the same stamp. So a word could be mistaken for that of a call so much later, if
 * no call in between wrote it. Flags that may stay unwritten for so long are swept (LL_SWEEP_CALLS). */
#ifndef EXPAR_PROTO_LOW_LATENCY_H
#define EXPAR_PROTO_LOW_LATENCY_H

#include "proto/codec/codec.h"
#include "proto/normal.h"

typedef enum ll_kind { LL_DISPATCH = 0, LL_COMBINE = 1 } ll_kind;
#define LL_KINDS         2
#define LL_SLOTS         2
#define LL_HEADER_COPIES 4 /* two calls may be open, and a peer may be two calls ahead */
#define LL_MOST_TOPK     32
#define LL_SWEEP_CALLS   ((uint64_t)1 << 30)
#define LL_PIECE_ROWS    8
#define LL_STAGED        32 /* pieces: their 256 rows are as many as a network carries at a time */

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Returns the stamp of an epoch, for words. It is 0 only for epoch 0, which no call has. Modulo 4 it equals the epoch,
   so slots, and the four copies of headers, can be selected by either. */
EP_FUNC uint32_t ll_stamp(uint64_t epoch)
{
    return epoch == 0 ? 0 : (uint32_t)((epoch - 1) % 0xfffffffcu + 1);
}
EP_FUNC int32_t ll_slot_of_epoch(uint64_t epoch)
{
    return (int32_t)(epoch & 1);
}
/* Makes a word with data and flag in one: the stamp is in the high 32 bits. */
EP_FUNC uint64_t ll_word(uint64_t epoch, uint32_t value)
{
    return (uint64_t)ll_stamp(epoch) << 32 | value;
}
EP_FUNC int32_t ll_word_is_of(uint64_t word, uint64_t epoch)
{
    return (uint32_t)(word >> 32) == ll_stamp(epoch);
}

/* ---- what ranks tell each other of a call ------------------------------------------------------------------------ */

/* The members on which all ranks of a call must agree. */
typedef struct ll_form {
    int32_t format;  /* expar_ll_format */
    int32_t dtype;   /* expar_dtype of x */
    int32_t sum;     /* expar_ll_sum of a combine */
    int32_t weights; /* 1: weights travel in the messages of a dispatch, or ahead of the rows of a combine */
    int32_t topk;    /* K of the call */
    uint32_t route;  /* combine: stamp of the dispatch whose handle is used */
} ll_form;

/* Returns the codec_format in which the rows travel. */
EP_FUNC int32_t ll_codec_of(const ll_form *form)
{
    return form->format == 0 ? form->dtype : form->format + CODEC_FP8 - 1;
}

/* Packs all members but the route into a tag. */
EP_FUNC uint32_t ll_form_tag(const ll_form *form)
{
    return (uint32_t)form->format | (uint32_t)form->dtype << 4 | (uint32_t)form->sum << 12 |
           (uint32_t)form->weights << 14 | (uint32_t)form->topk << 16;
}
EP_FUNC ll_form ll_form_of(uint32_t tag, uint32_t route)
{
    ll_form form;
    form.format = (int32_t)(tag & 15);
    form.dtype = (int32_t)(tag >> 4 & 255);
    form.sum = (int32_t)(tag >> 12 & 3);
    form.weights = (int32_t)(tag >> 14 & 1);
    form.topk = (int32_t)(tag >> 16);
    form.route = route;
    return form;
}

/* Marks in LL_HEADER_MESSAGES of a dispatch. LL_HEADER_IN_WORDS: the messages come in words, and sums go back in words.
   LL_HEADER_FEW: rows of top-k slots go back in words, too. */
#define LL_HEADER_IN_WORDS   0x40000000u
#define LL_HEADER_FEW        0x20000000u
#define LL_HEADER_MARKS      (LL_HEADER_IN_WORDS | LL_HEADER_FEW)
#define LL_WORD_TOKENS       16 /* the most tokens of a small batch */
#define LL_EXACT_WORD_TOKENS 4  /* the most tokens of a batch whose exact combines have rows in words */

/* Words of a message header. The source writes them, and the owner reads them (acquire). Each word is complete by
   itself once it has the call's stamp. A CPU stores them with release, the status last. A GPU stores them in any order
   (relaxed), but stores the status of a rejection last (release). Words from a rank that is not mapped come by a put,
   and are complete once the last word is there.

   In a dispatch the counts of the owner's L experts follow. If some ranks are not mapped, one more word follows. It is
   the number of the piece of the source's `returns` with which the rows from the owner begin. After the words comes the
   reason of a rejection, as plain bytes, which are written before the status. */
typedef enum ll_header_word {
    /* expar_status: 0, or why the source takes no part, or only a limited one */
    LL_HEADER_STATUS = 0,
    LL_HEADER_TAG = 1,   /* ll_form_tag */
    LL_HEADER_ROUTE = 2, /* ll_form.route */
    /* dispatch: the number of messages from that source; combine: the region of the source's own slot */
    LL_HEADER_MESSAGES = 3,
    LL_HEADER_COUNTS = 4
} ll_header_word;

/* Words that a rank writes in a clean. Each try of a clean is an attempt, which has a number. The rank writes the words
   (release), and the owner of the memory reads them (acquire). Three sets of ranks follow: the views of even and of odd
   steps, and the decision. A set has 32 bits for each rank: the number of that rank's attempt, or 0 if the rank is not
   in the set. Then LL_CLEAN_RESULTS words follow, which are the result of the decision. They are the highest number of
   calls, the highest epoch of each kind, and the lowest rank that rejects: rank << 32 | status, or 0. */
typedef enum ll_clean_word {
    /* attempt << 32 | step. The step is 0 while LL_CLEAN_CALLS to LL_CLEAN_STATUS are written, and 1 once they are
       there. From 2 on it is the number of the view that is there. */
    LL_CLEAN_STAGE = 0,
    /* The attempt that has come to a decision. The decision and its result are there. It is 0 while a decision is
       written, and keeps its value until the next one. */
    LL_CLEAN_DECIDED = 1,
    LL_CLEAN_CALLS = 2,
    LL_CLEAN_EPOCHS = 3, /* one for each kind */
    /* expar_status: 0, or why the rank rejects the clean */
    LL_CLEAN_STATUS = 5,
    /* the number of the words above, which a rank writes when it comes to the clean */
    LL_CLEAN_SAID = 6,
    LL_CLEAN_SET = 6
} ll_clean_word;
#define LL_CLEAN_RESULTS 4
#define LL_CLEAN_SETS    3
#define LL_REGIONS       4 /* the most regions: one in use, and others to move to */

/* A bit in the word of `maskers`, which also has a count: "I have left the buffer". A rank stores it after everything
   else that it writes. */
#define LL_MASKER_PARTED ((uint64_t)1 << 63)

/* The first bytes of a message. After them come int32 expert[K] (local, or -1) and int32 row[K] (its number among the
   source's rows for that expert). If weights are given, float weights[K] comes next. The payload and its scales begin
   at header_bytes. K is that of the buffer. */
typedef struct ll_header {
    int32_t token; /* its number at the source */
    /* how many distinct ranks the token's top-k slots name before they name this rank */
    int32_t place;
} ll_header;
EP_FUNC int32_t *ll_header_experts(ll_header *header)
{
    return (int32_t *)(header + 1);
}
EP_FUNC int32_t *ll_header_rows(ll_header *header, int32_t topk)
{
    return ll_header_experts(header) + topk;
}
EP_FUNC float *ll_header_weights(ll_header *header, int32_t topk)
{
    return (float *)(ll_header_experts(header) + 2 * topk);
}

/* ---- where everything lies --------------------------------------------------------------------------------------- */

typedef struct ll_shape {
    int32_t ranks, tokens, topk, local_experts; /* N, B, K, L */
    int32_t hidden, element_bytes;              /* H, and the most bytes of an element */
    int32_t exact, reduced;                     /* 1: such combines will be made */
    /* 1: the buffer has masks; the number of regions, which is 1 without masks */
    int32_t masking, regions;
    int32_t word_tokens; /* W */
    int32_t unmapped;    /* 1: the memory of some rank is not mapped on some other one */
} ll_shape;

typedef struct ll_space {
    uint64_t unit_bytes[LL_KINDS];
    uint64_t flag_share_bytes; /* message and weight flags of one source */
    uint64_t header_bytes, message_bytes, place_bytes;
    int32_t places; /* P */
    uint64_t units[LL_KINDS], reads, message_flags, row_flags, weight_flags;
    uint64_t maskers, cleans, clean_bytes; /* with masks */
    uint64_t word_messages, word_rows;     /* with small batches */
    uint64_t words_bytes;                  /* all of the words above */
    uint64_t weights, messages, rows;
    uint64_t share_bytes; /* messages of one source in one message slot */
    /* If some ranks are not mapped: a piece of messages and one of returned rows, with their flags, and R. */
    uint64_t message_piece_bytes, return_piece_bytes, return_pieces;
    uint64_t returns, stage;
    uint64_t total_bytes;
} ll_space;

/* Returns the most bytes of a payload. A group of 128 elements may add eight bytes of its own. */
EP_FUNC uint64_t ll_payload_bytes(const ll_shape *shape)
{
    uint64_t row = (uint64_t)shape->hidden * (uint64_t)shape->element_bytes;
    return shape->hidden % 128 ? row : row + (uint64_t)shape->hidden / 128 * 8;
}
/* Returns how many pieces the stage holds. Pieces that are under way to a rank which was masked while it was silent may
   occupy it for long. So a buffer with masks has LL_STAGED pieces for each region. */
EP_FUNC uint64_t ll_staged(const ll_shape *shape)
{
    return LL_STAGED * (uint64_t)shape->regions;
}
/* Returns how many pieces so many messages or rows take. */
EP_FUNC int32_t ll_pieces(int32_t rows)
{
    return (rows + LL_PIECE_ROWS - 1) / LL_PIECE_ROWS;
}
/* Returns how many of these messages or rows are in that piece. */
EP_FUNC int32_t ll_piece_rows(int32_t rows, int32_t piece)
{
    const int32_t left = rows - piece * LL_PIECE_ROWS;
    return left < LL_PIECE_ROWS ? left : LL_PIECE_ROWS;
}
/* Returns P. */
EP_FUNC int32_t ll_places(const ll_shape *shape)
{
    return shape->exact || shape->topk < shape->ranks ? shape->topk : shape->ranks;
}

/* Returns the number of words in a message header. */
EP_FUNC int32_t ll_words_of_header(const ll_shape *shape, ll_kind kind)
{
    return LL_HEADER_COUNTS + (kind == LL_DISPATCH ? shape->local_experts + (shape->unmapped ? 1 : 0) : 0);
}

/* Returns the layout. The members of the shape are within their bounds (ep/low_latency/shape.c), so nothing
   overflows. */
EP_FUNC ll_space ll_space_of(const ll_shape *shape)
{
    const uint64_t n = (uint64_t)shape->ranks, tokens = (uint64_t)shape->tokens, topk = (uint64_t)shape->topk;
    const uint64_t words = (uint64_t)ll_words_of_header(shape, LL_DISPATCH), unmapped = shape->unmapped ? 1 : 0;
    ll_space space;
    space.places = ll_places(shape);
    space.unit_bytes[LL_DISPATCH] = ep_round(words * 8 + EP_REJECTION_TEXT, EP_LINE_BYTES);
    space.unit_bytes[LL_COMBINE] = ep_round(LL_HEADER_COUNTS * 8 + EP_REJECTION_TEXT, EP_LINE_BYTES);
    space.flag_share_bytes = ep_round(tokens * 8, EP_LINE_BYTES);
    space.header_bytes = ep_round(sizeof(ll_header) + topk * 12, EP_LINE_BYTES);
    space.message_bytes = ep_round(space.header_bytes + ll_payload_bytes(shape), EP_LINE_BYTES);
    space.place_bytes = ep_round(ll_payload_bytes(shape), EP_LINE_BYTES);
    const uint64_t sets = (uint64_t)LL_CLEAN_SETS * ((n + 1) / 2), regions = (uint64_t)shape->regions;
    const uint64_t places = regions * tokens * (uint64_t)space.places, ahead = shape->reduced ? n * tokens : 0;
    space.units[LL_DISPATCH] = 0;
    space.units[LL_COMBINE] = n * LL_HEADER_COPIES * space.unit_bytes[LL_DISPATCH];
    space.reads = space.units[LL_COMBINE] + n * LL_HEADER_COPIES * space.unit_bytes[LL_COMBINE];
    space.message_flags = space.reads + n * EP_LINE_BYTES;
    space.row_flags = space.message_flags + LL_SLOTS * n * space.flag_share_bytes;
    space.weight_flags = space.row_flags + ep_round(LL_SLOTS * places * 8, EP_LINE_BYTES);
    space.maskers = space.weight_flags + (shape->reduced ? LL_SLOTS * n * space.flag_share_bytes : 0);
    space.clean_bytes = ep_round((LL_CLEAN_SET + sets + LL_CLEAN_RESULTS) * 8, EP_LINE_BYTES);
    space.cleans = space.maskers + (shape->masking ? n * EP_LINE_BYTES : 0);
    const uint64_t small = LL_SLOTS * (uint64_t)shape->word_tokens;
    space.word_messages = space.cleans + (shape->masking ? n * space.clean_bytes : 0);
    space.word_rows = space.word_messages + small * n * 2 * space.message_bytes;
    space.words_bytes = space.word_rows + small * (uint64_t)space.places * 2 * space.place_bytes;
    space.weights = space.words_bytes;
    space.messages = ep_round(space.weights + LL_SLOTS * ahead * topk * sizeof(float), 4096);
    space.message_piece_bytes = LL_PIECE_ROWS * space.message_bytes + EP_LINE_BYTES;
    space.return_piece_bytes = LL_PIECE_ROWS * space.place_bytes + EP_LINE_BYTES;
    space.share_bytes =
        shape->unmapped ? (uint64_t)ll_pieces(shape->tokens) * space.message_piece_bytes : tokens * space.message_bytes;
    space.return_pieces = unmapped * (tokens * (uint64_t)space.places / LL_PIECE_ROWS + n);
    space.rows = space.messages + LL_SLOTS * n * space.share_bytes;
    space.returns = ep_round(space.rows + LL_SLOTS * places * space.place_bytes, 4096);
    space.stage = ep_round(space.returns + regions * LL_SLOTS * space.return_pieces * space.return_piece_bytes, 4096);
    space.total_bytes = space.stage + unmapped * ep_round(ll_staged(shape) * space.message_piece_bytes, 4096);
    return space;
}

EP_FUNC uint64_t ll_header_at(const ll_space *space, ll_kind kind, int32_t source, uint64_t epoch)
{
    return space->units[kind] +
           ((uint64_t)source * LL_HEADER_COPIES + epoch % LL_HEADER_COPIES) * space->unit_bytes[kind];
}
/* Returns the bytes from the start of a message header to its text. */
EP_FUNC uint64_t ll_header_text_at(const ll_shape *shape, ll_kind kind)
{
    return 8 * (uint64_t)ll_words_of_header(shape, kind);
}
EP_FUNC uint64_t ll_read_at(const ll_space *space, ll_kind kind, int32_t receiver, uint64_t epoch)
{
    return space->reads + (uint64_t)receiver * EP_LINE_BYTES + ((uint64_t)kind * LL_SLOTS + (epoch & 1)) * 8;
}
EP_FUNC uint64_t ll_share(const ll_shape *shape, int32_t source, uint64_t epoch)
{
    return (epoch & 1) * (uint64_t)shape->ranks + (uint64_t)source;
}
EP_FUNC uint64_t ll_message_flag_at(const ll_space *space, const ll_shape *shape, int32_t source, uint64_t epoch,
                                    int32_t message)
{
    return space->message_flags + ll_share(shape, source, epoch) * space->flag_share_bytes + (uint64_t)message * 8;
}
EP_FUNC uint64_t ll_message_at(const ll_space *space, const ll_shape *shape, int32_t source, int32_t bank,
                               int32_t message)
{
    uint64_t share = (uint64_t)bank * (uint64_t)shape->ranks + (uint64_t)source;
    return space->messages + share * space->share_bytes + (uint64_t)message * space->message_bytes;
}
/* Returns the number of a place of a token among all places. The slot of the epoch lies in that region. */
EP_FUNC uint64_t ll_place_number(const ll_space *space, const ll_shape *shape, uint64_t epoch, int32_t region,
                                 int32_t token, int32_t place)
{
    uint64_t half = (uint64_t)region * LL_SLOTS + (epoch & 1);
    uint64_t row = half * (uint64_t)shape->tokens + (uint64_t)token;
    return row * (uint64_t)space->places + (uint64_t)place;
}
EP_FUNC uint64_t ll_row_flag_at(const ll_space *space, uint64_t number)
{
    return space->row_flags + number * 8;
}
EP_FUNC uint64_t ll_row_at(const ll_space *space, uint64_t number)
{
    return space->rows + number * space->place_bytes;
}
EP_FUNC uint64_t ll_weight_flag_at(const ll_space *space, const ll_shape *shape, int32_t source, uint64_t epoch,
                                   int32_t message)
{
    return space->weight_flags + ll_share(shape, source, epoch) * space->flag_share_bytes + (uint64_t)message * 8;
}
EP_FUNC uint64_t ll_weights_at(const ll_space *space, const ll_shape *shape, int32_t source, uint64_t epoch,
                               int32_t message)
{
    uint64_t first = ll_share(shape, source, epoch) * (uint64_t)shape->tokens;
    return space->weights + (first + (uint64_t)message) * (uint64_t)shape->topk * sizeof(float);
}

/* Returns the offset of the flag of a piece of messages, from a source that is not mapped. */
EP_FUNC uint64_t ll_message_piece_flag_at(const ll_space *space, const ll_shape *shape, int32_t source, int32_t bank,
                                          int32_t piece)
{
    return ll_message_at(space, shape, source, bank, 0) + (uint64_t)(piece + 1) * space->message_piece_bytes -
           EP_LINE_BYTES;
}
/* Returns the offset of the flag of a piece of returned rows, in the slot of the epoch. */
EP_FUNC uint64_t ll_return_flag_at(const ll_space *space, uint64_t epoch, int32_t region, int32_t piece)
{
    uint64_t half = (uint64_t)region * LL_SLOTS + (epoch & 1);
    return space->returns + (half * space->return_pieces + (uint64_t)piece + 1) * space->return_piece_bytes -
           EP_LINE_BYTES;
}

/* For small batches: these return the offset of the word that carries the first 32 bits. */
EP_FUNC uint64_t ll_word_message_at(const ll_space *space, const ll_shape *shape, int32_t source, uint64_t epoch,
                                    int32_t message)
{
    uint64_t first = ll_share(shape, source, epoch) * (uint64_t)shape->word_tokens;
    return space->word_messages + (first + (uint64_t)message) * 2 * space->message_bytes;
}
EP_FUNC uint64_t ll_word_row_at(const ll_space *space, const ll_shape *shape, uint64_t epoch, int32_t token,
                                int32_t place)
{
    uint64_t row = (epoch & 1) * (uint64_t)shape->word_tokens + (uint64_t)token;
    return space->word_rows + (row * (uint64_t)space->places + (uint64_t)place) * 2 * space->place_bytes;
}

EP_FUNC uint64_t ll_masker_at(const ll_space *space, int32_t source)
{
    return space->maskers + (uint64_t)source * EP_LINE_BYTES;
}
EP_FUNC uint64_t ll_clean_at(const ll_space *space, int32_t source, int32_t word)
{
    return space->cleans + (uint64_t)source * space->clean_bytes + (uint64_t)word * 8;
}

/* ---- what a dispatch leaves -------------------------------------------------------------------------------------- */

/* Returns the number of places for rows of one expert at its rank, N*B. */
EP_FUNC int32_t ll_expert_places(const ll_shape *shape)
{
    return shape->ranks * shape->tokens;
}
/* Returns the most rows of one source for an expert: B*K, since a token may name an expert in several top-k slots. */
EP_FUNC int32_t ll_rows_at_most(const ll_shape *shape)
{
    return shape->tokens * shape->topk;
}
/* A range says where the rows of one source begin among the [N*B] places of an expert, and how many they are. */
EP_FUNC int64_t ll_range(int32_t begin, int32_t count)
{
    return (int64_t)begin << 32 | count;
}
EP_FUNC int32_t ll_range_begin(int64_t range)
{
    return (int32_t)(range >> 32);
}
EP_FUNC int32_t ll_range_count(int64_t range)
{
    return (int32_t)(range & 0x7fffffff);
}

/* The block that holds a dispatch's routing. Its parts are aligned for their elements:

       range    [L][N] i64
       src_info [L][N*B] i32
       messages [N] i32       how many messages each source sent; on GPUs with LL_HEADER_MARKS
       idx      [B][K] i32    experts of this rank's own tokens; -1 where a token went nowhere
       headers  [N][B]        the headers of the messages that came
       stamp    u64           the stamp of the dispatch once all of it has come, for hosts that do not know that
       returns  [N] i32       CPUs: the piece of each source's `returns` with which the rows of this rank begin, if that
                              source is not mapped */
typedef struct ll_route_map {
    uint64_t range, src_info, messages, idx, headers, stamp, returns, header_bytes, total_bytes;
} ll_route_map;
EP_FUNC ll_route_map ll_route_map_of(const ll_shape *shape)
{
    const uint64_t n = (uint64_t)shape->ranks, locals = (uint64_t)shape->local_experts;
    const uint64_t tokens = (uint64_t)shape->tokens, topk = (uint64_t)shape->topk;
    ll_route_map map;
    map.header_bytes = ep_round(sizeof(ll_header) + topk * 12, 8);
    map.range = 0;
    map.src_info = map.range + locals * n * 8;
    map.messages = map.src_info + locals * n * tokens * 4;
    map.idx = map.messages + n * 4;
    map.headers = ep_round(map.idx + tokens * topk * 4, EP_LINE_BYTES);
    map.stamp = map.headers + n * tokens * map.header_bytes;
    map.returns = map.stamp + sizeof(uint64_t);
    map.total_bytes = map.returns + n * 4;
    return map;
}

#endif
