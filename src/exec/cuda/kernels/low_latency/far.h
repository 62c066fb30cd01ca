/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose memory this rank does not map. Kernels write their data for such a rank to a send buffer in pinned memory
 * (proto/sends.h). Then they pass commands to a ring (link/device/ring.h), whose thread on the host puts the data to
 * the rank's buffer. All commands to a rank share a ring.
 *
 *   a message, a row, weights   one put of the data, and its flag as the put's signal
 *   a message header            one put of its words but the first, and the first one, the status, as the signal
 *   an acknowledgement          one word that is set
 *
 * A place of the send buffer is used again when its command of an earlier call has ended. Commands to a rank end in any
 * order, but the ring has a counter of those before which all have ended (proxy_port.done_to). So kernels keep for each
 * rank how far the commands of its last calls reach (ll_gpu_far.sent). A word of an acknowledgement is set again when
 * its last command has ended, since two may overtake each other.
 *
 * Waits for the ring ask nobody about the rank. The proxy itself gives up commands to a rank that is lost or silent.
 * With masks they are waits for the rank, and end when it is masked. No command is passed to a masked rank. Kernels
 * leave words about masks to the host (ll_gpu_masker). A stopped rank must find them when it wakes up, and the ring has
 * given it up by then. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_H

#include "exec/cuda/kernels/low_latency/masks.h"

/* A thread sends it to a rank. It has data that this thread has written, or threads that it has met, and a word that
   comes after the data. */
typedef struct ll_parcel {
    const uint8_t *data; /* where it was written */
    uint64_t to, bytes;  /* its offset in the rank's buffer; 0 bytes: there is only the word */
    uint64_t at, word;   /* the word, and its offset there */
} ll_parcel;

#if LL_FAR

#include "link/device/ring.h"
#include "proto/sends.h"

GPU_FUNC proxy_port *ll_port_of(const ll_gpu_call *c, int32_t pe)
{
    return (proxy_port *)c->far[pe].port;
}
GPU_FUNC ll_sends_space ll_sends_here(const ll_gpu_call *c)
{
    const ll_shape shape = ll_shape_here(c);
    const ll_space space = ll_space_here(c);
    return ll_sends_space_of(&shape, &space);
}

/* ---- places of the send buffer ----------------------------------------------------------------------------------- */

GPU_FUNC uint8_t *ll_ring_header(const ll_gpu_call *c, int32_t pe, ll_kind kind, uint64_t epoch)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_space space = ll_space_here(c);
    return c->far[pe].sends + ll_sends_header_at(&sends, &space, kind, epoch);
}
GPU_FUNC uint8_t *ll_ring_message(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return c->far[pe].sends + ll_sends_message_at(&sends, &space, &shape, epoch, message);
}
GPU_FUNC uint8_t *ll_ring_row(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_space space = ll_space_here(c);
    return c->far[pe].sends + ll_sends_row_at(&sends, &space, number);
}
GPU_FUNC uint8_t *ll_ring_weights(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_shape shape = ll_shape_here(c);
    return c->far[pe].sends + ll_sends_weights_at(&sends, &shape, epoch, message);
}

/* ---- waits for the ring ------------------------------------------------------------------------------------------ */

/* Reports that the ring has ended. The wait of the report is one for the rank's acknowledgement. */
GPU_ASIDE void ll_ring_give_up(const ll_gpu_call *c, int32_t pe, uint64_t ended)
{
    give_up(&c->place, GPU_WAIT_CREDIT + c->kind * GPU_LL_WAITS, pe, ended, 0, GPU_NO_RING);
}

/* Waits until all commands to the rank before that number have ended. LL_TURN_LEAVE: the wait was given up. Without
   masks it is told to the host as one for this rank itself, which the host does not ask about. */
GPU_ASIDE ll_gpu_turn ll_ring_await(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    const ll_shared s = ll_shared_here(c);
    proxy_port *port = ll_port_of(c, pe);
    proxy_wait w = proxy_wait_for(port, proxy_done_to(port->ring, port->num_slots) + pe, &port->done_to[pe], 1);
    ll_waiting at = {{0, 0}, 0, false};
    uint64_t ended = 0;
    ll_gpu_turn turn = ll_is_masked(c, pe) ? LL_TURN_LOST : LL_TURN_ON;
    while (turn == LL_TURN_ON && !ended && !proxy_end_is_at(w.seen, number)) {
        ended = proxy_wait_turn(&w, number);
        turn = ll_may_wait(c, &s, &at, GPU_WAIT_CREDIT, LL_MASKS ? pe : c->place.rank, number, 0);
    }
    proxy_wait_leave(&w);
    if (ended) ll_ring_give_up(c, pe, ended);
    return ended ? LL_TURN_LEAVE : turn;
}

/* Returns how far the commands reach of the call that was so many calls ago. */
GPU_FUNC uint64_t ll_ring_sent(const ll_gpu_call *c, const ll_now *now, int32_t pe, uint64_t ago)
{
    const uint64_t call = (now->epoch + LL_GPU_SENT_CALLS - ago) % LL_GPU_SENT_CALLS;
    return load_relaxed_64((const uint64_t *)&c->far[pe].sent[now->kind][call]);
}
/* True if it is known that places for the data of this call are free. The call before the last had the same ones. */
GPU_FUNC bool ll_ring_is_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return !ll_is_far(c, pe) ||
           proxy_end_is_at(proxy_load_near(&ll_port_of(c, pe)->done_to[pe]), ll_ring_sent(c, now, pe, LL_SLOTS));
}
/* Waits until they are. */
GPU_FUNC ll_gpu_turn ll_ring_await_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return ll_ring_is_free(c, now, pe) ? LL_TURN_ON : ll_ring_await(c, pe, ll_ring_sent(c, now, pe, LL_SLOTS));
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* Passes the parcel to the ring. Returns the number after its command; 0: the ring has ended. */
GPU_ASIDE uint64_t ll_ring_issue(const ll_gpu_call *c, int32_t pe, ll_parcel parcel)
{
    proxy_command put = {0};
    uint64_t after = 0;
    put.kind = PROXY_PUT_SIGNAL;
    put.op = LL_GPU_SET;
    put.memory = put.signal_memory = LL_GPU_PINNED;
    put.pe = pe;
    put.local = (uint64_t)parcel.data;
    put.offset = c->place.buffer + parcel.to;
    put.bytes = parcel.bytes;
    put.signal = c->place.buffer + parcel.at;
    put.operand = parcel.word;
    const uint64_t ended = ring_issue(ll_port_of(c, pe), &put, &after);
    if (ended) ll_ring_give_up(c, pe, ended);
    return ended ? 0 : after;
}

/* Sends a parcel of the call, unless the rank is masked. */
GPU_FUNC void ll_ring_send(const ll_gpu_call *c, int32_t kind, uint64_t epoch, int32_t pe, const ll_parcel *parcel)
{
    if (ll_is_masked(c, pe)) return;
    const uint64_t after = ll_ring_issue(c, pe, *parcel);
    atomicMax(&c->far[pe].sent[kind][epoch % LL_GPU_SENT_CALLS], (unsigned long long)after);
}

/* Acknowledges a call of that kind, and names the region of a combine's slot. One thread of the kernel calls it for a
   rank and a kind. */
GPU_ASIDE void ll_ring_say_read(const ll_gpu_call *c, int32_t pe, int32_t kind, uint64_t epoch, uint32_t region)
{
    unsigned long long *last = &c->far[pe].acknowledged[kind][ll_slot_of_epoch(epoch)];
    const ll_parcel word = {NULL, 0, 0, ll_read_place(c, (ll_kind)kind, c->place.rank, epoch), ll_word(epoch, region)};
    if (ll_ring_await(c, pe, *last) == LL_TURN_ON) *last = (unsigned long long)ll_ring_issue(c, pe, word);
}

#else

GPU_FUNC uint8_t *ll_ring_message(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    return NULL;
}
GPU_FUNC uint8_t *ll_ring_row(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    return NULL;
}
GPU_FUNC uint8_t *ll_ring_weights(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    return NULL;
}
GPU_FUNC bool ll_ring_is_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return true;
}
GPU_FUNC ll_gpu_turn ll_ring_await_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return LL_TURN_ON;
}
GPU_FUNC void ll_ring_send(const ll_gpu_call *c, int32_t kind, uint64_t epoch, int32_t pe, const ll_parcel *parcel)
{
}
GPU_FUNC void ll_ring_say_read(const ll_gpu_call *c, int32_t pe, int32_t kind, uint64_t epoch, uint32_t region)
{
}

#endif

/* ---- to any rank ------------------------------------------------------------------------------------------------- */

/* Stores the word at the rank, after the data of the parcel. At a mapped rank the data is in its place already. */
GPU_FUNC void ll_send_parcel(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe,
                             const ll_parcel *parcel)
{
    if (LL_FAR && ll_is_far(c, pe))
        ll_ring_send(c, now->kind, now->epoch, pe, parcel);
    else
        store_release((uint64_t *)ll_there(s, pe, parcel->at), parcel->word);
}

#endif
