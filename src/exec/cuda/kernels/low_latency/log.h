/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of LogFMT on their way back (exec/codec/logfmt.h): heads, two FP32 a group, and behind them the groups without
 * gaps. A warp has a group at a time, four elements a lane. Where a group begins follows from how many before it go as
 * BF16, which have a head of zeros: the sender keeps a bit for each in shared memory, the receiver looks at the heads.
 */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_H

#include "exec/codec/codec.h"
#include "exec/cuda/kernels/low_latency/split.h"
#include "exec/cuda/kernels/number.h"

#define LL_LOG_LANE 4 /* elements */

GPU_FUNC int32_t ll_log_groups(const ll_gpu_call *c)
{
    return LL_HIDDEN(c) / LOGFMT_GROUP;
}
GPU_FUNC int64_t ll_log_begin(int32_t group, int32_t bf16_before)
{
    return (int64_t)group * LOGFMT_CODED_BYTES + (int64_t)bf16_before * (LOGFMT_BF16_BYTES - LOGFMT_CODED_BYTES);
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

GPU_FUNC void ll_log_load(int32_t dtype, const uint8_t *row, int32_t group, float values[LL_LOG_LANE])
{
    const int64_t first = (int64_t)group * LOGFMT_GROUP + LL_LOG_LANE * (threadIdx.x % 32);
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++)
        values[i] = codec_load(dtype, row, first + i);
}

/* Of a warp's values. */
GPU_FUNC logfmt_range ll_log_range(const float values[LL_LOG_LANE])
{
    uint32_t least_below = 0xffffffffu, most = 0;
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++) {
        const uint32_t magnitude = number_magnitude(values[i]);
        least_below = min(least_below, magnitude - 1);
        most = max(most, magnitude);
    }
#pragma unroll
    for (int32_t other = 16; other > 0; other /= 2) {
        least_below = min(least_below, __shfl_xor_sync(GPU_ALL, least_below, other));
        most = max(most, __shfl_xor_sync(GPU_ALL, most, other));
    }
    return logfmt_range_of(least_below, most);
}

/* Groups before this one that go as BF16. */
GPU_FUNC int32_t ll_log_bits_before(const uint32_t *bits, int32_t group)
{
    int32_t count = 0;
    for (int32_t w = 0; w < group / 32; w++)
        count += __popc(bits[w]);
    return group % 32 ? count + __popc(bits[group / 32] & ((1u << group % 32) - 1)) : count;
}

/* By one warp. */
GPU_FUNC void ll_log_store_coded(const logfmt_range *range, const float values[LL_LOG_LANE], uint8_t *bytes)
{
    const int32_t lane = threadIdx.x % 32;
    const float steps = logfmt_steps_per_unit(range);
    uint32_t codes[LL_LOG_LANE], low = 0, above = 0;
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++) {
        codes[i] = logfmt_code_of(range, steps, values[i]);
        low |= (codes[i] & 0xffu) << 8 * i;
    }
    const uint32_t own = logfmt_bits_above(codes[0], codes[1], codes[2], codes[3]);
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        above |= __shfl_sync(GPU_ALL, own, lane / 4 * 4 + i) << 8 * i;
    ((uint32_t *)bytes)[lane] = low;
    if (lane % 4 == 0) ((uint32_t *)(bytes + LOGFMT_LOW_BYTES))[lane / 4] = above;
}
GPU_FUNC void ll_log_store_bf16(const float values[LL_LOG_LANE], uint8_t *bytes)
{
    uint32_t *to = (uint32_t *)bytes + 2 * (threadIdx.x % 32);
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        uint16_t pair[2];
        codec_store(CODEC_BF16, pair, 0, values[2 * i]);
        codec_store(CODEC_BF16, pair, 1, values[2 * i + 1]);
        to[i] = pair[0] | (uint32_t)pair[1] << 16;
    }
}

/* A row to its place. By all threads of a block, which meet behind it; bits: one for each group, in shared memory. */
GPU_FUNC void ll_log_send_row(const ll_gpu_call *c, int32_t to, uint32_t *bits, int32_t dtype, const uint8_t *row,
                              uint8_t *place)
{
    const int32_t groups = ll_log_groups(c), warp = threadIdx.x / 32;
    float *heads = (float *)place;
    float values[LL_LOG_LANE];
    for (int32_t w = threadIdx.x; w < (groups + 31) / 32; w += blockDim.x)
        bits[w] = 0;
    __syncthreads();
    for (int32_t g = warp; g < groups; g += LL_BLOCK_WARPS) {
        ll_log_load(dtype, row, g, values);
        const logfmt_range range = ll_log_range(values);
        if (threadIdx.x % 32) continue;
        heads[2 * g] = range.least;
        heads[2 * g + 1] = range.most;
        if (logfmt_group_bytes(&range) == LOGFMT_BF16_BYTES) atomicOr(&bits[g / 32], 1u << g % 32);
    }
    __syncthreads();
    for (int32_t g = warp; g < groups; g += LL_BLOCK_WARPS) {
        uint8_t *to = place + 8 * groups + ll_log_begin(g, ll_log_bits_before(bits, g));
        ll_log_load(dtype, row, g, values);
        const logfmt_range range = ll_log_range(values);
        if (logfmt_group_bytes(&range) == LOGFMT_BF16_BYTES)
            ll_log_store_bf16(values, to);
        else
            ll_log_store_coded(&range, values, to);
    }
    if (threadIdx.x == 0) {
        const int64_t bytes = 8 * groups + ll_log_begin(groups, ll_log_bits_before(bits, groups));
        atomicAdd(&c->tally[to].bytes, (unsigned long long)bytes);
    }
    __syncthreads();
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

/* Of the row in the place. By a warp. */
GPU_FUNC int32_t ll_log_heads_before(const uint8_t *place, int32_t group)
{
    int32_t count = 0;
    for (int32_t base = 0; base < group; base += 32) {
        const int32_t g = base + threadIdx.x % 32;
        const bool bf16 = g < group && load_relaxed((const uint32_t *)place + 2 * g + 1) == 0;
        count += __popc(__ballot_sync(GPU_ALL, bf16));
    }
    return count;
}

/* This lane's elements of the group, as a row of that dtype has them. */
GPU_FUNC void ll_log_decode(const ll_gpu_call *c, int32_t dtype, const uint8_t *place, int32_t group,
                            float values[LL_LOG_LANE])
{
    const int32_t lane = threadIdx.x % 32;
    const uint32_t *head = (const uint32_t *)place + 2 * group;
    const logfmt_range range =
        logfmt_range_of_head(__uint_as_float(load_relaxed(head)), __uint_as_float(load_relaxed(head + 1)));
    const uint8_t *bytes = place + 8 * ll_log_groups(c) + ll_log_begin(group, ll_log_heads_before(place, group));
    const bool coded = logfmt_group_bytes(&range) == LOGFMT_CODED_BYTES;
    const uint32_t *words = (const uint32_t *)bytes + (coded ? lane : 2 * lane);
    const uint32_t low = load_relaxed(words);
    const uint32_t more = load_relaxed(coded ? (const uint32_t *)(bytes + LOGFMT_LOW_BYTES) + lane / 4 : words + 1);
    const float units = coded ? logfmt_units_per_step(&range) : 0.0f;
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++) {
        const uint32_t above = more >> (8 * (lane % 4) + 2 * i) & 3u;
        const uint32_t half = (i < 2 ? low : more) >> 16 * (i % 2) & 0xffffu;
        uint32_t cell;
        values[i] =
            coded ? logfmt_value_of(&range, units, (low >> 8 * i & 0xffu) | above << 8) : __uint_as_float(half << 16);
        codec_store(dtype, &cell, 0, values[i]);
        values[i] = codec_load(dtype, &cell, 0);
    }
}

GPU_FUNC void ll_log_store_sums(int32_t dtype, const float sums[LL_LOG_LANE], uint8_t *y, int32_t group)
{
    const int64_t first = (int64_t)group * LOGFMT_GROUP + LL_LOG_LANE * (threadIdx.x % 32);
    if (dtype == GPU_F32) {
        uint32_t *to = (uint32_t *)y + first;
#pragma unroll
        for (int32_t i = 0; i < LL_LOG_LANE; i++)
            to[i] = narrow_f32(sums[i]);
        return;
    }
    uint32_t *to = (uint32_t *)(y + 2 * first);
    to[0] = narrow_pair(dtype, sums[0], sums[1]);
    to[1] = narrow_pair(dtype, sums[2], sums[3]);
}

/* The team's part of the sum of the rows of the lanes in mask, from the lowest lane on. */
GPU_FUNC void ll_log_add_rows(const ll_gpu_call *c, int32_t dtype, const ll_team *team, uint32_t mask,
                              const uint8_t *place, float weight, uint8_t *y)
{
    for (int32_t g = team->at / 32; g < ll_log_groups(c); g += team->threads / 32) {
        float sums[LL_LOG_LANE] = {0};
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int32_t lane = __ffs((int)rest) - 1;
            const uint8_t *from = (const uint8_t *)__shfl_sync(GPU_ALL, (unsigned long long)place, lane);
            const float by = __shfl_sync(GPU_ALL, weight, lane);
            float values[LL_LOG_LANE];
            ll_log_decode(c, dtype, from, g, values);
#pragma unroll
            for (int32_t i = 0; i < LL_LOG_LANE; i++)
                sums[i] = __fadd_rn(sums[i], __fmul_rn(by, values[i]));
        }
        ll_log_store_sums(dtype, sums, y, g);
    }
}

#endif
