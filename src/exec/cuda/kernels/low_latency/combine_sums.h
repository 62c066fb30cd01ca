/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows: those that a reduced combine makes before it sends, and those of the tokens. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_SUMS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_SUMS_H

#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/low_latency/combine_messages.h"
#include "exec/cuda/kernels/low_latency/split.h"
#include "exec/cuda/kernels/low_latency/times.h"

/* A row that is added; each lane has one. peer: the rank that sends it in words, or -1 if it is in memory as it is. */
typedef struct ll_addend {
    const uint8_t *row;
    float weight;
    bool weighted;
    int32_t peer;
} ll_addend;

/* Returns one piece of a sum of rows in words: the rows of the lanes in mask, from the lowest lane on. *ok: no wait was
   given up. */
GPU_FUNC uint4 ll_add_header(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t mask,
                             const ll_addend *mine, int32_t u, bool in, bool *ok)
{
    const int32_t dtype = GPU_DTYPE(a->call.form.dtype);
    float sums[8] = {0};
    while (mask) {
        uint4 value[LL_GPU_PARTS];
        uint32_t rest = mask, here = 0;
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++, rest &= rest - 1) {
            if (!rest) break;
            const uint64_t *from = (const uint64_t *)ll_pointer_of(mine->row, __ffs((int)rest) - 1) + 4 * u;
            if (in && ll_look_at_words(from, now->stamp, &value[i])) here |= 1u << i;
        }
#pragma unroll
        for (int32_t i = 0; i < LL_GPU_PARTS; i++, mask &= mask - 1) {
            if (!mask) break;
            const int32_t lane = __ffs((int)mask) - 1, peer = __shfl_sync(GPU_ALL, mine->peer, lane);
            const float by = __shfl_sync(GPU_ALL, mine->weight, lane);
            const uint64_t *from = (const uint64_t *)ll_pointer_of(mine->row, lane) + 4 * u;
            if (in && !(here >> i & 1)) *ok &= ll_await_row_words(&a->call, s, now, peer, from, &value[i]);
            add_vector(dtype, sums, value[i], mine->weighted, by);
        }
    }
    return narrow_vector(dtype, sums);
}

/* The numbers of pieces of a sum that a thread computes at a time, and of pieces of rows that it loads for them at
   once. Each batch takes one memory latency. More pieces need more registers than there are. Compute capability 10
   needs more registers for the same code, and so do the ways to ranks that are not mapped. */
#if LL_FAR && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define LL_SUM_UNITS 1
#define LL_SUM_LOADS 3
#elif LL_FAR || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000)
#define LL_SUM_UNITS 1
#define LL_SUM_LOADS 4
#else
#define LL_SUM_UNITS 2
#define LL_SUM_LOADS 6
#endif

/* Adds `count` pieces of a sum of rows that are in memory as they are, from u on, a team's length apart. The rows are
   those of the lanes in mask, from the lowest lane on. */
GPU_FUNC void ll_add_headers(const ll_combine_args *a, const ll_team *team, uint32_t mask, const ll_addend *mine,
                             int32_t u, int32_t count, uint8_t *to, uint32_t stamp)
{
    const int32_t dtype = GPU_DTYPE(a->call.form.dtype), units = (int32_t)(GPU_ROW_BYTES(a) / 16);
    float sums[LL_SUM_UNITS][8] = {{0}};
    while (mask) {
        uint4 value[LL_SUM_LOADS];
        uint32_t rest = mask;
#pragma unroll
        for (int32_t i = 0; i < LL_SUM_LOADS / count; i++, rest &= rest - 1) {
            if (!rest) break;
            const uint4 *from = (const uint4 *)ll_pointer_of(mine->row, __ffs((int)rest) - 1) + u;
#pragma unroll
            for (int32_t j = 0; j < count; j++)
                if (u + j * team->threads < units) value[i * count + j] = load_row(from + j * team->threads);
        }
#pragma unroll
        for (int32_t i = 0; i < LL_SUM_LOADS / count; i++, mask &= mask - 1) {
            if (!mask) break;
            const float by = __shfl_sync(GPU_ALL, mine->weight, __ffs((int)mask) - 1);
#pragma unroll
            for (int32_t j = 0; j < count; j++)
                if (u + j * team->threads < units) add_vector(dtype, sums[j], value[i * count + j], mine->weighted, by);
        }
    }
#pragma unroll
    for (int32_t j = 0; j < count; j++)
        if (u + j * team->threads < units)
            ll_bring_header(to, u + j * team->threads, stamp, narrow_vector(dtype, sums[j]));
}

/* Adds the team's part of a sum. stamp: the sum goes in words with it; 0: it goes as it is. False: a wait was given
   up. */
GPU_FUNC bool ll_add_rows(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                          uint32_t mask, const ll_addend *mine, bool words, uint8_t *to, uint32_t stamp)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16), lane = threadIdx.x % 32, first = team->at / 32 * 32;
    bool ok = true;
    if (LL_SUM_UNITS > 1 && !words && team->threads >= units) {
        if (first < units) ll_add_headers(a, team, mask, mine, first + lane, 1, to, stamp);
        return true;
    }
    for (int32_t base = first; base < units && !words; base += LL_SUM_UNITS * team->threads)
        ll_add_headers(a, team, mask, mine, base + lane, LL_SUM_UNITS, to, stamp);
    for (int32_t base = first; base < units && words; base += team->threads) {
        const uint4 sum = ll_add_header(a, s, now, mask, mine, base + lane, base + lane < units, &ok);
        if (base + lane < units) ll_bring_header(to, base + lane, stamp, sum);
    }
    return ok;
}

/* Adds a message's rows in place, and sends the sum to this rank's place. A sum that goes by a flag goes from one
   block. */
GPU_FUNC void ll_send_sum(const ll_combine_args *a, const ll_shared *s, const ll_now *now, const ll_split *split,
                          int32_t source, const ll_header *header, const ll_slot *slot)
{
    const ll_gpu_call *c = &a->call;
    const bool words = ll_owes_words(a, s, source);
    const ll_team group = ll_group_of(split);
    const ll_team team = {words ? split->team.at : group.at, words ? split->team.threads : group.threads};
    const ll_addend mine = {slot->row, slot->weight, true, -1};
    if (!words && split->part) return;
    uint8_t *place = ll_place_there(a, s, now, source, header->token, header->place);
    ll_add_rows(a, s, now, &team, __ballot_sync(GPU_ALL, slot->row != NULL), &mine, false, place,
                words ? now->stamp : 0);
    ll_stamp_time(c, LL_GPU_SENT);
    if (words) return;
    ll_meet_group(split);
    const uint64_t number = ll_number_of(c, now->epoch, ll_region_there(s, source), header->token, header->place);
    if (group.at == 0) ll_flag_row(c, s, now, source, number, place, (uint64_t)a->row_bytes);
}

#endif
