/* SPDX-License-Identifier: Apache-2.0 */
/* The receive of a combine in LogFMT. Each warp of a token's team adds up its part of the groups, some at a time. Each
 * lane has the term of one row in one group, so the number of groups follows from the number of rows. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_RECEIVE_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_RECEIVE_H

#include "exec/cuda/kernels/low_latency/log_codes.h"

/* The number of rows whose elements are loaded while earlier ones are added, and the number of heads loaded at a
   time. */
#define LL_LOG_ROWS_LOADED  (LL_ALL_FORMATS ? 2 : 8)
#define LL_LOG_HEADS_LOADED (LL_ALL_FORMATS ? 4 : 16)

/* A token's rows, and how a warp's lanes are divided among them: lane i + j * width has row i of the j-th group. */
typedef struct ll_log_sum {
    int32_t count;
    int32_t width;        /* rows, rounded up to a power of two */
    int32_t row, ahead;   /* i and j */
    uint32_t row_lanes;   /* lanes with the same i */
    const uint8_t *place; /* place of row i */
    float weight;
    bool is; /* there is a row i */
} ll_log_sum;

/* This lane's row of a group. */
typedef struct ll_log_term {
    const uint8_t *bytes;
    logfmt_range range;
    float units_per_step; /* 0: the group came as BF16 */
} ll_log_term;

/* Divides the warp's lanes among the rows of the lanes in mask, from the lowest lane on. */
GPU_FUNC ll_log_sum ll_log_sum_of(uint32_t mask, const uint8_t *place, float weight)
{
    const int32_t lane = threadIdx.x % 32, from = ll_log_lane_of(mask);
    ll_log_sum sum;
    sum.count = __popc(mask);
    sum.width = 1;
    while (sum.width < sum.count)
        sum.width *= 2;
    sum.row = lane & (sum.width - 1);
    sum.ahead = lane / sum.width;
    sum.row_lanes = sum.width == 32 ? 1u << lane : 0xffffffffu / ((1u << sum.width) - 1) << sum.row;
    sum.is = sum.row < sum.count;
    const int32_t own = __shfl_sync(GPU_ALL, from, sum.row);
    sum.place = ll_pointer_of(place, own);
    sum.weight = __shfl_sync(GPU_ALL, weight, own);
    return sum;
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* Returns the head of row i's group; 0 if there is none. */
GPU_FUNC uint64_t ll_log_head(const ll_log_sum *sum, int32_t group, int32_t end)
{
    return sum->is && group < end ? load_relaxed_64((const uint64_t *)sum->place + group) : 0;
}
/* Returns the number of groups of row i before this one that came as BF16. */
GPU_FUNC int32_t ll_log_bf16_heads(const ll_log_sum *sum, int32_t group)
{
    const uint32_t *heads = (const uint32_t *)sum->place;
    const int32_t step = 32 / sum->width;
    int32_t count = 0;
    for (int32_t first = 0; first < group; first += LL_LOG_HEADS_LOADED * step) {
        uint32_t most[LL_LOG_HEADS_LOADED];
#pragma unroll
        for (int32_t i = 0; i < LL_LOG_HEADS_LOADED; i++) {
            const int32_t g = first + i * step + sum->ahead;
            most[i] = sum->is && g < group ? load_relaxed(heads + 2 * g + 1) : 1;
        }
#pragma unroll
        for (int32_t i = 0; i < LL_LOG_HEADS_LOADED; i++)
            count += most[i] == 0;
    }
    __syncwarp();
    for (int32_t other = sum->width; other < 32; other *= 2)
        count += __shfl_xor_sync(GPU_ALL, count, other);
    return count;
}

/* Returns the term of group first + j, with its head, if that number is below end. *bf16 counts the groups of row i
   before `first` that came as BF16. It is increased by those of all lanes. */
GPU_FUNC ll_log_term ll_log_term_of(const ll_gpu_call *c, const ll_log_sum *sum, int32_t first, int32_t end,
                                    uint64_t head, int32_t *bf16)
{
    const int32_t group = first + sum->ahead, lane = threadIdx.x % 32;
    ll_log_term term;
    term.range = logfmt_range_of_head(__uint_as_float((uint32_t)head), __uint_as_float((uint32_t)(head >> 32)));
    const bool coded = term.range.span > 0.0f;
    const uint32_t others = __ballot_sync(GPU_ALL, sum->is && group < end && !coded) & sum->row_lanes;
    const int32_t before = *bf16 + __popc(others & ((1u << lane) - 1));
    term.units_per_step = coded ? logfmt_units_per_step(&term.range) : 0.0f;
    term.bytes = sum->place + ll_log_begin(c, group, before);
    *bf16 += __popc(others);
    return term;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Loads this lane's four elements of a group: low bytes of codes and bits above them, or two words of BF16. */
GPU_FUNC void ll_log_fetch(const uint8_t *bytes, bool coded, uint32_t words[2])
{
    const int32_t lane = threadIdx.x % 32;
    const uint32_t *from = (const uint32_t *)bytes;
    words[0] = load_relaxed(from + (coded ? lane : 2 * lane));
    words[1] = load_relaxed(from + (coded ? LOGFMT_LOW_BYTES / 4 + lane / 4 : 2 * lane + 1));
}

/* Rounds as rows of that type do. The type may be known at compile time. */
GPU_FUNC void ll_log_round(int32_t type, float values[LL_LOG_LANE])
{
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE && type != CODEC_F32; i += 2) {
        const uint32_t pair = narrow_pair(type, values[i], values[i + 1]);
        values[i] = type == CODEC_BF16 ? __uint_as_float(pair << 16) : widen_f16(pair & 0xffffu);
        values[i + 1] = type == CODEC_BF16 ? __uint_as_float(pair & 0xffff0000u) : widen_f16(pair >> 16);
    }
}

/* sums += weight · row, for the group's row in that lane. */
GPU_FUNC void ll_log_add(int32_t type, const ll_log_sum *sum, const ll_log_term *term, int32_t lane,
                         const uint32_t words[2], float sums[LL_LOG_LANE])
{
    const logfmt_range range = ll_log_range_of(&term->range, lane);
    const float units = __shfl_sync(GPU_ALL, term->units_per_step, lane), by = __shfl_sync(GPU_ALL, sum->weight, lane);
    float values[LL_LOG_LANE];
    if (units > 0.0f) {
        ll_log_unpack(&range, units, words[0], words[1] >> 8 * (threadIdx.x % 4) & 0xffu, values);
    } else {
#pragma unroll
        for (int32_t i = 0; i < LL_LOG_LANE; i++)
            values[i] = __uint_as_float(words[i / 2] >> 16 * (i % 2) << 16);
    }
    ll_log_round(type, values);
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++)
        sums[i] = __fadd_rn(sums[i], __fmul_rn(by, values[i]));
}

GPU_FUNC void ll_log_store_sums(int32_t type, const float sums[LL_LOG_LANE], uint8_t *y, int32_t group)
{
    const int64_t first = (int64_t)group * LOGFMT_GROUP + LL_LOG_LANE * (threadIdx.x % 32);
    if (type == GPU_F32) {
        uint32_t *to = (uint32_t *)y + first;
#pragma unroll
        for (int32_t i = 0; i < LL_LOG_LANE; i++)
            to[i] = narrow_f32(sums[i]);
        return;
    }
    uint32_t *to = (uint32_t *)(y + 2 * first);
    to[0] = narrow_pair(type, sums[0], sums[1]);
    to[1] = narrow_pair(type, sums[2], sums[3]);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Some rows of one of the warp's terms, from a row on, and the words of their elements. */
typedef struct ll_log_batch {
    int32_t j, row;
    uint32_t words[LL_LOG_ROWS_LOADED][2];
} ll_log_batch;

/* Loads a batch of rows. The token must have rows. */
GPU_FUNC ll_log_batch ll_log_batch_of(const ll_log_sum *sum, const ll_log_term *term, int32_t j, int32_t row)
{
    ll_log_batch batch;
    batch.j = j;
    batch.row = row;
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_ROWS_LOADED; i++) {
        const int32_t lane = j * sum->width + min(row + i, sum->count - 1);
        const uint8_t *bytes = ll_pointer_of(term->bytes, lane);
        ll_log_fetch(bytes, __shfl_sync(GPU_ALL, term->units_per_step, lane) > 0.0f, batch.words[i]);
    }
    return batch;
}
/* Loads the next batch, if there is one. */
GPU_FUNC ll_log_batch ll_log_batch_after(const ll_log_sum *sum, const ll_log_term *term, const ll_log_batch *batch)
{
    const int32_t row = batch->row + LL_LOG_ROWS_LOADED;
    return row < sum->count ? ll_log_batch_of(sum, term, batch->j, row) : ll_log_batch_of(sum, term, batch->j + 1, 0);
}

/* Adds the terms of the warp's groups first to first + count - 1, and writes them to y. */
GPU_FUNC void ll_log_add_terms(int32_t type, const ll_log_sum *sum, const ll_log_term *term, int32_t first,
                               int32_t count, uint8_t *y)
{
    float sums[LL_LOG_LANE] = {0};
    for (int32_t j = 0; j < count && sum->count == 0; j++)
        ll_log_store_sums(type, sums, y, first + j);
    if (sum->count == 0) return;
    ll_log_batch batch = ll_log_batch_of(sum, term, 0, 0);
    for (;;) {
        const bool whole = batch.row + LL_LOG_ROWS_LOADED >= sum->count, last = whole && batch.j + 1 == count;
        ll_log_batch next = batch;
        if (!last) next = ll_log_batch_after(sum, term, &batch);
#pragma unroll
        for (int32_t i = 0; i < LL_LOG_ROWS_LOADED; i++)
            if (batch.row + i < sum->count)
                ll_log_add(type, sum, term, batch.j * sum->width + batch.row + i, batch.words[i], sums);
        if (whole) {
            ll_log_store_sums(type, sums, y, first + batch.j);
#pragma unroll
            for (int32_t i = 0; i < LL_LOG_LANE; i++)
                sums[i] = 0.0f;
        }
        if (last) return;
        batch = next;
    }
}

/* Adds the warp's groups from begin on, below end. */
GPU_FUNC void ll_log_add_groups(const ll_gpu_call *c, int32_t type, const ll_log_sum *sum, int32_t begin, int32_t end,
                                uint8_t *y)
{
    const int32_t step = 32 / sum->width;
    uint64_t head = ll_log_head(sum, begin + sum->ahead, end);
    int32_t bf16 = ll_log_bf16_heads(sum, begin);
    for (int32_t first = begin; first < end; first += step) {
        const ll_log_term term = ll_log_term_of(c, sum, first, end, head, &bf16);
        head = ll_log_head(sum, first + step + sum->ahead, end);
        __syncwarp();
        ll_log_add_terms(type, sum, &term, first, min(step, end - first), y);
    }
}

/* Adds the team's part of the sum of the rows of the lanes in mask, from the lowest lane on. */
GPU_FUNC void ll_log_add_rows(const ll_gpu_call *c, const ll_team *team, uint32_t mask, const uint8_t *place,
                              float weight, uint8_t *y)
{
    const ll_log_sum sum = ll_log_sum_of(mask, place, weight);
    const int32_t groups = ll_log_groups(c), warps = team->threads / 32, each = (groups + warps - 1) / warps;
    const int32_t begin = min(team->at / 32 * each, groups), end = min(begin + each, groups);
    if (!LL_ALL_FORMATS && c->form.dtype == CODEC_BF16)
        ll_log_add_groups(c, CODEC_BF16, &sum, begin, end, y);
    else
        ll_log_add_groups(c, c->form.dtype, &sum, begin, end, y);
}

#endif
