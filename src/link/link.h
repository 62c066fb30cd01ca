/* SPDX-License-Identifier: Apache-2.0 */
/* link: operations on a peer's memory, mapped or over a network: reach, put, get, flag, change, fetch, fence, quiet.
 *
 * The executors on the CPU and pgas call this folder; it calls shmem, and net through shmem. An executor makes a link
 * for each peer once (link_open), and only reads it afterwards. If the peer's heap is mapped, link_at gives its
 * address. A caller that writes many rows there uses its own loads and stores, and calls sym_ring after the flag. Other
 * callers use put and flag, which do the same. If the heap is not mapped, operations go to the transports that shmem
 * has chosen for the peer. Only this folder knows what each transport can do, and which one to prefer. Callers only say
 * which operation must precede which. A public call makes a link for itself (link_reach), which uses only transports
 * and the proxy's ring.
 *
 * Batches. Each operation in progress belongs to a batch, an object of the caller that is all zero at its beginning.
 * The batch must not move until link_quiet has returned; then all its operations have arrived at their targets. Several
 * peers may share a batch.
 *
 * Order. There are no rules but these:
 *   - A flag arrives after the data of its own put. A thread that reads the flag by an acquire, and then calls
 *     sym_behold, sees the data.
 *   - After link_fence or link_quiet, a new operation arrives after all operations that were sent with the batch
 *     before.
 *   - For link_quiet, a put with `ordered` is complete before it has arrived. Two things must be sure: no data that is
 *     sent to the peer later arrives before it, and its source may be reused. With TCP that is when the data has left;
 *     with other networks it is when it has arrived. To know that it has arrived, send a put without `ordered` after
 *     it, and wait for that one.
 * Two puts, two flags, or a put and a later flag may arrive in any order, even at one peer. So send no second flag to a
 * word while a flag is on its way there. If a flag shall tell the peer that an earlier put has arrived, call link_fence
 * between the two. A flag's word arrives whole, except a flag in its own data (link_put_flag). Words of a put may
 * arrive in parts, so read them only after a flag. The caller's own loads and stores before an operation take effect
 * before it.
 *
 * Threads. Any thread of the rank may call, several at a time, also with one batch and one link. Only one thread calls
 * link_fence or link_quiet with a batch, while no other thread sends with that batch. A thread in these two calls, or
 * in an operation that finds no free space, drives the network while it waits. At other times the network's own thread
 * does, so operations arrive without further calls of this rank.
 *
 * Errors. EXPAR_ERR_PEER means that the peer has died, left or fallen silent, or that its network has failed. The
 * operation may or may not have had its effect. The operation itself returns this error, or the next link_fence or
 * link_quiet with its batch does. It is returned once, with the peer's name. A wait for an answer ends at once if the
 * peer is known to be gone; otherwise it ends when the peer is silent. EXPAR_ERR_INTERRUPTED and EXPAR_ERR_ABORTED are
 * returned in the same way. After link_quiet nothing touches the batch, whatever status it returned. Mapped memory
 * reports no errors: stores to a dead peer have no effect. */
#ifndef EXPAR_LINK_LINK_H
#define EXPAR_LINK_LINK_H

#include "shmem/sym.h"

/* Counts what a rank's links pass to transports; accesses to mapped memory are not counted. Any thread of the rank
   raises the counts, and any thread reads them. All accesses are relaxed, because the counts order nothing. */
typedef struct link_counts {
    /* puts, each with the flag that follows it */
    _Atomic uint64_t messages;
    /* flags without data */
    _Atomic uint64_t flags;
    /* bytes of puts and flags; a flag has 8 */
    _Atomic uint64_t bytes;
    /* rows in the puts, as their senders state them */
    _Atomic uint64_t rows;
} link_counts;

/* A snapshot of the counts. */
typedef struct link_sent {
    uint64_t messages, flags, bytes, rows;
} link_sent;
/* Returns the present counts. With NULL all members are 0: no operation goes over a network. */
link_sent link_sent_of(const link_counts *counts);

/* A link to one peer. The owner's threads read it; nothing writes it after link_open. */
typedef struct link_peer {
    sym *sym;
    int32_t pe;
    /* the peer's heap here, or NULL */
    uint8_t *mapped;
    /* the transports of puts and gets, and of words; NULL if the heap is mapped */
    transport *data, *words;
    /* the caller's counts, shared by all its links; NULL: nothing is counted */
    link_counts *counts;
    /* name of the call, which opens error texts; NULL: no name */
    const char *call;
    /* carries operations without a batch; NULL: transports carry them */
    proxy *proxy;
    /* the kinds of memory that offsets of data, and those of words and flags, are in; the host's, except for public
       calls (link_reach) */
    transport_memory memory, words_memory;
    /* the caller's side of puts and gets is memory of a GPU; set by public calls (link_take_device) */
    bool on_device;
} link_peer;

/* Operations in progress; all zero at its beginning. */
typedef transport_batch link_batch;

/* The data of a put, and its place at the peer. */
typedef struct link_data {
    /* in the peer's heap */
    uint64_t offset;
    const void *source;
    size_t bytes;
    /* With true, the source may be reused when the call returns. For more than a few KB the call then waits until the
       data has arrived. With false, the source may be reused after link_quiet. */
    bool copies;
    /* link_quiet need not wait for the data's arrival, only until its order is sure; see "Order" above */
    bool ordered;
    /* rows of tokens in the data (records, sums, messages); only counted */
    uint32_t rows;
} link_data;

/* An aligned word of 8 bytes that is stored at the target. */
typedef struct link_flag {
    uint64_t offset, word;
    /* adds to the word there, by an atomic */
    bool adds;
} link_flag;

/* An atomic operation on a word of the peer. */
typedef struct link_change {
    transport_atomic_op op;
    /* 4 or 8 */
    size_t bytes;
    /* in the low bytes */
    uint64_t operand, compare;
    uint64_t offset;
    /* receives the former word, of `bytes` bytes, when the operation is complete; NULL: it is not wanted */
    void *old;
} link_change;

/* The kinds of transport that a public call needs for a peer: for puts and gets, for atomics. The values form a set. */
typedef enum link_needs { LINK_DATA = 1, LINK_WORDS = 2 } link_needs;

/* Makes a link to pe. Offsets are the same in its heap as in this rank's. With `unmapped` the link does not use mapped
   memory, even if there is some. It then uses a transport that maps nothing, if one reaches the peer; otherwise it uses
   put, get and atomics of the transport that maps it. EXPAR_ERR_UNSUPPORTED: no transport reaches pe. A rank's own
   memory is always mapped. */
expar_status link_open(sym *sym, int32_t pe, bool unmapped, link_counts *counts, link_peer *out);

/* Makes the link of a public call to that memory of pe. It uses the transports that shmem has chosen, even if the heap
   is mapped. EXPAR_ERR_UNSUPPORTED: none of them can do what the call needs (link_needs). */
expar_status link_reach(sym *sym, int32_t pe, transport_memory memory, unsigned needs, const char *call,
                        link_peer *out);
/* Afterwards the link's words and flags are in memory of that kind. EXPAR_ERR_UNSUPPORTED as link_reach. */
expar_status link_aim_words(link_peer *peer, transport_memory memory);

/* Afterwards the caller's side of the link's puts and gets is memory of a GPU. Data between it and memory of CPUs pass
   through pinned pieces of the library's own, and have arrived when the call returns. */
void link_take_device(link_peer *peer);

/* Returns whether every rank maps the heap of every other rank. All ranks get the same result. */
bool link_all_mapped(const sym *sym);

/* Returns the address of an offset of the peer's heap; NULL if the heap is not mapped. */
static inline void *link_at(const link_peer *peer, uint64_t offset)
{
    return peer->mapped ? peer->mapped + offset : NULL;
}

/* Operations take a batch. With a link of link_reach it may be NULL; then sym_quiet completes the operation. When a
   call whose name ends in _now returns, the source may be reused and the result is there. Only a change without `old`
   is complete later, after sym_quiet. Puts do not wake the peer: a caller whose peer may wait for words in the data
   must ring it. */
expar_status link_put(const link_peer *peer, const link_data *data, link_batch *batch);
expar_status link_put_now(const link_peer *peer, const link_data *data);
expar_status link_get(const link_peer *peer, void *dest, uint64_t offset, size_t bytes, link_batch *batch);
expar_status link_get_now(const link_peer *peer, void *dest, uint64_t offset, size_t bytes);
/* Both calls wake the peer, unless the word is only fetched. Do not call them if the peer is mapped. */
expar_status link_change_word(const link_peer *peer, const link_change *change, link_batch *batch);
expar_status link_change_now(const link_peer *peer, const link_change *change);
/* Puts the data, stores the flag once the data has arrived, and wakes the peer. With 0 bytes of data it sends the flag
   alone. With `flag` NULL, the last 8 bytes of the data are the flag, an aligned word. It follows `ordered` like the
   data. That word may arrive in parts, the lowest byte first. A reader that finds its upper four bytes calls
   sym_behold, and then reads the whole word again, and the rest of the data. */
expar_status link_put_flag(const link_peer *peer, const link_data *data, const link_flag *flag, link_batch *batch);

/* Data that ends with its flag. */
typedef struct link_piece {
    link_data data;
    link_batch *batch;
} link_piece;
#define LINK_MOST_PIECES 3
/* Puts the pieces one after the other: it waits until the batch of a piece is quiet, then puts that piece. If they are
   `ordered`, and the network can do so, one message carries the first pieces together, all of them if possible. It
   belongs to the batch of its last piece. That message copies all its pieces except the last one, so they should have
   few bytes. If a piece fails, the others are sent nevertheless, and the first failure is returned. */
expar_status link_put_pieces(const link_peer *peer, const link_piece *pieces, uint32_t num_pieces);
/* Returns the present value of a flag in its own data, without any order. After the reader has found a flag, it calls
   sym_behold and reads the word again by an acquire. The network may store the word as bytes of a message;
   ThreadSanitizer does not check this read. */
uint64_t link_peek(const _Atomic uint64_t *word);
/* Fetches an aligned word of 8 bytes, which the peer stores by release. *word is valid once the batch is quiet
   (acquire). */
expar_status link_fetch(const link_peer *peer, uint64_t offset, uint64_t *word, link_batch *batch);
/* Stores a flag and wakes the peer. The flag arrives after operations that were fenced before; other operations may
   arrive after it. */
expar_status link_set_flag(const link_peer *peer, const link_flag *flag, link_batch *batch);

/* Returns whether all operations of the batch have ended, with success or not; then link_quiet does not wait. */
static inline bool link_is_quiet(const link_batch *batch)
{
    return atomic_load_explicit(&batch->left, memory_order_acquire) == 0;
}
/* Orders operations on the peer: those that were sent with the batch take effect before all that are sent to it
   later. */
expar_status link_fence(const link_peer *peer, link_batch *batch);
/* Waits until all operations of the batch, to all peers, have arrived; then their sources are free. */
expar_status link_quiet(sym *sym, link_batch *batch);
/* Abandons the operations on the peer that were sent with the batch, without waiting; they may still arrive. Nothing
   touches the batch or their sources afterwards, with one exception: a network may read the sources of large puts until
   the group has ended. */
void link_drop(const link_peer *peer, link_batch *batch);

#endif
