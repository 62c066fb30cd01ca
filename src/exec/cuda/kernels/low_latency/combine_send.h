/* SPDX-License-Identifier: Apache-2.0 */
/* The send of a combine. It answers each message of the dispatch by the rows of its top-k slots, or by their sum. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_SEND_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_SEND_H

#include "exec/cuda/kernels/low_latency/combine_sums.h"
#include "exec/cuda/kernels/low_latency/combine_weights.h"
#include "exec/cuda/kernels/low_latency/log_send.h"

/* ---- message headers --------------------------------------------------------------------------------------------- */

/* Counts the rows that this rank will return to rank pe: their number is known before they are sent. Also counts their
   bytes, unless they are coded. All threads of a block call it, and the last warp does the work. */
GPU_FUNC void ll_count_returned(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t pe)
{
    const ll_gpu_call *c = &a->call;
    int32_t rows = c->form.sum == LL_GPU_REDUCED && threadIdx.x % 32 == 0 ? ll_owed(s, pe) : 0;
    if (threadIdx.x < LL_GPU_THREADS - 32) return;
    for (int32_t l = threadIdx.x % 32; l < LL_LOCALS(c) && c->form.sum != LL_GPU_REDUCED; l += 32)
        rows += ll_range_count(a->routing.range[(int64_t)l * LL_RANKS(c) + pe]);
    rows = __reduce_add_sync(GPU_ALL, rows);
    if (threadIdx.x % 32 || rows == 0) return;
    ll_count_sent(c, pe, 0, rows);
    if (ll_is_coded(a))
        ll_log_count(c, now, pe, rows, 0);
    else
        ll_count_bytes(c, pe, (uint64_t)rows * (uint64_t)a->row_bytes);
}

/* Opens the call at the ranks that this block serves: posts this rank's headers there. False: a wait was given up. */
GPU_FUNC bool ll_open_owners(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route)
{
    const ll_gpu_call *c = &a->call;
    if (now->after && !ll_await_between(c, *now)) return false;
    /* No acknowledgement has told the others the region of this slot, so this header tells it. */
    if (LL_MASKS && now->after && blockIdx.x == 0 && !ll_line_of(c, LL_COMBINE)->open[now->slot])
        ll_settle(c, s, now->slot);
    const int32_t region = LL_MASKS ? c->masks->region[now->slot] : 0;
    for (int32_t i = ll_first_opened(now); i < LL_RANKS(c); i += ll_opened_stride(now)) {
        const int32_t pe = (c->place.rank + 1 + i) % LL_RANKS(c);
        if (ll_is_coded(a) && threadIdx.x == 0) c->tally[pe].coded[1 - now->slot] = 0;
        if (!ll_is_told(c, pe)) continue;
        ll_post_header(c, s, now, pe, route, region, NULL);
        ll_tell_read(c, s, pe);
        if (!s->rejection->status) ll_count_returned(a, s, now, pe);
        __syncthreads();
    }
    return true;
}

/* ---- rows as they are -------------------------------------------------------------------------------------------- */

/* Sends the team's pieces of the rows of up to LL_GPU_PARTS top-k slots. These are the lowest ones in *mask, whose bits
   it clears. Lane k has the row and the place of slot k. */
GPU_FUNC void ll_bring_rows(const ll_combine_args *a, const ll_team *team, uint32_t *mask, const uint8_t *row,
                            const uint8_t *place, uint32_t stamp)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    const uint4 *from[LL_GPU_PARTS];
    uint8_t *to[LL_GPU_PARTS];
#pragma unroll
    for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
        const int32_t lane = *mask ? __ffs((int)*mask) - 1 : 0;
        from[i] = *mask ? (const uint4 *)ll_pointer_of(row, lane) : NULL;
        to[i] = *mask ? (uint8_t *)ll_pointer_of(place, lane) : NULL;
        *mask &= *mask - 1;
    }
    for (int32_t u = team->at; u < units; u += team->threads) {
        uint4 value[LL_GPU_PARTS];
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++)
            if (from[i]) value[i] = load_row(from[i] + u);
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++)
            if (from[i]) ll_bring_header(to[i], u, stamp, value[i]);
    }
}

/* Sends the rows of a message's top-k slots to their places, then stores their flags, unless the rows go in words. If
   several blocks share the message, each block sends some of the slots. */
GPU_FUNC void ll_send_slots(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                            int32_t source, const ll_header *header, const ll_slot *slot)
{
    const ll_gpu_call *c = &a->call;
    const int32_t lane = threadIdx.x % 32, k = lane < a->routing.topk ? lane : 0;
    const ll_team group = ll_group_of(split);
    const bool words = ll_owes_words(a, s, source);
    const uint8_t *place = ll_place_there(a, s, now, source, header->token, k);
    const bool mine = slot->row && lane % split->parts == split->part;
    uint32_t mask = __ballot_sync(GPU_ALL, mine);
    while (mask)
        ll_bring_rows(a, &group, &mask, slot->row, place, words ? now->stamp : 0);
    ll_stamp_time(c, LL_GPU_SENT);
    if (words) return;
    ll_meet_group(split);
    const uint64_t number = ll_number_of(c, now->epoch, ll_region_there(s, source), header->token, k);
    if (group.at < 32 && mine) ll_flag_row(c, s, now, source, number, place, (uint64_t)a->row_bytes);
}

/* ---- send -------------------------------------------------------------------------------------------------------- */

/* Returns whether rows may go to all ranks without a wait: the slots were free when the call began. This is nearly
   always so. Returns false with masks, and with weights that go ahead, since some ranks may then get no rows. */
GPU_FUNC bool ll_all_are_open(const ll_combine_args *a, const ll_shared *s)
{
    bool open = !LL_MASKS && !LL_FAR && !a->call.form.weights;
    for (int32_t r = 0; r < LL_RANKS(&a->call); r++)
        open &= s->open[r] || !ll_owed(s, r);
    return open;
}

/* Waits until it is known for each rank whether rows may go to it, and stores that in s->credits. False: a wait was
   given up. */
GPU_FUNC bool ll_await_owners(const ll_combine_args *a, const ll_shared *s, const ll_now *now)
{
    const ll_gpu_call *c = &a->call;
    bool ok = true;
    if (ll_all_are_open(a, s)) return true;
    for (int32_t r = threadIdx.x; r < LL_RANKS(c); r += blockDim.x) {
        ll_credit credit = LL_CREDIT_REJECTS;
        int32_t region = 0;
        if (ll_owed(s, r) > 0 && !(c->form.weights && !ll_sends_data(s, r)))
            credit = ll_await_slot(c, s, now, r, &region);
        s->credits[r] = credit == LL_CREDIT_GIVEN ? 1 + region : 0;
        ok &= credit != LL_CREDIT_AWAITED;
    }
    return !__syncthreads_or(!ok);
}

/* Answers one message. A message with a broken header gets no answer, nor does one of a rank that is lost. False: a
   wait was given up. */
GPU_FUNC bool ll_return_message(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                                int32_t source, int32_t number)
{
    const ll_gpu_call *c = &a->call;
    const ll_header *header = ll_header_of(a, source, number);
    if (!ll_header_fits(a, s, source, header)) return true;
    if (c->form.weights && source != c->place.rank) {
        uint64_t seen;
        const uint64_t flag = ll_weight_flag_place(c, source, now->epoch, number);
        ll_gpu_turn turn = LL_TURN_ON;
        if (!LL_FAR || threadIdx.x < 32)
            turn = ll_await(c, s, (const uint64_t *)ll_own(c, flag), now->stamp, GPU_WAIT_WEIGHTS, source, &seen);
        if (__syncthreads_or(turn == LL_TURN_LEAVE)) return false;
        if (LL_MASKS && __syncthreads_or(turn == LL_TURN_LOST)) return true;
    }
    const ll_slot slot = ll_slot_of(a, s, now, source, number, header);
    if (c->form.sum == LL_GPU_REDUCED)
        ll_send_sum(a, s, now, split, source, header, &slot);
    else
        ll_send_slots(a, s, now, split, source, header, &slot);
    return true;
}

/* Answers the messages of all ranks in turn, from the next rank on; this rank's own come last (ll_source_of). Sets
   *sending to the number of blocks that have a message; these are the first blocks. False: a wait was given up. */
GPU_FUNC bool ll_return_messages(const ll_combine_args *a, const ll_shared *s, const ll_now *now, int32_t *sending)
{
    const ll_gpu_call *c = &a->call;
    if (ll_is_coded(a)) {
        ll_log_send(a, s, now, sending);
        return true;
    }
    const bool exact = c->form.sum != LL_GPU_REDUCED, one = LL_MASKS || c->form.weights;
    const int32_t messages = ll_all_messages(c, s);
    const ll_split split = ll_split_of(messages, 0, LL_MASKS ? 1 : exact ? 8 : 2, one ? 1 : LL_GPU_TEAMS);
    *sending = messages * split.parts;
    for (int32_t i = split.first; i < messages; i += split.stride) {
        const int32_t number = i / LL_RANKS(c), source = ll_source_of(c, i);
        if (number >= ll_owed(s, source) || !s->credits[source]) continue;
        if (!ll_return_message(a, s, now, &split, source, number)) return false;
    }
    return true;
}

/* Sends a combine. Sets *mismatched, and sends no rows, if weights that were sent ahead belong to a call with other
   parameters. False: there is nothing to receive, because a wait was given up or this rank rejects the call. */
GPU_FUNC bool ll_combine_send(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t route,
                              bool *mismatched, int32_t *sending)
{
    if (!ll_open_owners(a, s, now, route)) return false;
    if (s->rejection->status) return false;
    if (a->call.form.weights) {
        if (!ll_send_all_weights(a, s, now)) return false;
        const ll_outcome outcome = ll_take_headers(&a->call, s, now, route, NULL);
        if (outcome.left) return false;
        *mismatched = outcome.mismatched;
        if (*mismatched) return true;
    }
    return ll_await_owners(a, s, now) && ll_return_messages(a, s, now, sending);
}

#endif
