/* SPDX-License-Identifier: Apache-2.0 */
/* link: the one way to a peer's memory, mapped or by a network: reach, put, get, flag, change, fetch, fence, quiet.
 *
 * Called by the executors on the CPU and by pgas; calls shmem, and by it net. An executor makes a link for each peer
 * once (link_open), and only reads it from then on. Where the peer's heap is mapped, link_at gives its address, and
 * whoever writes many rows there does so by loads and stores of its own, with sym_ring after the flag; put and flag do
 * the same for those who do not care. Where it is not, operations go to the transports that shmem has chosen for the
 * peer. What these can do, and what one of them does better than another, is known here alone: callers say what must
 * come before what. A call of the program makes one for itself (link_reach), which only knows transports, and the
 * proxy's ring.
 *
 * Batches. What is under way belongs to a batch of the caller's, all zero at its beginning. It stays where it is until
 * link_quiet has returned, which says that all of it has come to its targets. Several peers may share a batch.
 *
 * Order, and there is no other:
 *   - a flag comes behind the data of its own put, and whoever finds it by an acquire sees the data, behind sym_behold;
 *   - what is sent behind link_fence or link_quiet comes behind all that was sent with the batch before;
 *   - ordered data is quiet once it is sure to come before all other data that is sent to the peer from then on, and
 *     its source is free: by TCP when it has left, by other networks when it has come. That it has come is known once
 *     later data that is not ordered is quiet.
 * Two puts, two flags, or a put and a later flag may come in any order, also to one peer. So a word to which a flag is
 * on its way is sent no other one, and what a peer concludes from a flag about an earlier put needs a fence between. A
 * flag's word comes whole, but for one in its own data (link_put_flag); words of a put need not, and are looked at
 * behind a flag alone. Of the caller's own loads and stores all that stand before an operation come before it.
 *
 * Threads. Any thread of the rank, several at a time, also with one batch and one link; link_fence and link_quiet of a
 * batch by one thread, while no other one sends with it. They, and operations for which there is no room, drive the
 * network meanwhile; else its own thread does, so what has been sent arrives without this rank's doing more.
 *
 * Errors. EXPAR_ERR_PEER: the peer has died, left or fallen silent, or its network has failed; nothing of that
 * operation can be relied on. It is told by the operation, or by the next link_fence or link_quiet of its batch, once,
 * with the peer's name. Waits for an answer end as all do: at once where the peer is known to be gone, else once it is
 * silent. EXPAR_ERR_INTERRUPTED, EXPAR_ERR_ABORTED: likewise. Whatever link_quiet returns, nothing touches the batch
 * from then on. Mapped memory knows no errors: who stores to the dead stores in vain. */
#ifndef EXPAR_LINK_LINK_H
#define EXPAR_LINK_LINK_H

#include "shmem/sym.h"

/* Handed to transports by a rank's links; of what goes to mapped memory nothing is counted. Raised by any thread of the
   rank, read by those who ask; relaxed, since they order nothing. */
typedef struct link_counts {
    _Atomic uint64_t messages; /* puts, each with the flag behind it */
    _Atomic uint64_t flags;    /* by themselves */
    _Atomic uint64_t bytes;    /* of both; a flag has 8 */
    _Atomic uint64_t rows;     /* in messages, as their senders say */
} link_counts;

/* What they were at a moment. */
typedef struct link_sent {
    uint64_t messages, flags, bytes, rows;
} link_sent;
/* NULL: nothing goes by a network, all 0. */
link_sent link_sent_of(const link_counts *counts);

/* To one peer. The owner's threads read it; nobody writes it behind link_open. */
typedef struct link_peer {
    sym *sym;
    int32_t pe;
    uint8_t *mapped;         /* the peer's heap here, or NULL */
    transport *data, *words; /* what carries puts and gets, and what carries words; NULL where it is mapped */
    link_counts *counts;     /* of all links of the caller; NULL: nothing is counted */
    const char *call;        /* stands before texts of errors; NULL: nothing does */
    proxy *proxy;            /* carries what has no batch; NULL: transports do */
} link_peer;

/* What is under way; all zero at its beginning. */
typedef transport_batch link_batch;

/* Where data is to go. */
typedef struct link_data {
    uint64_t offset; /* in the peer's heap */
    const void *source;
    size_t bytes;
    /* The source may be reused when the call returns, which for more than a few KB waits until the data has come. Else
       when link_quiet does. */
    bool copies;
    bool ordered;  /* that it comes first is enough: it may be quiet before it has come; see "Order" */
    uint32_t rows; /* of tokens that are in it: records, sums, messages; only counted */
} link_data;

/* A word of 8 bytes, aligned, that is stored there. */
typedef struct link_flag {
    uint64_t offset, word;
    bool adds; /* to what is there, by an atomic */
} link_flag;

/* An atomic operation on a word there. */
typedef struct link_change {
    transport_atomic_op op;
    size_t bytes;              /* 4 or 8 */
    uint64_t operand, compare; /* in the low bytes */
    uint64_t offset;
    void *old; /* gets the word that was there, of `bytes` bytes, once it has been done; NULL: nobody wants it */
} link_change;

/* What a call of the program needs of a peer; a set. */
typedef enum link_needs { LINK_DATA = 1, LINK_WORDS = 2 } link_needs;

/* How this rank, in whose heap everything lies at the same offsets, reaches pe. unmapped: not by mapped memory, even if
   that is there: by a transport that maps nothing where one reaches the peer, else by the operations of the one that
   does. EXPAR_ERR_UNSUPPORTED: nothing reaches it. Its own memory is always mapped. */
expar_status link_open(sym *sym, int32_t pe, bool unmapped, link_counts *counts, link_peer *out);

/* How a call of the program reaches pe: by the transports that shmem has chosen, also where the heap is mapped.
   EXPAR_ERR_UNSUPPORTED: nothing there does what it needs (link_needs). */
expar_status link_reach(sym *sym, int32_t pe, unsigned needs, const char *call, link_peer *out);

/* Whether each rank has every other one's heap mapped. All ranks find the same. */
bool link_all_mapped(const sym *sym);

/* Address of an offset of the peer's heap; NULL where it is not mapped. */
static inline void *link_at(const link_peer *peer, uint64_t offset)
{
    return peer->mapped ? peer->mapped + offset : NULL;
}

/* Operations take a batch. Those of link_reach may have none: they are complete after sym_quiet. Those that end in _now
   have been carried out when they return: the source may be reused, or what was asked for is here. A change without
   `old` is complete after sym_quiet. Whoever may watch words in a put's data is the caller's to ring. */
expar_status link_put(const link_peer *peer, const link_data *data, link_batch *batch);
expar_status link_put_now(const link_peer *peer, const link_data *data);
expar_status link_get(const link_peer *peer, void *dest, uint64_t offset, size_t bytes, link_batch *batch);
expar_status link_get_now(const link_peer *peer, void *dest, uint64_t offset, size_t bytes);
/* Both wake the peer, unless the word is only fetched. Not where the peer is mapped. */
expar_status link_change_word(const link_peer *peer, const link_change *change, link_batch *batch);
expar_status link_change_now(const link_peer *peer, const link_change *change);
/* The flag once the data is there, and wakes the peer. Data of 0 bytes: the flag alone. NULL: the data's last 8 bytes,
   an aligned word there, are its flag, which is ordered with the data. That word may come in pieces, the lowest byte
   first: whoever finds its upper half looks at all of it, and at the rest, behind sym_behold. */
expar_status link_put_flag(const link_peer *peer, const link_data *data, const link_flag *flag, link_batch *batch);

/* Data that ends with its flag. */
typedef struct link_piece {
    link_data data;
    link_batch *batch;
} link_piece;
#define LINK_MOST_PIECES 3
/* Puts pieces one behind the other, each once its batch is quiet; where they are ordered and the network can, as one
   message, with the last one's batch, or all but the last few. All but the last one are copied, and few bytes. Where
   one fails, the others are sent nevertheless, and the first failure is told. */
expar_status link_put_pieces(const link_peer *peer, const link_piece *pieces, uint32_t num_pieces);
/* Such a word as it is by now, in order with nothing: what is found by it is looked for again behind sym_behold, by an
   acquire. The network may store it as bytes of a message, which ThreadSanitizer is not shown. */
uint64_t link_peek(const _Atomic uint64_t *word);
/* Brings a word of 8 bytes, aligned, as the peer itself stores it (release): *word is it once the batch is quiet
   (acquire). */
expar_status link_fetch(const link_peer *peer, uint64_t offset, uint64_t *word, link_batch *batch);
/* A flag behind nothing but what was fenced. Wakes the peer. */
expar_status link_set_flag(const link_peer *peer, const link_flag *flag, link_batch *batch);

/* Whether all that was sent with it has come to its end, well or not: then link_quiet does not wait. */
static inline bool link_is_quiet(const link_batch *batch)
{
    return atomic_load_explicit(&batch->left, memory_order_acquire) == 0;
}
/* What was sent to the peer with the batch comes before what is sent to it from now on. */
expar_status link_fence(const link_peer *peer, link_batch *batch);
/* All that was sent with it, to whomever, has come; its sources are free. */
expar_status link_quiet(sym *sym, link_batch *batch);
/* Waits for nothing: what is under way to the peer with the batch may come or not, and nothing touches the batch from
   then on, nor its sources, but for those of large puts, which a network may read until the group has gone. */
void link_drop(const link_peer *peer, link_batch *batch);

#endif
