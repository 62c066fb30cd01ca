/* SPDX-License-Identifier: Apache-2.0 */
/* Index arithmetic of low-latency mode, and the form of its memory: who writes where, and by which words ranks know of
 * it.
 *
 * Compiles as C17, under nvcc and under NVRTC: no libc, no pointers to host objects. Used by ep/low_latency, by its
 * executors and by the tests.
 *
 * A low-latency buffer is the same range of offsets in every PE's heap. Seen from its owner, of which B, K, L and N are
 * those of the buffer, and each kind of call (dispatch, combine) has two halves, by the parity of its epoch:
 *
 *     units         [kind][N][4]  unit_bytes      opening units from each source, by epoch modulo 4
 *     read words    [N][kind][2]  8               "I have read that half", from each rank that this one sends to
 *     message flags [2][N][B]     8               of messages
 *     row flags     [2][B][P]     8               of places
 *     weight flags  [2][N][B]     8               of weights sent ahead
 *     word messages [2][N][W]     2 message_bytes messages of small batches, in words
 *     word rows     [2][W][P]     2 place_bytes   rows of small batches' places, in words
 *     weights       [2][N][B][K]  4               of a reduced combine whose dispatch had none
 *     messages      [2][N][B]     message_bytes   dispatch: two banks, in each a share for each source, in its token
 *                                                 order
 *     places        [2][B][P]     place_bytes     combine: rows of token b; P is K, or min(K, N) without exact combines
 * and where some ranks are not mapped
 *
 *     returns       [2][R]        piece           combine: rows from ranks that are not mapped, in pieces
 *     stage         [32]          piece           of messages and rows on their way, which leave from here; nobody
 *                                                 else's business. With masks [regions][32]
 *
 * Pieces. What ranks that are not mapped send goes in pieces of LL_PIECE_ROWS messages or rows, the last one of fewer,
 * one put each. A piece ends with a flag in a line of its own, which is always at the same place, and its rows stand
 * right before that: so all of it is contiguous, however many and however long its rows are. The share of such a source
 * among the messages is divided so, too (its bank is the call's half). R is what B * P rows take that are divided among
 * N ranks. Of these words each is zero in a clean buffer, too.
 *
 * All up to the weights are words, and all zero in a clean buffer. Nothing is cleared after: each word carries the
 * stamp of its call's epoch.
 *
 * W is at most so many tokens as a small batch has: a rank with no more sends its messages, and gets its rows back, in
 * words that carry 32 bits of data each, twice the bytes, for which no flag is awaited behind them. W is 0 where an
 * executor makes no such batches.
 *
 * Messages of a dispatch stand in one bank, which their source chooses among those that are free there, and their flags
 * name. So a call's bank need not be its half. An executor whose flags name no bank takes the half's.
 *
 * A buffer with masks has row flags, places and returns several times: each half lies in one region of them,
 * [regions][2][B][P], and leaves it for another where a masked rank may still write to it. What else there is has one
 * writer a word, whose late stores meet nobody's. Behind the weight flags it has
 *
 *     maskers       [N]           64              "you are masked here", from each rank
 *     cleans        [N]           clean_bytes     what each rank says in a clean
 *
 * Epochs of a kind count from 1 in 64 bits; words have 32 for them (ll_stamp), of which 0 is none. A word could be
 * taken for that of a call 2^32 - 4 calls later, if no call between the two wrote it: flags that may lie unwritten for
 * so long are swept (LL_SWEEP_CALLS). */
#ifndef EXPAR_PROTO_LOW_LATENCY_H
#define EXPAR_PROTO_LOW_LATENCY_H

#include "proto/codec/codec.h"
#include "proto/normal.h"

typedef enum ll_kind { LL_DISPATCH = 0, LL_COMBINE = 1 } ll_kind;
#define LL_KINDS       2
#define LL_HALVES      2
#define LL_UNIT_COPIES 4 /* a rank may be two calls ahead of one that has two open */
#define LL_MOST_TOPK   32
#define LL_SWEEP_CALLS ((uint64_t)1 << 30)
#define LL_PIECE_ROWS  8
#define LL_STAGED      32 /* pieces, of as many rows as a network has operations under way at a time */

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Of an epoch, in a word: never 0, and the same modulo 4, so that halves and copies of units follow from either. */
EP_FUNC uint32_t ll_stamp(uint64_t epoch)
{
    return epoch == 0 ? 0 : (uint32_t)((epoch - 1) % 0xfffffffcu + 1);
}
EP_FUNC int32_t ll_half(uint64_t epoch)
{
    return (int32_t)(epoch & 1);
}
/* Data and flag in one: the stamp in the high half. */
EP_FUNC uint64_t ll_word(uint64_t epoch, uint32_t value)
{
    return (uint64_t)ll_stamp(epoch) << 32 | value;
}
EP_FUNC int32_t ll_word_is_of(uint64_t word, uint64_t epoch)
{
    return (uint32_t)(word >> 32) == ll_stamp(epoch);
}

/* ---- what ranks tell each other of a call ------------------------------------------------------------------------ */

/* What all ranks of one call must agree on. */
typedef struct ll_form {
    int32_t format;  /* expar_ll_format */
    int32_t dtype;   /* expar_dtype of x */
    int32_t sum;     /* expar_ll_sum of a combine */
    int32_t weights; /* 1: dispatch: they travel along; combine: they go ahead of the rows */
    int32_t topk;    /* K of the call */
    uint32_t route;  /* combine: stamp of the dispatch whose handle is used */
} ll_form;

/* codec_format of the rows on their way. */
EP_FUNC int32_t ll_codec_of(const ll_form *form)
{
    return form->format == 0 ? form->dtype : form->format + CODEC_FP8 - 1;
}

/* All but the route. */
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

/* Of LL_UNIT_MESSAGES, in a dispatch: they come in words, and sums go back so; with LL_UNIT_FEW rows of slots, too. */
#define LL_UNIT_IN_WORDS     0x40000000u
#define LL_UNIT_FEW          0x20000000u
#define LL_UNIT_MARKS        (LL_UNIT_IN_WORDS | LL_UNIT_FEW)
#define LL_WORD_TOKENS       16 /* of a small batch, at most */
#define LL_EXACT_WORD_TOKENS 4  /* of one whose exact combines have rows in words */

/* Words of an opening unit, each by itself complete once it has the call's stamp. Written by the source (release), the
   status last, read by the owner (acquire). Behind a dispatch's stand the counts of the L experts here, and where some
   ranks are not mapped the first piece of the source's returns that is for rows from here; then, as plain bytes that
   are there before the status is, the reason of a refusal. */
typedef enum ll_unit_word {
    LL_UNIT_STATUS = 0,   /* expar_status: 0, or why the source does not, or not wholly, take part */
    LL_UNIT_TAG = 1,      /* ll_form_tag */
    LL_UNIT_ROUTE = 2,    /* ll_form.route */
    LL_UNIT_MESSAGES = 3, /* dispatch: messages that come from there; combine: the region of the source's own half */
    LL_UNIT_COUNTS = 4
} ll_unit_word;

/* Words of what a rank says in a clean, of which each is an attempt; written by that rank (release), read by the owner
   (acquire). Behind them stand three sets of ranks: the views of even and of odd steps, and what was decided; and
   behind these what comes of the decision, LL_CLEAN_RESULTS words: the most calls, the highest epochs, who refuses (the
   lowest: its rank << 32 | its status, or 0). A set has for each rank the attempt of it that was taken, 32 bits each,
   or 0: not in it. */
typedef enum ll_clean_word {
    /* attempt << 32 | step; 0 while the words below are written, 1 once they are there, and from 2 on the number of the
       view that is there */
    LL_CLEAN_STAGE = 0,
    /* The attempt that has come to a decision, once that and its result are there; stays until the next does; 0 while
       they are written. */
    LL_CLEAN_DECIDED = 1,
    LL_CLEAN_CALLS = 2,
    LL_CLEAN_EPOCHS = 3, /* of each kind */
    LL_CLEAN_STATUS = 5, /* expar_status: 0, or why the rank cannot */
    LL_CLEAN_SAID = 6,   /* so many words are said on coming */
    LL_CLEAN_SET = 6
} ll_clean_word;
#define LL_CLEAN_RESULTS 4
#define LL_CLEAN_SETS    3
#define LL_REGIONS       4 /* at most: one in use, and others to move to */

/* Of a masker, beside the word that counts: "I have left the buffer", behind all that this rank has written. */
#define LL_MASKER_PARTED ((uint64_t)1 << 63)

/* A message's first bytes: behind these stand int32 expert[K] (local, or -1), int32 row[K] (among this source's rows
   for that expert) and float weights[K], where given; then, at header_bytes, the payload and its scales. K: the
   buffer's. */
typedef struct ll_header {
    int32_t token; /* its number at the source */
    int32_t place; /* distinct ranks before this one in the token's slots */
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
    int32_t hidden, element_bytes;              /* H, and of its elements at most */
    int32_t exact, reduced;                     /* 1: such combines will be made */
    int32_t masking, regions;                   /* 1: there are masks; of row flags and places, 1 without masks */
    int32_t word_tokens;                        /* W */
    int32_t unmapped;                           /* 1: some rank's memory is not mapped on some other one */
} ll_shape;

typedef struct ll_space {
    uint64_t unit_bytes[LL_KINDS];
    uint64_t flag_share_bytes; /* message and weight flags of one source */
    uint64_t header_bytes, message_bytes, place_bytes;
    int32_t places; /* P */
    uint64_t units[LL_KINDS], reads, message_flags, row_flags, weight_flags;
    uint64_t maskers, cleans, clean_bytes; /* with masks */
    uint64_t word_messages, word_rows;     /* with small batches */
    uint64_t words_bytes;                  /* all of these */
    uint64_t weights, messages, rows;
    uint64_t share_bytes; /* messages of one source in one bank */
    /* Where ranks are not mapped: pieces of messages and of rows back, with their flags; and R. */
    uint64_t message_piece_bytes, return_piece_bytes, return_pieces;
    uint64_t returns, stage;
    uint64_t total_bytes;
} ll_space;

/* H elements of at most so many bytes; a group of 128 may have eight bytes of its own with it. */
EP_FUNC uint64_t ll_payload_bytes(const ll_shape *shape)
{
    uint64_t row = (uint64_t)shape->hidden * (uint64_t)shape->element_bytes;
    return shape->hidden % 128 ? row : row + (uint64_t)shape->hidden / 128 * 8;
}
/* Slots of the stage. Ranks that are masked while they are silent may hold some for long: as many as those that know a
   region. */
EP_FUNC uint64_t ll_staged(const ll_shape *shape)
{
    return LL_STAGED * (uint64_t)shape->regions;
}
/* Of so many messages or rows; and those of them that are in one. */
EP_FUNC int32_t ll_pieces(int32_t rows)
{
    return (rows + LL_PIECE_ROWS - 1) / LL_PIECE_ROWS;
}
EP_FUNC int32_t ll_piece_rows(int32_t rows, int32_t piece)
{
    const int32_t left = rows - piece * LL_PIECE_ROWS;
    return left < LL_PIECE_ROWS ? left : LL_PIECE_ROWS;
}
EP_FUNC int32_t ll_places(const ll_shape *shape)
{
    return shape->exact || shape->topk < shape->ranks ? shape->topk : shape->ranks;
}

/* Words of a unit. */
EP_FUNC int32_t ll_words_of_unit(const ll_shape *shape, ll_kind kind)
{
    return LL_UNIT_COUNTS + (kind == LL_DISPATCH ? shape->local_experts + (shape->unmapped ? 1 : 0) : 0);
}

/* Of a shape whose members are in their bounds (ep/low_latency/shape.c), so that nothing overflows. */
EP_FUNC ll_space ll_space_of(const ll_shape *shape)
{
    const uint64_t n = (uint64_t)shape->ranks, tokens = (uint64_t)shape->tokens, topk = (uint64_t)shape->topk;
    const uint64_t words = (uint64_t)ll_words_of_unit(shape, LL_DISPATCH), unmapped = shape->unmapped ? 1 : 0;
    ll_space space;
    space.places = ll_places(shape);
    space.unit_bytes[LL_DISPATCH] = ep_round(words * 8 + EP_REFUSAL_TEXT, EP_LINE_BYTES);
    space.unit_bytes[LL_COMBINE] = ep_round(LL_UNIT_COUNTS * 8 + EP_REFUSAL_TEXT, EP_LINE_BYTES);
    space.flag_share_bytes = ep_round(tokens * 8, EP_LINE_BYTES);
    space.header_bytes = ep_round(sizeof(ll_header) + topk * 12, EP_LINE_BYTES);
    space.message_bytes = ep_round(space.header_bytes + ll_payload_bytes(shape), EP_LINE_BYTES);
    space.place_bytes = ep_round(ll_payload_bytes(shape), EP_LINE_BYTES);
    const uint64_t sets = (uint64_t)LL_CLEAN_SETS * ((n + 1) / 2), regions = (uint64_t)shape->regions;
    const uint64_t places = regions * tokens * (uint64_t)space.places, ahead = shape->reduced ? n * tokens : 0;
    space.units[LL_DISPATCH] = 0;
    space.units[LL_COMBINE] = n * LL_UNIT_COPIES * space.unit_bytes[LL_DISPATCH];
    space.reads = space.units[LL_COMBINE] + n * LL_UNIT_COPIES * space.unit_bytes[LL_COMBINE];
    space.message_flags = space.reads + n * EP_LINE_BYTES;
    space.row_flags = space.message_flags + LL_HALVES * n * space.flag_share_bytes;
    space.weight_flags = space.row_flags + ep_round(LL_HALVES * places * 8, EP_LINE_BYTES);
    space.maskers = space.weight_flags + (shape->reduced ? LL_HALVES * n * space.flag_share_bytes : 0);
    space.clean_bytes = ep_round((LL_CLEAN_SET + sets + LL_CLEAN_RESULTS) * 8, EP_LINE_BYTES);
    space.cleans = space.maskers + (shape->masking ? n * EP_LINE_BYTES : 0);
    const uint64_t small = LL_HALVES * (uint64_t)shape->word_tokens;
    space.word_messages = space.cleans + (shape->masking ? n * space.clean_bytes : 0);
    space.word_rows = space.word_messages + small * n * 2 * space.message_bytes;
    space.words_bytes = space.word_rows + small * (uint64_t)space.places * 2 * space.place_bytes;
    space.weights = space.words_bytes;
    space.messages = ep_round(space.weights + LL_HALVES * ahead * topk * sizeof(float), 4096);
    space.message_piece_bytes = LL_PIECE_ROWS * space.message_bytes + EP_LINE_BYTES;
    space.return_piece_bytes = LL_PIECE_ROWS * space.place_bytes + EP_LINE_BYTES;
    space.share_bytes =
        shape->unmapped ? (uint64_t)ll_pieces(shape->tokens) * space.message_piece_bytes : tokens * space.message_bytes;
    space.return_pieces = unmapped * (tokens * (uint64_t)space.places / LL_PIECE_ROWS + n);
    space.rows = space.messages + LL_HALVES * n * space.share_bytes;
    space.returns = ep_round(space.rows + LL_HALVES * places * space.place_bytes, 4096);
    space.stage = ep_round(space.returns + regions * LL_HALVES * space.return_pieces * space.return_piece_bytes, 4096);
    space.total_bytes = space.stage + unmapped * ep_round(ll_staged(shape) * space.message_piece_bytes, 4096);
    return space;
}

EP_FUNC uint64_t ll_unit_at(const ll_space *space, ll_kind kind, int32_t source, uint64_t epoch)
{
    return space->units[kind] + ((uint64_t)source * LL_UNIT_COPIES + epoch % LL_UNIT_COPIES) * space->unit_bytes[kind];
}
/* Bytes from a unit's begin to its text. */
EP_FUNC uint64_t ll_unit_text_at(const ll_shape *shape, ll_kind kind)
{
    return 8 * (uint64_t)ll_words_of_unit(shape, kind);
}
EP_FUNC uint64_t ll_read_at(const ll_space *space, ll_kind kind, int32_t receiver, uint64_t epoch)
{
    return space->reads + (uint64_t)receiver * EP_LINE_BYTES + ((uint64_t)kind * LL_HALVES + (epoch & 1)) * 8;
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
/* Of places: number `place` of the token, in the half of the epoch, which lies in the region. */
EP_FUNC uint64_t ll_place_number(const ll_space *space, const ll_shape *shape, uint64_t epoch, int32_t region,
                                 int32_t token, int32_t place)
{
    uint64_t half = (uint64_t)region * LL_HALVES + (epoch & 1);
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

/* The flag of a piece of messages from a source that is not mapped; */
EP_FUNC uint64_t ll_message_piece_flag_at(const ll_space *space, const ll_shape *shape, int32_t source, int32_t bank,
                                          int32_t piece)
{
    return ll_message_at(space, shape, source, bank, 0) + (uint64_t)(piece + 1) * space->message_piece_bytes -
           EP_LINE_BYTES;
}
/* and of a piece of rows that come back, in the half of the epoch. */
EP_FUNC uint64_t ll_return_flag_at(const ll_space *space, uint64_t epoch, int32_t region, int32_t piece)
{
    uint64_t half = (uint64_t)region * LL_HALVES + (epoch & 1);
    return space->returns + (half * space->return_pieces + (uint64_t)piece + 1) * space->return_piece_bytes -
           EP_LINE_BYTES;
}

/* Of small batches: the word that carries the first 32 bits. */
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

/* Places for rows of one expert at its rank, N*B; and the rows that one source has for an expert at most, B*K, since a
   token may name an expert in several slots. */
EP_FUNC int32_t ll_expert_places(const ll_shape *shape)
{
    return shape->ranks * shape->tokens;
}
EP_FUNC int32_t ll_rows_at_most(const ll_shape *shape)
{
    return shape->tokens * shape->topk;
}
/* Where a source's rows of one expert begin in its [N*B], and how many they are. */
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

/* The block that holds it, with parts aligned for their elements:
   range [L][N] i64, src_info [L][N*B] i32, messages [N] i32 (how many each source sent,
   on GPUs with LL_UNIT_MARKS), idx [B][K] i32 (experts of
   this rank's own tokens; -1 where a token went nowhere), headers [N][B] of the messages that came; stamp u64, of the
   dispatch once all of it has come, where hosts do not know it; returns [N] i32 (on CPUs: the piece at each source that
   is not mapped with which rows from here begin). */
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
