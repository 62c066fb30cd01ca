/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows: those that a reduced combine makes before it sends, and those of the tokens. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_SUMS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_SUMS_H

#include "exec/cuda/kernels/low_latency/combine_messages.h"
#include "exec/cuda/kernels/low_latency/split.h"
#include "exec/cuda/kernels/low_latency/times.h"
#include "exec/cuda/kernels/number.h"

/* Rows that are added, of which lane has one each: where it begins, and from whom it comes in words; -1: it lies there
   as it is. */
typedef struct ll_addend {
    const uint8_t *row;
    float weight;
    bool weighted;
    int32_t peer;
} ll_addend;

/* One unit of a sum: of the rows of the lanes in mask, from the lowest lane on. *ok: no wait was given up. */
GPU_FUNC uint4 ll_add_unit(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t mask,
                           const ll_addend *mine, bool words, int32_t u, bool in, bool *ok)
{
    const int32_t dtype = GPU_DTYPE(a->call.form.dtype);
    float sums[8] = {0};
    while (mask) {
        const uint8_t *from[LL_GPU_PARTS];
        float by[LL_GPU_PARTS];
        int32_t peer[LL_GPU_PARTS];
        bool here[LL_GPU_PARTS];
        uint4 value[LL_GPU_PARTS];
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
            const int32_t lane = mask ? __ffs((int)mask) - 1 : 0;
            from[i] = mask ? ll_pointer_of(mine->row, lane) : NULL;
            by[i] = __shfl_sync(GPU_ALL, mine->weight, lane);
            peer[i] = __shfl_sync(GPU_ALL, mine->peer, lane);
            here[i] = true;
            if (from[i] && in && words)
                here[i] = ll_look_at_words((const uint64_t *)from[i] + 4 * u, now->stamp, &value[i]);
            else if (from[i] && in)
                value[i] = load_row((const uint4 *)from[i] + u);
            mask &= mask - 1;
        }
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++) {
            if (!from[i] || !in) continue;
            if (!here[i])
                *ok &= ll_await_row_words(&a->call, s, now, peer[i], (const uint64_t *)from[i] + 4 * u, &value[i]);
            add_vector(dtype, sums, value[i], mine->weighted, by[i]);
        }
    }
    return narrow_vector(dtype, sums);
}

/* The team's part of a sum. stamp: of words in which it goes; 0: it goes as it is. False: a wait was given up. */
GPU_FUNC bool ll_add_rows(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                          uint32_t mask, const ll_addend *mine, bool words, uint8_t *to, uint32_t stamp)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    bool ok = true;
    for (int32_t base = team->at / 32 * 32; base < units; base += team->threads) {
        const int32_t u = base + threadIdx.x % 32;
        const uint4 sum = ll_add_unit(a, s, now, mask, mine, words, u, u < units, &ok);
        if (u < units) ll_bring_unit(to, u, stamp, sum);
    }
    return ok;
}

/* A message's rows, added where they are, to the place of this rank. What goes by a flag goes from one block. */
GPU_FUNC void ll_send_sum(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                          int32_t source, const ll_header *header, const ll_slot *slot)
{
    const ll_gpu_call *c = &a->call;
    const bool words = ll_owes_words(a, s, source);
    const ll_team group = ll_group_of(split);
    const ll_team team = {words ? split->team.at : group.at, words ? split->team.threads : group.threads};
    const ll_addend mine = {slot->row, slot->weight, true, -1};
    if (!words && split->part) return;
    ll_add_rows(a, s, now, &team, __ballot_sync(GPU_ALL, slot->row != NULL), &mine, false,
                ll_place_there(a, s, now, source, header->token, header->place), words ? now->stamp : 0);
    ll_stamp_time(c, LL_GPU_SENT);
    if (words) return;
    ll_meet_group(split);
    const uint64_t number = ll_number_of(c, now->epoch, ll_region_there(s, source), header->token, header->place);
    if (group.at == 0) store_release((uint64_t *)ll_there(s, source, ll_row_flag_place(c, number)), ll_flag_of(now, 1));
}

#endif
