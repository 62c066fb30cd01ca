/* SPDX-License-Identifier: Apache-2.0 */
/* far: ranks whose memory is not mapped here, and what goes to them, by links (exec/link.h). Private to this folder.
 *
 * Near ranks are written to by stores, as cpu.h has it; a buffer without far ranks has nothing of this. A message, and
 * a row that is made for its way or may not stay where it is, is put together in a slot of the stage, which is free
 * again when it has arrived; other rows go from where they are. Each is one message of the network's, with its flag.
 *
 * Order. Stores to near ranks come in the order in which they are made; of links that holds for a message and its own
 * flag alone. What the protocol needs beyond that is waited for, which mostly means that it has come long ago:
 *   - a rank's units of a kind go one behind the other: who has one has those before it, too (ll_far_unit);
 *   - a unit of a combine comes behind the rows of the combine before (ll_far_await): who has not read those lets
 *     others write to their places in the next call of the half, once all have sent this unit;
 *   - messages to a half come behind those that this rank has sent there before (ll_far_await), and likewise read words
 *     and weights: two stores to one word are never under way together.
 * None of it waits for a call of the peer's: a network delivers to a rank that does something else, too.
 *
 * Errors. What cannot be sent is kept, the first of it, until the phase looks (ll_far_check). A rank that has left the
 * group in peace had all that it needed: nothing that does not come to it is an error. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_FAR_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_FAR_H

#include "exec/cpu/low_latency/cpu.h"
#include "exec/link.h"

#include <pthread.h>

/* A place of the stage. A worker takes it, fills it and sends it; then it is under way until its batch is quiet. */
typedef struct ll_slot {
    /* Exchanged to true by the worker that takes it (acquire), set to false by the same (release). */
    atomic_bool taken;
    uint8_t *bytes; /* [stage_bytes] */
    /* Of what is, or was last, sent from here. Written by the taker; read by the next one, and between two rounds of
       work by the thread that is in a call. */
    ll_kind kind;
    int32_t half, pe;
    transport_batch batch;
} ll_slot;

/* One rank. Units, read words and weights are sent by the thread that is in a call, rows by workers, too. */
typedef struct ll_far_rank {
    link_peer link; /* with an address: it is near, or this rank itself */
    transport_batch units[LL_KINDS], reads[LL_KINDS], weights;
    transport_batch rows[LL_HALVES]; /* of combines, from x */
} ll_far_rank;

struct ll_far {
    ll_far_rank *ranks;    /* [N] */
    ll_slot *slots;        /* [LL_STAGED] */
    _Atomic uint32_t next; /* slots that were taken so far; raised by workers, relaxed: it only spreads them */
    uint64_t *unit;        /* the one that is being sent, words and text */
    float *weights;        /* [N][B][K] that go ahead to each rank; NULL where none ever do */
    link_counts counts;    /* of all that was sent */
    pthread_mutex_t lock;  /* guards what follows */
    error_kept failed;     /* the first that could not be sent; EXPAR_OK: none */
    int64_t gone_ns;       /* when this rank stops waiting for the network, having given the buffer up; 0: it has not */
};

/* Finds how each rank is reached, and where the buffers of near ones lie here; self->far only where one is far.
   unmapped: all others are. */
expar_status ll_far_make(ll_cpu *self, bool unmapped);
/* Between the two this thread's waits for the network end soon, for the buffer has been given up: LINK_LINGER_NS from
   the first time on. */
void ll_far_linger_begin(const ll_cpu *self);
void ll_far_linger_end(void);
/* Nothing of it is under way any more. sound: all of it has come, or else what a living network delivers at once. */
void ll_far_end(ll_cpu *self, bool sound);

/* Where a message goes in a rank's buffer, and the flag behind it. */
typedef struct ll_parcel {
    int32_t pe;
    uint64_t at, flag, word;
} ll_parcel;

/* A free slot for something of the call, to be filled and sent by the same worker. */
ll_slot *ll_far_take(const ll_cpu *self, ll_kind kind, uint64_t epoch);
void ll_far_send(const ll_cpu *self, ll_slot *slot, size_t bytes, const ll_parcel *to);
/* A row of a combine from where it is, and stays until ll_far_await_rows. */
void ll_far_send_row(const ll_cpu *self, const void *row, size_t bytes, const ll_parcel *to);
/* The unit that stands in far->unit: its first word behind the others, of `bytes` bytes in all. */
void ll_far_unit(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t unit, size_t bytes);
void ll_far_read(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t at, uint64_t word);
/* Where weights for the rank are put together, once those before have come; and their way, with the last one's flag. */
float *ll_far_weights(const ll_cpu *self, int32_t pe);
void ll_far_send_weights(const ll_cpu *self, size_t bytes, const ll_parcel *to);

/* Until all has come that this rank has sent to the half of the epoch. */
void ll_far_await(const ll_cpu *self, ll_kind kind, uint64_t epoch);
/* Until the rows that went from where they are have come; or, of a call that has failed, without waiting: link_drop. */
void ll_far_await_rows(const ll_cpu *self, uint64_t epoch);
void ll_far_drop_rows(const ll_cpu *self, uint64_t epoch);
/* EXPAR_OK, or why something could not be sent; what: the phase, for the text. */
expar_status ll_far_check(const ll_cpu *self, const char *what);
/* What has come before a flag that was found is seen from here on. */
static inline void ll_far_see(const ll_cpu *self)
{
    if (self->far) sym_behold(self->sym);
}

#endif
