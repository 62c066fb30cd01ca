/* SPDX-License-Identifier: Apache-2.0 */
/* A message of the dispatch in a combine, and the places to which its rows go back. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_MESSAGES_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_MESSAGES_H

#include "exec/cuda/kernels/low_latency/combine_form.h"
#include "exec/cuda/kernels/low_latency/far.h"
#include "exec/cuda/kernels/low_latency/words.h"

/* Returns the source of a message. Messages of all ranks are sent in turn, from the next rank's first on, this rank's
   own last. Number i is message i / N of its rank. There are as many numbers as if each rank had as many messages as
   the rank with the most. */
GPU_FUNC int32_t ll_source_of(const ll_gpu_call *c, int32_t message)
{
    return (c->place.rank + 1 + message % LL_RANKS(c)) % LL_RANKS(c);
}
GPU_FUNC int32_t ll_all_messages(const ll_gpu_call *c, const ll_shared *s)
{
    int32_t most = 0;
    for (int32_t r = 0; r < LL_RANKS(c); r++)
        most = max(most, ll_owed(s, r));
    return most * LL_RANKS(c);
}

/* This lane's slot of a message, as every warp of a block sees it. */
typedef struct ll_slot {
    const uint8_t *row; /* the expert's; NULL: the slot has none here */
    float weight;
} ll_slot;

GPU_FUNC const ll_header *ll_header_of(const ll_combine_args *a, int32_t source, int32_t number)
{
    const int64_t place = (int64_t)source * LL_TOKENS(&a->call) + number;
    return (const ll_header *)(a->routing.headers + place * (int64_t)a->routing.header_bytes);
}

/* Returns the row of a slot; NULL: the slot has none. Headers that a dispatch keeps name existing rows. But a broken
   peer may have told blocks different numbers of messages, and then some headers were not kept. */
GPU_FUNC const uint8_t *ll_row_there(const ll_combine_args *a, const ll_header *header, int32_t k)
{
    const int32_t local = ll_header_experts((ll_header *)header)[k];
    const int32_t row = ll_header_rows((ll_header *)header, LL_BUFFER_TOPK(&a->call))[k];
    if ((uint32_t)local >= (uint32_t)LL_LOCALS(&a->call) || (uint32_t)row >= ll_rows_of_expert(&a->call)) return NULL;
    return a->x + local * a->x_expert_pitch_bytes + row * a->x_row_pitch_bytes;
}

/* Returns the weights of a message. They come with the header, or were sent ahead of the rows, or are this rank's
   own. */
GPU_FUNC const float *ll_weights_of(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                                    int32_t number, const ll_header *header)
{
    const ll_gpu_call *c = &a->call;
    if (!c->form.weights) return ll_header_weights((ll_header *)header, LL_BUFFER_TOPK(c));
    if (source == c->place.rank) return a->route.weights + header->token * a->route.weights_pitch;
    return (const float *)ll_own(c, ll_weights_place(c, source, now->epoch, number));
}

GPU_FUNC ll_slot ll_slot_of(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                            int32_t number, const ll_header *header)
{
    const int32_t lane = threadIdx.x % 32;
    ll_slot slot = {NULL, 0.0f};
    if (lane >= a->routing.topk) return slot;
    slot.row = ll_row_there(a, header, lane);
    if (slot.row && a->call.form.sum == LL_GPU_REDUCED)
        slot.weight = ll_weights_of(a, s, now, source, number, header)[lane];
    return slot;
}

/* Returns false if the header names no place, which only a broken peer causes. Words have places for the tokens of a
   small batch. */
GPU_FUNC bool ll_header_fits(const ll_combine_args *a, const ll_shared *s, int32_t source, const ll_header *header)
{
    const ll_gpu_call *c = &a->call;
    const int32_t tokens = ll_owes_words(a, s, source) ? LL_SMALL(c) : LL_TOKENS(c);
    return (uint32_t)header->token < (uint32_t)tokens && (uint32_t)header->place < (uint32_t)ll_space_here(c).places;
}

/* Returns the region of the slot to which the rank's rows go. */
GPU_FUNC int32_t ll_region_there(const ll_shared *s, int32_t source)
{
    return LL_MASKS ? s->credits[source] - 1 : 0;
}

GPU_FUNC const uint8_t *ll_pointer_of(const void *pointer, int32_t lane)
{
    return (const uint8_t *)__shfl_sync(GPU_ALL, (unsigned long long)pointer, lane);
}

/* Returns the place of a row, or the words of its place. For a rank that is not mapped the place is in the send
   buffer. */
GPU_FUNC uint8_t *ll_place_there(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t source,
                                 int32_t token, int32_t place)
{
    const ll_gpu_call *c = &a->call;
    if (ll_owes_words(a, s, source)) return ll_there(s, source, ll_word_row_place(c, now->epoch, token, place));
    if (ll_is_far(c, source)) return ll_parcel_row(c, source, ll_number_of(c, now->epoch, 0, token, place));
    const uint64_t number = ll_number_of(c, now->epoch, ll_region_there(s, source), token, place);
    return ll_there(s, source, ll_row_place(c, number));
}

#if LL_FAR
/* Out of line, since the registers of its callers are all in use. */
GPU_ASIDE void ll_parcel_flag_row(const ll_gpu_call *c, uint64_t epoch, int32_t pe, uint64_t number,
                                  const uint8_t *place, uint64_t bytes)
{
    const ll_parcel parcel = {place, ll_row_place(c, number), bytes, ll_row_flag_place(c, number), ll_word(epoch, 1)};
    ll_parcel_send(c, LL_COMBINE, epoch, pe, &parcel);
}
#endif

/* Stores the flag of a row, whose `bytes` lie at `place`. */
GPU_FUNC void ll_flag_row(const ll_gpu_call *c, const ll_shared *s, const ll_now *now, int32_t source, uint64_t number,
                          const uint8_t *place, uint64_t bytes)
{
#if LL_FAR
    if (ll_is_far(c, source)) {
        ll_parcel_flag_row(c, now->epoch, source, number, place, bytes);
        return;
    }
#endif
    store_release((uint64_t *)ll_there(s, source, ll_row_flag_place(c, number)), ll_flag_of(now, 1));
}

/* Stores piece u of a row (16 bytes) to the place. stamp: the piece goes in words; 0: it goes as it is. */
GPU_FUNC void ll_bring_header(uint8_t *place, int32_t u, uint32_t stamp, uint4 value)
{
    if (stamp)
        ll_store_in_words((uint64_t *)place + 4 * u, stamp, value);
    else
        store_row((uint4 *)place + u, value);
}

#endif
