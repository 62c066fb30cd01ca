/* SPDX-License-Identifier: Apache-2.0 */
/* Parcels by the proxy: a kernel passes a command to a ring (link/device/ring.h), whose thread on the host puts the
 * data to the rank's buffer. All commands to a rank share a ring. The ring has a counter of the commands to each rank
 * before which all have ended (proxy_port.done_to).
 *
 * Waits for the ring ask nobody about the rank. The proxy itself gives up commands to a rank that is lost or silent. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_RING_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_RING_H

#include "exec/cuda/kernels/low_latency/parcel.h"
#include "link/device/ring.h"

GPU_FUNC proxy_port *ll_port_of(const ll_gpu_call *c, int32_t pe)
{
    return (proxy_port *)c->far[pe].port;
}

/* Reports that the ring has ended. The wait of the report is one for the rank's acknowledgement. */
GPU_ASIDE void ll_ring_give_up(const ll_gpu_call *c, int32_t pe, uint64_t ended)
{
    give_up(&c->place, GPU_WAIT_CREDIT + c->kind * GPU_LL_WAITS, pe, ended, 0, GPU_NO_RING);
}

GPU_FUNC bool ll_ring_has_ended(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    return proxy_end_is_at(proxy_load_near(&ll_port_of(c, pe)->done_to[pe]), number);
}

/* LL_TURN_LEAVE: the wait was given up. Without masks it is told to the host as one for this rank itself, which the
   host does not ask about. */
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

/* The parcel becomes one command: a put of the data with the word as its signal. */
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

#endif
