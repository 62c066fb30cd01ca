/* SPDX-License-Identifier: Apache-2.0 */
/* Send buffers of low-latency mode on GPUs: memory of a rank for another rank that its kernels do not map. Kernels
 * write there what would lie at the other rank, and a proxy puts it to its place (proto/low_latency.h).
 *
 * This header compiles as C17, under nvcc and under NVRTC, as proto/low_latency.h does. A rank has one such buffer for
 * each rank that it does not map. These are its parts:
 *
 *     headers   [kind][4]     unit_bytes      message headers, by epoch modulo 4
 *     messages  [2][B]        message_bytes   dispatch: messages to the rank, by the slot of the epoch
 *     rows      [2][B][P]     place_bytes     combine: rows for the places of the rank's tokens
 *     weights   [2][B][K]     4               weights of a reduced combine whose dispatch had none
 *
 * Flags and acknowledgements go with the commands of the proxy's ring and take no space here. */
#ifndef EXPAR_PROTO_SENDS_H
#define EXPAR_PROTO_SENDS_H

#include "proto/low_latency.h"

typedef struct ll_sends_space {
    uint64_t headers[LL_KINDS], messages, rows, weights, total_bytes;
} ll_sends_space;

EP_FUNC ll_sends_space ll_sends_space_of(const ll_shape *shape, const ll_space *space)
{
    const uint64_t tokens = (uint64_t)shape->tokens, ahead = shape->reduced ? tokens : 0;
    ll_sends_space sends;
    sends.headers[LL_DISPATCH] = 0;
    sends.headers[LL_COMBINE] = LL_HEADER_COPIES * space->unit_bytes[LL_DISPATCH];
    sends.messages = sends.headers[LL_COMBINE] + LL_HEADER_COPIES * space->unit_bytes[LL_COMBINE];
    sends.rows = sends.messages + LL_SLOTS * tokens * space->message_bytes;
    sends.weights = sends.rows + LL_SLOTS * tokens * (uint64_t)space->places * space->place_bytes;
    sends.total_bytes = ep_round(sends.weights + LL_SLOTS * ahead * (uint64_t)shape->topk * sizeof(float), 4096);
    return sends;
}

/* Returns the shape of a buffer in which GPUs do not map all ranks. Its layout is that of mapped ranks. Data in words
   is only for buffers whose ranks are all mapped. */
EP_FUNC ll_shape ll_sends_shape(const ll_shape *given)
{
    ll_shape shape = *given;
    shape.unmapped = shape.word_tokens = 0;
    return shape;
}
/* Returns the bytes of such a buffer, with send buffers for that many ranks. */
EP_FUNC uint64_t ll_sends_all_bytes(const ll_shape *given, int32_t ranks)
{
    const ll_shape shape = ll_sends_shape(given);
    const ll_space space = ll_space_of(&shape);
    return ep_round(space.total_bytes, 4096) + (uint64_t)ranks * ll_sends_space_of(&shape, &space).total_bytes;
}

EP_FUNC uint64_t ll_sends_header_at(const ll_sends_space *sends, const ll_space *space, ll_kind kind, uint64_t epoch)
{
    return sends->headers[kind] + epoch % LL_HEADER_COPIES * space->unit_bytes[kind];
}
EP_FUNC uint64_t ll_sends_message_at(const ll_sends_space *sends, const ll_space *space, const ll_shape *shape,
                                     uint64_t epoch, int32_t message)
{
    const uint64_t first = (epoch & 1) * (uint64_t)shape->tokens;
    return sends->messages + (first + (uint64_t)message) * space->message_bytes;
}
/* Takes the number of the place (ll_place_number) in region 0, whatever the region is there. */
EP_FUNC uint64_t ll_sends_row_at(const ll_sends_space *sends, const ll_space *space, uint64_t number)
{
    return sends->rows + number * space->place_bytes;
}
EP_FUNC uint64_t ll_sends_weights_at(const ll_sends_space *sends, const ll_shape *shape, uint64_t epoch,
                                     int32_t message)
{
    const uint64_t first = (epoch & 1) * (uint64_t)shape->tokens;
    return sends->weights + (first + (uint64_t)message) * (uint64_t)shape->topk * sizeof(float);
}

#endif
