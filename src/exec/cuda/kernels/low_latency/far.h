/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose memory this rank does not map. Kernels write their data for such a rank to a send buffer in pinned memory
 * (proto/sends.h). Then they issue parcels (parcel.h), which a network carries to the rank's buffer. A parcel is either
 * some requests for a network device, which the kernel writes itself (far_gda.h), or a command to a ring of the proxy
 * (far_ring.h).
 *
 *   a message, a row, weights   a parcel of the data, and its flag as the word
 *   a message header            a parcel of its words but the first, and the first one, the status, as the word
 *   an acknowledgement          a word alone
 *
 * A place of the send buffer is used again when its parcel of an earlier call has ended. Parcels to a rank end in any
 * order. So kernels keep for each rank how far the parcels of its last calls reach (ll_gpu_far.sent). A word of an
 * acknowledgement is set again when the last parcel with it has ended, since two may overtake each other.
 *
 * With masks a wait for a place is a wait for the rank, and ends when that is masked. No parcel is issued to a masked
 * rank. Kernels leave words about masks to the host (ll_gpu_masker): a stopped rank must find them when it wakes up. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_FAR_H

#include "exec/cuda/kernels/low_latency/parcel.h"

#if LL_FAR

#include "exec/cuda/kernels/low_latency/far_gda.h"
#include "exec/cuda/kernels/low_latency/far_ring.h"
#include "proto/sends.h"

GPU_FUNC ll_sends_space ll_sends_here(const ll_gpu_call *c)
{
    const ll_shape shape = ll_shape_here(c);
    const ll_space space = ll_space_here(c);
    return ll_sends_space_of(&shape, &space);
}

/* ---- places of the send buffer ----------------------------------------------------------------------------------- */

GPU_FUNC uint8_t *ll_parcel_header(const ll_gpu_call *c, int32_t pe, ll_kind kind, uint64_t epoch)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_space space = ll_space_here(c);
    return c->far[pe].sends + ll_sends_header_at(&sends, &space, kind, epoch);
}
GPU_FUNC uint8_t *ll_parcel_message(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return c->far[pe].sends + ll_sends_message_at(&sends, &space, &shape, epoch, message);
}
GPU_FUNC uint8_t *ll_parcel_row(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_space space = ll_space_here(c);
    return c->far[pe].sends + ll_sends_row_at(&sends, &space, number);
}
GPU_FUNC uint8_t *ll_parcel_weights(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    const ll_sends_space sends = ll_sends_here(c);
    const ll_shape shape = ll_shape_here(c);
    return c->far[pe].sends + ll_sends_weights_at(&sends, &shape, epoch, message);
}

/* ---- any way ----------------------------------------------------------------------------------------------------- */

/* The host has chosen the way to the rank, once. */
GPU_FUNC bool ll_parcel_has_ended(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    return ll_gda_view(c, pe) ? ll_gda_has_ended(c, pe, number) : ll_ring_has_ended(c, pe, number);
}
GPU_FUNC ll_gpu_turn ll_parcel_await(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    return ll_gda_view(c, pe) ? ll_gda_await(c, pe, number) : ll_ring_await(c, pe, number);
}
GPU_FUNC uint64_t ll_parcel_issue(const ll_gpu_call *c, int32_t pe, const ll_parcel *parcel)
{
    return ll_gda_view(c, pe) ? ll_gda_issue(c, pe, *parcel) : ll_ring_issue(c, pe, *parcel);
}

/* ---- waits for places -------------------------------------------------------------------------------------------- */

/* Returns how far the parcels reach of the call that was so many calls ago. */
GPU_FUNC uint64_t ll_parcel_sent(const ll_gpu_call *c, const ll_now *now, int32_t pe, uint64_t ago)
{
    const uint64_t call = (now->epoch + LL_GPU_SENT_CALLS - ago) % LL_GPU_SENT_CALLS;
    return load_relaxed_64((const uint64_t *)&c->far[pe].sent[now->kind][call]);
}
/* True if it is known that places for the data of this call are free. The call before the last had the same ones. */
GPU_FUNC bool ll_parcel_is_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return !ll_is_far(c, pe) || ll_parcel_has_ended(c, pe, ll_parcel_sent(c, now, pe, LL_SLOTS));
}
/* Waits until they are. LL_TURN_LEAVE: the wait was given up. */
GPU_FUNC ll_gpu_turn ll_parcel_await_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return ll_parcel_is_free(c, now, pe) ? LL_TURN_ON : ll_parcel_await(c, pe, ll_parcel_sent(c, now, pe, LL_SLOTS));
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* Sends a parcel of the call, unless the rank is masked. */
GPU_FUNC void ll_parcel_send(const ll_gpu_call *c, int32_t kind, uint64_t epoch, int32_t pe, const ll_parcel *parcel)
{
    if (ll_is_masked(c, pe)) return;
    const uint64_t after = ll_parcel_issue(c, pe, parcel);
    atomicMax(&c->far[pe].sent[kind][epoch % LL_GPU_SENT_CALLS], (unsigned long long)after);
}

/* Acknowledges a call of that kind, and names the region of a combine's slot. One thread of the kernel calls it for a
   rank and a kind. */
GPU_ASIDE void ll_parcel_say_read(const ll_gpu_call *c, int32_t pe, int32_t kind, uint64_t epoch, uint32_t region)
{
    unsigned long long *last = &c->far[pe].acknowledged[kind][ll_slot_of_epoch(epoch)];
    const ll_parcel word = {NULL, 0, 0, ll_read_place(c, (ll_kind)kind, c->place.rank, epoch), ll_word(epoch, region)};
    if (ll_parcel_await(c, pe, *last) == LL_TURN_ON) *last = (unsigned long long)ll_parcel_issue(c, pe, &word);
}

#else

GPU_FUNC uint8_t *ll_parcel_message(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    return NULL;
}
GPU_FUNC uint8_t *ll_parcel_row(const ll_gpu_call *c, int32_t pe, uint64_t number)
{
    return NULL;
}
GPU_FUNC uint8_t *ll_parcel_weights(const ll_gpu_call *c, int32_t pe, uint64_t epoch, int32_t message)
{
    return NULL;
}
GPU_FUNC bool ll_parcel_is_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return true;
}
GPU_FUNC ll_gpu_turn ll_parcel_await_free(const ll_gpu_call *c, const ll_now *now, int32_t pe)
{
    return LL_TURN_ON;
}
GPU_FUNC void ll_parcel_send(const ll_gpu_call *c, int32_t kind, uint64_t epoch, int32_t pe, const ll_parcel *parcel)
{
}
GPU_FUNC void ll_parcel_say_read(const ll_gpu_call *c, int32_t pe, int32_t kind, uint64_t epoch, uint32_t region)
{
}

#endif

/* ---- to any rank ------------------------------------------------------------------------------------------------- */

/* Stores the word at the rank, after the data of the parcel. At a mapped rank the data is in its place already. */
GPU_FUNC void ll_send_parcel(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t pe,
                             const ll_parcel *parcel)
{
    if (LL_FAR && ll_is_far(c, pe))
        ll_parcel_send(c, now->kind, now->epoch, pe, parcel);
    else
        store_release((uint64_t *)ll_there(s, pe, parcel->at), parcel->word);
}

#endif
