/* SPDX-License-Identifier: Apache-2.0 */
/* Index arithmetic of low-latency mode, and the layout of its memory: who writes where, and which words tell ranks
 * about it.
 *
 * This header compiles as C17, under nvcc and under NVRTC: no libc, no pointers to host objects. ep/low_latency, its
 * executors and the tests use it.
 *
 * A low-latency buffer is the same range of offsets in every PE's heap. The table shows it as its owner sees it. B, K,
 * L and N are those of the buffer. Each kind of call (dispatch, combine) has a double buffer: the parity of a call's
 * epoch chooses the slot (`half` in the code).
 *
 *     headers       [kind][N][4]  unit_bytes      message headers (`unit`) from each source, by epoch modulo 4
 *     acks          [N][kind][2]  8               acknowledgements (`read`), "I have read that slot", from each rank
 *                                                 to which this one sends
 *     message flags [2][N][B]     8               flags of messages
 *     row flags     [2][B][P]     8               flags of places
 *     weight flags  [2][N][B]     8               flags of weights that are sent ahead
 *     word messages [2][N][W]     2 message_bytes messages of small batches, in words
 *     word rows     [2][W][P]     2 place_bytes   rows of small batches' places, in words
 *     weights       [2][N][B][K]  4               weights of a reduced combine whose dispatch had none
 *     messages      [2][N][B]     message_bytes   dispatch: two message slots (`bank`), each with a share for each
 *                                                 source, in the order of its tokens
 *     places        [2][B][P]     place_bytes     combine: rows of token b. P is K, or min(K, N) without exact sums
 *
 * Where some ranks are not mapped, these follow:
 *
 *     returns       [2][R]        piece           combine: rows from ranks that are not mapped, in pieces
 *     stage         [32]          piece           outgoing messages and rows, which leave from here. Only the owner
 *                                                 uses it. With masks it is [regions][32]
 *
 * Pieces. A rank that is not mapped sends pieces of LL_PIECE_ROWS messages or rows, one put each; the last piece may
 * have fewer. A piece ends with a flag in a line of its own, whose place never changes, and its rows stand right before
 * it. So a piece is contiguous, however many rows it has and however long they are. The share of such a source among
 * the messages is divided into pieces, too, and its message slot has the parity of the call. R is the number of pieces
 * for B * P rows that are divided among N ranks. Flags of pieces are zero in a clean buffer, too.
 *
 * Everything before the weights consists of words, which are all zero in a clean buffer. Nothing is cleared later: each
 * word carries the stamp of its call's epoch.
 *
 * W is the largest number of tokens in a small batch. A rank with no more tokens sends its messages, and gets its rows
 * back, in words that carry 32 bits of data each. That takes twice the bytes, but no reader waits for a flag after
 * them. W is 0 if an executor makes no such batches.
 *
 * All messages that a dispatch sends to one rank lie in one message slot. Their source chooses it among the free ones
 * there, and the message flags name it. So it need not have the parity of the call. An executor whose flags name no
 * slot uses the one of that parity.
 *
 * A buffer with masks has several regions of row flags, places and returns: [regions][2][B][P]. Each slot of the double
 * buffer lies in one region, and moves to another when a masked rank may still write to the present one. Every other
 * word has one writer, so late stores meet no other rank's. After the weight flags such a buffer has
 *
 *     maskers       [N]           64              "you are masked here", from each rank
 *     cleans        [N]           clean_bytes     what each rank says in a clean
 *
 * Epochs of a kind count from 1 in 64 bits. Words have 32 bits for them (ll_stamp), and stamp 0 belongs to no epoch. A
 * word could be mistaken for that of a call 2^32 - 4 calls later if no call in between wrote it. Flags that may stay
 * unwritten for so long are swept (LL_SWEEP_CALLS). */
#ifndef EXPAR_PROTO_LOW_LATENCY_H
#define EXPAR_PROTO_LOW_LATENCY_H

#include "proto/codec/codec.h"
#include "proto/normal.h"

typedef enum ll_kind { LL_DISPATCH = 0, LL_COMBINE = 1 } ll_kind;
#define LL_KINDS         2
#define LL_SLOTS         2
#define LL_HEADER_COPIES 4 /* a rank may be two calls ahead of a rank that has two open */
#define LL_MOST_TOPK     32
#define LL_SWEEP_CALLS   ((uint64_t)1 << 30)
#define LL_PIECE_ROWS    8
#define LL_STAGED        32 /* pieces: as many as the rows that a network carries at a time */

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Returns the stamp of an epoch, for words. It is never 0, and equals the epoch modulo 4, so either one selects the
   slots and copies. */
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
    int32_t weights; /* 1: dispatch: they travel along; combine: they go ahead of the rows */
    int32_t topk;    /* K of the call */
    uint32_t route;  /* combine: stamp of the dispatch whose handle is used */
} ll_form;

/* Returns the codec_format in which the rows travel. */
EP_FUNC int32_t ll_codec_of(const ll_form *form)
{
    return form->format == 0 ? form->dtype : form->format + CODEC_FP8 - 1;
}

/* The tag has all members but the route. */
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
   LL_HEADER_FEW: rows of slots go back in words, too. */
#define LL_HEADER_IN_WORDS   0x40000000u
#define LL_HEADER_FEW        0x20000000u
#define LL_HEADER_MARKS      (LL_HEADER_IN_WORDS | LL_HEADER_FEW)
#define LL_WORD_TOKENS       16 /* the most tokens of a small batch */
#define LL_EXACT_WORD_TOKENS 4  /* the most tokens of a batch whose exact combines have rows in words */

/* Words of a message header. Each is complete by itself once it has the call's stamp. The source writes them (release),
   the status last; the owner reads them (acquire). In a dispatch the counts of the L experts here follow. If some ranks
   are not mapped, one more word follows: the first piece of the source's returns that is for rows from here. After the
   words comes the reason of a rejection, as plain bytes, which are written before the status. */
typedef enum ll_header_word {
    /* expar_status: 0, or why the source takes no part, or only a limited one */
    LL_HEADER_STATUS = 0,
    LL_HEADER_TAG = 1,   /* ll_form_tag */
    LL_HEADER_ROUTE = 2, /* ll_form.route */
    /* dispatch: the number of messages from that source; combine: the region of the source's own slot */
    LL_HEADER_MESSAGES = 3,
    LL_HEADER_COUNTS = 4
} ll_header_word;

/* Words that a rank writes in a clean; each clean is an attempt. That rank writes them (release), the owner reads them
   (acquire). Three sets of ranks follow: the views of even and of odd steps, and the decision. A set has 32 bits for
   each rank: the attempt of that rank which was taken, or 0 if the rank is not in the set. Then LL_CLEAN_RESULTS words
   follow, which are the result of the decision: the most calls, the highest epochs, and the lowest rank that rejects
   (its rank << 32 | its status, or 0). */
typedef enum ll_clean_word {
    /* attempt << 32 | step. The step is 0 while the words below are written, and 1 once they are there. From 2 on it is
       the number of the view that is there. */
    LL_CLEAN_STAGE = 0,
    /* The attempt that has come to a decision, once that and its result are there. It stays until the next decision,
       and is 0 while they are written. */
    LL_CLEAN_DECIDED = 1,
    LL_CLEAN_CALLS = 2,
    LL_CLEAN_EPOCHS = 3, /* one for each kind */
    /* expar_status: 0, or why the rank cannot */
    LL_CLEAN_STATUS = 5,
    /* the number of words that a rank writes when it comes */
    LL_CLEAN_SAID = 6,
    LL_CLEAN_SET = 6
} ll_clean_word;
#define LL_CLEAN_RESULTS 4
#define LL_CLEAN_SETS    3
#define LL_REGIONS       4 /* at most: one in use, and others to move to */

/* A bit of a masker, beside its count: "I have left the buffer". It is stored after all else that this rank has
   written. */
#define LL_MASKER_PARTED ((uint64_t)1 << 63)

/* The first bytes of a message. int32 expert[K] (local, or -1), int32 row[K] (among this source's rows for that expert)
   and, if given, float weights[K] follow. The payload and its scales follow at header_bytes. K is that of the
   buffer. */
typedef struct ll_header {
    int32_t token; /* its number at the source */
    /* how many distinct ranks the token's slots have before this rank */
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
/* Returns how many pieces the stage holds. Ranks that are masked while they are silent may keep some occupied for long.
   So there is a stage for each region, since no more such ranks can know one. */
EP_FUNC uint64_t ll_staged(const ll_shape *shape)
{
    return LL_STAGED * (uint64_t)shape->regions;
}
/* Returns how many pieces so many messages or rows take; the next function returns how many of them one piece has. */
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
/* Returns the number of a token's place, in the slot of the epoch, which lies in that region. */
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

/* Small batches: returns the offset of the word that carries the first 32 bits. */
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

/* The first function returns the places for rows of one expert at its rank, N*B. The second returns the most rows of
   one source for an expert: B*K, since a token may name an expert in several slots. */
EP_FUNC int32_t ll_expert_places(const ll_shape *shape)
{
    return shape->ranks * shape->tokens;
}
EP_FUNC int32_t ll_rows_at_most(const ll_shape *shape)
{
    return shape->tokens * shape->topk;
}
/* A range says where a source's rows of one expert begin in its [N*B], and how many they are. */
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
       stamp    u64           the stamp of the dispatch once all of it has come, for hosts that do not know it
       returns  [N] i32       CPUs: for each source that is not mapped, its piece with which the rows from here begin */
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
