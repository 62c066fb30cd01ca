/* SPDX-License-Identifier: Apache-2.0 */
/* far: ranks whose memory is not mapped here, and the data that go to them by links (link/link.h). It implements the
 * operations that calls use (exec/cpu/low_latency/far.h). Private to this folder, and to create.c, which makes links.
 *
 *     create.c    a buffer's links and stage, table of operations
 *     links.c     the stage, what is under way to each rank, what could not be sent
 *     headers.c     headers and acknowledgements, and the data with which they travel
 *     pieces.c    where pieces lie
 *     dispatch.c  messages; combine.c weights and rows
 *     words.c     what ranks are told about masks and cleans
 *
 * Near ranks are written to by stores, as in cpu.h; a buffer without far ranks has nothing of this. Messages, and rows
 * that go back, are put together in pieces (proto/low_latency.h), in a place of the stage. The place is free again when
 * its piece is quiet. Each piece is one network message, which ends with its flag. Words of the protocol go ahead of it
 * in that message if they can (headers.c).
 *
 * Order. Stores to near ranks are seen in the order in which they are made. Links keep a flag after its own message,
 * and later data to a rank after an ordered message that is quiet. Without masks all messages are ordered, except
 * weights. Where the protocol needs more order, a rank waits until earlier data are quiet, which mostly costs no time:
 *
 * - A rank's headers of a kind follow each other: a rank that has one also has the earlier ones (ll_far_header).
 * - A header of a combine comes after the rows that went to that rank in the combine before (ll_far_await). A rank that
 * has not read those may let others write to their places in the slot's next call, when it has this header from all.
 * - Messages to a slot come after those that this rank has sent there before (ll_far_await), and likewise
 *   acknowledgements
 * and weights: two stores to one word are never under way together.
 *
 * None of these waits needs a call of the peer: a network delivers to a rank that does something else, too. Only the
 * end (ll_far_end) waits until all data have arrived; with masks, so do words about masks to a rank.
 *
 * Errors. The first failure to send is kept until the phase checks for it (ll_far_check). A rank that has left the
 * group in peace had all that it needed, so data that do not reach it are no error.
 *
 * Masks. Waits for the network end as all waits do, by masking the rank that is silent or dead. A failure to send to a
 * rank masks it, too. Data under way to a masked rank stay so, since it may only be stopped: their places are set
 * aside, and serve no other rank before the data have arrived. Since waits mask, only one thread sends.
 *
 * Words about masks and cleans go after all data sent to the rank before, and before its next header (words.c). So a
 * rank that finds itself masked has all data that were sent before. A rank that was masked for a moment knows that this
 * is over. And nothing old can arrive from a rank that is back after a clean. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_FAR_LINKS_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_FAR_LINKS_H

#include "exec/cpu/low_latency/far.h"
#include "exec/far_words.h"

#include <pthread.h>

/* A place of the stage, for one piece. A worker takes it, fills it and sends the piece. Then the place is under way
   until its batch is quiet. With masks it may be set aside meanwhile. */
typedef struct ll_slot {
    /* The worker that takes it exchanges this to true (acquire), and sets it to false (release). */
    atomic_bool taken;
    uint8_t *bytes; /* [message_piece_bytes] */
    /* The piece that is sent from here, or was sent last. The taker writes this. The next taker reads it, and so does
       the thread in a call, between two rounds of work. */
    ll_kind kind;
    int32_t slot, pe;
    bool in_turn; /* it is one of the LL_STAGED places that are taken in turns */
    link_batch batch;
} ll_slot;

/* A question to a far rank: what has it read? There is one at a time. Only the thread in a call uses this, and the
   network, which writes the answer before the batch is quiet. */
typedef struct ll_far_question {
    link_batch batch;
    /* offset of the acknowledgement that was missed last, and its epoch; 0: none yet */
    uint64_t missed_at, missed;
    /* offset of the acknowledgement that was fetched last, the epoch for which it was, and its value */
    uint64_t asked_at, asked, answer;
    int64_t since_ns; /* when it was first missed, or last fetched */
} ll_far_question;

/* One rank. The thread in a call sends headers, acknowledgements and weights; workers send rows, too. Data that are put
   off leave with the only piece of a call to that rank, by whichever worker sends it, while that thread waits. */
typedef struct ll_far_rank {
    link_peer link; /* with an address: the rank is near, or this rank itself */
    link_batch units[LL_KINDS], reads[LL_KINDS], weights;
    /* how many pieces will go there in the call that opens, at once if the rank's slot is free */
    int32_t pieces;
    uint64_t *unit;      /* the last header that went there, words and text */
    uint64_t unit_at;    /* its offset there */
    ll_kind header_kind; /* the kind of its call */
    /* likewise the last acknowledgement: its offset and word; offset 0: none */
    uint64_t read_at, read;
    ll_kind read_kind;
    /* the header or acknowledgement is put off (headers.c) */
    bool holds_header, holds_read;
    /* to this rank, about data that it may have put off */
    ll_far_question question;
    /* data that have gone there may be quiet and not have arrived */
    bool unconfirmed;
    far_words words; /* with masks; only the thread in a call uses it */
} ll_far_rank;

/* One of the pieces that a dispatch sends. */
typedef struct ll_far_piece {
    int32_t pe, piece;
} ll_far_piece;

struct ll_links {
    ll_cpu *cpu;
    ll_far_rank *ranks; /* [N] */
    ll_slot *slots;     /* [ll_staged] */
    ll_slot **turn;     /* [LL_STAGED] the places that are taken in turns */
    uint64_t *blocks;   /* far_words.block of all ranks */
    /* The number of places that were taken so far. Workers raise it (relaxed, since it only spreads them). */
    _Atomic uint32_t next;
    uint64_t *units; /* ll_far_rank.unit of all ranks */
    /* [N][B][K] weights that go ahead to each rank; NULL in a buffer without such combines */
    float *weights;
    /* For the dispatch that is being sent, or the combine that is being received. The thread in a call writes this;
       workers read it. */
    int32_t *tokens;      /* [N][B] the token of each message to each rank */
    ll_far_piece *pieces; /* [N * pieces of B] those that are to be sent */
    int32_t *rows_of;     /* [E] number of rows of each expert; later the number of its next row */
    int32_t *numbers;     /* [B][P] number of each row among those from its rank */
    /* [N] how many rows go back from each rank, for this rank's tokens */
    int32_t *due_rows;
    int32_t *due_sums; /* the same for sums of a reduced combine */
    /* [N] the piece here with which they begin */
    int32_t *returns;
    link_counts counts;   /* all data that were sent */
    pthread_mutex_t lock; /* guards the members below */
    /* the first failure to send; EXPAR_OK: none */
    error_kept failed;
    /* when this rank stops waiting for the network, after it has given the buffer up; 0: it has not */
    int64_t gone_ns;
};

/* ---- create.c ---------------------------------------------------------------------------------------------------- */

/* Finds how each rank is reached, and where the buffers of near ranks lie here. Sets self->far and links only if some
   rank is far. unmapped: all others are far. */
expar_status ll_far_make(ll_cpu *self, bool unmapped);
/* Waits until nothing is under way any more. sound: until all data have arrived; else only for data that a working
   network delivers at once. */
void ll_far_end(ll_cpu *self, bool sound);

/* ---- links.c ----------------------------------------------------------------------------------------------------- */

/* A wait, in a buffer with masks, for data that the rank is sent: for the batch, or, if that is NULL, until the rank
   has been told everything. EXPAR_ERR_PEER: the rank is lost. */
typedef struct ll_far_wait {
    ll_cpu *self;
    int32_t pe;
    const link_batch *batch;
} ll_far_wait;
expar_status ll_far_wait_on(const ll_far_wait *wait);

/* The place of data in a rank's buffer, and the flag after them. */
typedef struct ll_parcel {
    int32_t pe;
    uint64_t at, flag, word;
} ll_parcel;

/* Returns a free place of the stage for data of the call. The same worker must fill and send it. */
ll_slot *ll_far_take(const ll_cpu *self, ll_kind kind, uint64_t epoch);
/* Sends so many rows that lie in the place, `pitch` bytes from one to the next. They go right before the parcel's
   flag. */
void ll_far_send(const ll_cpu *self, ll_slot *slot, int32_t rows, size_t pitch, const ll_parcel *to);
/* The first returns the memory where weights for the rank are put together, once the earlier ones have arrived, or NULL
   if the rank has been masked meanwhile. The second sends them, with the flag of the last one. */
float *ll_far_weights(const ll_cpu *self, int32_t pe);
void ll_far_send_weights(const ll_cpu *self, size_t bytes, const ll_parcel *to);

/* The first keeps a failure to send to the rank, which is masked with masks. The second says whether one is kept. The
   third waits until all that was sent with the batch is quiet. */
void ll_far_keep(const ll_cpu *self, int32_t pe, expar_status status);
bool ll_far_has_failed(ll_links *far);
void ll_far_await_batch(const ll_cpu *self, int32_t pe, link_batch *batch);
/* Says whether messages are ordered. Then only the end waits for their arrival. With masks a rank also waits for it
   before it tells another rank about masks. */
static inline bool ll_far_orders(const ll_cpu *self)
{
    return !self->masks;
}

/* Says whether everything that was sent to the rank has arrived, or never will. */
bool ll_far_has_come(const ll_cpu *self, int32_t rank);
/* Says whether a far rank's flag of the epoch has come; this orders nothing. The data may be read after ll_see, and an
   acquire of the flag. */
static inline bool ll_far_came(const ll_cpu *self, uint64_t flag, uint64_t epoch)
{
    return ll_word_is_of(link_peek(ll_here(self, flag)), epoch);
}
/* Operations. */
void ll_far_await(const ll_cpu *self, ll_kind kind, uint64_t epoch);
expar_status ll_far_check(const ll_cpu *self, const char *what);
expar_status ll_far_set_aside(const ll_cpu *self, int32_t rank);
/* Says the same, and makes the data visible. Calls use it where they await only a few flags. */
bool ll_far_found(const ll_cpu *self, uint64_t flag, uint64_t epoch);

/* ---- headers.c --------------------------------------------------------------------------------------------------- */

/* Puts data that end with their flag, after those that are put off for the rank. */
void ll_far_put(const ll_cpu *self, int32_t pe, const link_data *data, link_batch *batch);
/* Operations. */
void ll_far_header(const ll_cpu *self, const ll_call *call, const ll_sends *sends, int32_t pe);
void ll_far_read(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t at, uint64_t word, bool whole);
ll_credit ll_far_ask(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t epoch);
void ll_far_flush(const ll_cpu *self);

/* ---- pieces.c ---------------------------------------------------------------------------------------------------- */

expar_status ll_far_pieces_make(const ll_cpu *self);
void ll_far_pieces_free(ll_links *far);
/* Sets `returns`, by due_rows and due_sums. */
void ll_far_place_returns(const ll_cpu *self);
/* Operation. */
void ll_far_clear(const ll_cpu *self, ll_kind kind, int32_t slot, int32_t region);

/* ---- dispatch.c, combine.c: operations --------------------------------------------------------------------------- */

void ll_far_dispatch_plan(const ll_cpu *self, bool goes);
void ll_far_dispatch_send(const ll_dispatch *d);
int32_t ll_far_messages_came(const ll_dispatch *d, int32_t source, int32_t came, int32_t all);
const uint8_t *ll_far_message(const ll_dispatch *d, int32_t source, int32_t message);
void ll_far_combine_plan(const ll_combine *c, bool goes);
void ll_far_combine_weights(const ll_combine *c, int32_t pe);
void ll_far_combine_rows(const ll_combine *c, int32_t pe);
void ll_far_combine_expect(const ll_combine *c);
bool ll_far_row_came(const ll_combine *c, int32_t token, const ll_part *part);
const void *ll_far_row(const ll_combine *c, int32_t token, const ll_part *part);

/* ---- words.c ----------------------------------------------------------------------------------------------------- */

/* Says whether there is something that the rank has not been told. */
bool ll_far_is_owed(const ll_cpu *self, int32_t rank);
/* Operations. */
void ll_far_spread(const ll_cpu *self);
void ll_far_masker(const ll_cpu *self, int32_t rank, uint64_t masker);
void ll_far_linger(const ll_cpu *self, int32_t rank);
expar_status ll_far_conclude(const ll_cpu *self, const uint32_t *view);

#endif
