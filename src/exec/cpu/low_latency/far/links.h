/* SPDX-License-Identifier: Apache-2.0 */
/* far: ranks whose memory is not mapped here, and what goes to them, by links (link/link.h), as the operations that
 * calls ask for (exec/cpu/low_latency/far.h). Private to this folder, and to create.c, which makes them.
 *
 *   create.c    a buffer's links and stage, table of operations
 *   links.c     the stage, what is under way to each rank, what could not be sent
 *   units.c     units and read words, with what they travel
 *   pieces.c    where pieces stand
 *   dispatch.c  messages; combine.c weights and rows
 *   words.c     what ranks are told of masks and cleans
 *
 * Near ranks are written to by stores, as cpu.h has it; a buffer without far ranks has nothing of this. Messages, and
 * rows that go back, are put together in pieces (proto/low_latency.h), in a slot of the stage. The slot is free again
 * when what it sent is quiet. Each is one message of the network's, which ends with its flag; words of the protocol go
 * ahead of it in that message where they can (units.c).
 *
 * Order. Stores to near ranks come in the order in which they are made; of links that holds for a message and its own
 * flag, and for what goes to one rank behind an ordered message that is quiet. Without masks all messages are ordered,
 * but for weights. So what the protocol needs beyond that is waited for until it is quiet, which mostly means nothing:
 *   - a rank's units of a kind go one behind the other: who has one has those before it, too (ll_far_unit);
 *   - a unit of a combine comes behind the rows that went to that rank in the combine before (ll_far_await): who has
 *     not read those lets others write to their places in the next call of the half, once all have sent it this unit;
 *   - messages to a half come behind those that this rank has sent there before (ll_far_await), and likewise read words
 *     and weights: two stores to one word are never under way together.
 * None of it waits for a call of the peer's: a network delivers to a rank that does something else, too. Until all has
 * come is waited at the end alone (ll_far_end), and with masks before a rank is told of them.
 *
 * Errors. What cannot be sent is kept, the first of it, until the phase looks (ll_far_check). A rank that has left the
 * group in peace had all that it needed: nothing that does not come to it is an error.
 *
 * Masks. A wait for the network ends as all do, by masking the rank that is silent or dead, and so does what could not
 * be sent to a rank. What is under way to a masked rank stays so, since that may only be stopped: its slots are set
 * aside. Nobody else is sent anything from there before it has come. Since waits mask, one thread sends. What a rank
 * is told of masks and cleans goes behind all that was sent to it, and before the next unit (words.c): so whoever
 * finds itself masked has all that was sent before, whoever was masked for a moment knows that it is over, and of
 * whoever is back behind a clean nothing old is to come. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_FAR_LINKS_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_FAR_LINKS_H

#include "exec/cpu/low_latency/far.h"
#include "link/link.h"

#include <pthread.h>

/* A place of the stage, for a piece. A worker takes it, fills it and sends it; then it is under way until its batch is
   quiet. With masks it may be set aside meanwhile. */
typedef struct ll_slot {
    /* Exchanged to true by the worker that takes it (acquire), set to false by the same (release). */
    atomic_bool taken;
    uint8_t *bytes; /* [message_piece_bytes] */
    /* Of what is, or was last, sent from here. Written by the taker; read by the next one, and between two rounds of
       work by the thread that is in a call. */
    ll_kind kind;
    int32_t half, pe;
    bool in_turn; /* it is one of the LL_STAGED that are taken in turns */
    link_batch batch;
} ll_slot;

/* What a rank is told of masks and cleans, one thing at a time. Touched by the thread that is in a call. */
typedef struct ll_far_words {
    link_batch batch;
    uint64_t masker, told_masker;      /* this rank's word there: as it is to be, and as it was sent last */
    uint64_t told_stage, told_decided; /* LL_CLEAN_STAGE, LL_CLEAN_DECIDED, as they were sent last */
    uint64_t *block;                   /* [clean_bytes / 8] words of a clean on their way */
    bool cut_off;                      /* something could not be sent: nothing more is */
} ll_far_words;

/* What a far rank has read, asked of it, one question at a time. Touched by the thread that is in a call, but that the
   network writes the answer, before the batch is quiet. */
typedef struct ll_far_question {
    link_batch batch;
    uint64_t missed_at, missed; /* where the read word lies that was missed last, and its epoch; 0: none yet */
    uint64_t asked_at, answer;  /* where the one lies that was asked for last, and what it was */
    int64_t since_ns;           /* when something was first missed, or asked for, last */
} ll_far_question;

/* One rank. Units, read words and weights are sent by the thread that is in a call, rows by workers, too; what is put
   off leaves with the only piece of a call to that rank, by whichever worker sends it, while that thread waits. */
typedef struct ll_far_rank {
    link_peer link; /* with an address: it is near, or this rank itself */
    link_batch units[LL_KINDS], reads[LL_KINDS], weights;
    int32_t pieces;         /* that are to go there in the call which opens, at once if the rank's half is free */
    uint64_t *unit;         /* the last one that went there, words and text; */
    uint64_t unit_at;       /* where to; */
    ll_kind unit_kind;      /* and of which kind of call */
    uint64_t read_at, read; /* likewise the last read word; 0: none */
    ll_kind read_kind;
    bool holds_unit, holds_read; /* they are put off: units.c */
    ll_far_question question;    /* to it, of what it may have put off */
    bool unconfirmed;            /* what has gone there may be quiet and not have come */
    ll_far_words words;          /* with masks */
} ll_far_rank;

/* One of those that a dispatch sends. */
typedef struct ll_far_piece {
    int32_t pe, piece;
} ll_far_piece;

struct ll_links {
    ll_cpu *cpu;
    ll_far_rank *ranks;    /* [N] */
    ll_slot *slots;        /* [ll_staged] */
    ll_slot **turn;        /* [LL_STAGED] those that are taken in turns */
    uint64_t *blocks;      /* ll_far_words.block of all ranks */
    _Atomic uint32_t next; /* slots that were taken so far; raised by workers, relaxed: it only spreads them */
    uint64_t *units;       /* ll_far_rank.unit of all ranks */
    float *weights;        /* [N][B][K] that go ahead to each rank; NULL where none ever do */
    /* Of the dispatch that is being sent, or the combine that is being received. Touched by the thread that is in a
       call, read by workers. */
    int32_t *tokens;      /* [N][B] of each message to each rank */
    ll_far_piece *pieces; /* [N * pieces of B] to be sent */
    int32_t *rows_of;     /* [E] rows of each expert; then the number of its next one */
    int32_t *numbers;     /* [B][P] of each row among those from its rank */
    int32_t *due_rows;    /* [N] rows that go back from each rank, of this one's tokens; */
    int32_t *due_sums;    /* and sums, of a reduced combine */
    int32_t *returns;     /* [N] the piece here from which on they stand */
    link_counts counts;   /* of all that was sent */
    pthread_mutex_t lock; /* guards what follows */
    error_kept failed;    /* the first that could not be sent; EXPAR_OK: none */
    int64_t gone_ns;      /* when this rank stops waiting for the network, having given the buffer up; 0: it has not */
};

/* ---- create.c ---------------------------------------------------------------------------------------------------- */

/* Finds how each rank is reached, and where the buffers of near ones lie here; self->far and links only where one is
   far. unmapped: all others are. */
expar_status ll_far_make(ll_cpu *self, bool unmapped);
/* Nothing of it is under way any more. sound: all of it has come, or else what a living network delivers at once. */
void ll_far_end(ll_cpu *self, bool sound);

/* ---- links.c ----------------------------------------------------------------------------------------------------- */

/* A wait of a buffer with masks for what the rank is sent: for the batch; or, where that is NULL, until it has been
   told all. EXPAR_ERR_PEER: the rank is lost. */
typedef struct ll_far_wait {
    ll_cpu *self;
    int32_t pe;
    const link_batch *batch;
} ll_far_wait;
expar_status ll_far_wait_on(const ll_far_wait *wait);

/* Where something goes in a rank's buffer, and the flag behind it. */
typedef struct ll_parcel {
    int32_t pe;
    uint64_t at, flag, word;
} ll_parcel;

/* A free slot for something of the call, to be filled and sent by the same worker. */
ll_slot *ll_far_take(const ll_cpu *self, ll_kind kind, uint64_t epoch);
/* So many rows that stand there, `pitch` bytes from one to the next, to right before the parcel's flag. */
void ll_far_send(const ll_cpu *self, ll_slot *slot, int32_t rows, size_t pitch, const ll_parcel *to);
/* Where weights for the rank are put together, once those before have come; and their way, with the last one's flag.
   NULL: it has been masked meanwhile. */
float *ll_far_weights(const ll_cpu *self, int32_t pe);
void ll_far_send_weights(const ll_cpu *self, size_t bytes, const ll_parcel *to);

/* Keeps a failure of what was to be sent to the rank, which with masks is masked for it; whether one is kept; waits
   until what was sent with the batch is quiet. */
void ll_far_keep(const ll_cpu *self, int32_t pe, expar_status status);
bool ll_far_has_failed(ll_links *far);
void ll_far_await_batch(const ll_cpu *self, int32_t pe, link_batch *batch);
/* That something has come is awaited at the end alone; with masks also before a rank is told of them. */
static inline bool ll_far_orders(const ll_cpu *self)
{
    return !self->masks;
}

/* Whether all that was sent to the rank has come, or never will. */
bool ll_far_has_come(const ll_cpu *self, int32_t rank);
/* Whether a far rank's flag of the epoch has come, in order with nothing: what it stands for is looked at behind
   ll_see, and an acquire of the flag. */
static inline bool ll_far_came(const ll_cpu *self, uint64_t flag, uint64_t epoch)
{
    return ll_word_is_of(link_peek(ll_here(self, flag)), epoch);
}
/* Operations. */
void ll_far_await(const ll_cpu *self, ll_kind kind, uint64_t epoch);
expar_status ll_far_check(const ll_cpu *self, const char *what);
expar_status ll_far_set_aside(const ll_cpu *self, int32_t rank);
/* As ll_far_came and what is to follow it, for flags of which few are awaited. */
bool ll_far_found(const ll_cpu *self, uint64_t flag, uint64_t epoch);

/* ---- units.c ----------------------------------------------------------------------------------------------------- */

/* Data that ends with its flag, behind what is put off for the rank. */
void ll_far_put(const ll_cpu *self, int32_t pe, const link_data *data, link_batch *batch);
/* Operations. */
void ll_far_unit(const ll_cpu *self, const ll_call *call, ll_kind kind, const ll_sends *sends, int32_t pe);
void ll_far_read(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t at, uint64_t word, bool whole);
ll_door ll_far_ask(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t epoch);
void ll_far_flush(const ll_cpu *self);

/* ---- pieces.c ---------------------------------------------------------------------------------------------------- */

expar_status ll_far_pieces_make(const ll_cpu *self);
void ll_far_pieces_free(ll_links *far);
/* returns, by due_rows and due_sums. */
void ll_far_place_returns(const ll_cpu *self);
/* Operation. */
void ll_far_clear(const ll_cpu *self, ll_kind kind, int32_t half, int32_t region);

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

/* Whether there is something that the rank has not been told. */
bool ll_far_is_owed(const ll_cpu *self, int32_t rank);
/* Operations. */
void ll_far_spread(const ll_cpu *self);
void ll_far_masker(const ll_cpu *self, int32_t rank, uint64_t masker);
void ll_far_linger(const ll_cpu *self, int32_t rank);
expar_status ll_far_conclude(const ll_cpu *self, const uint32_t *view);

#endif
