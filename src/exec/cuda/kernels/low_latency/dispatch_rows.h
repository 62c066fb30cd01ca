/* SPDX-License-Identifier: Apache-2.0 */
/* Of a dispatch: a row on its way out, as it is or quantised, to the messages at s->places. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_ROWS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_ROWS_H

#include "exec/cuda/kernels/low_latency/dispatch_open.h"
#include "exec/cuda/kernels/low_latency/split.h"
#include "exec/cuda/kernels/low_latency/words.h"

/* Number i of the words of a message, from its header on. */
GPU_FUNC void ll_put(const ll_dispatch_args *a, const ll_now *now, uint64_t message, int64_t i, uint32_t value)
{
    if (ll_sends_words(a))
        store_relaxed_64((uint64_t *)message + i, ll_flag_of(now, value));
    else
        ((uint32_t *)message)[i] = value;
}

/* ---- rows as they are -------------------------------------------------------------------------------------------- */

/* At that byte of the payload. */
GPU_FUNC void ll_store_units(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks,
                             int64_t at, uint4 value)
{
    const int64_t from = (int64_t)a->call.space.header_bytes + at;
    for (int32_t j = 0; j < ranks; j++) {
        if (!s->places[j]) continue;
        if (ll_sends_words(a))
            ll_store_in_words((uint64_t *)(s->places[j] + 2 * from), now->stamp, value);
        else
            store_row((uint4 *)(s->places[j] + from), value);
    }
}

GPU_FUNC void ll_send_plain(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                            const uint4 *row, int32_t ranks)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
#pragma unroll 2
    for (int32_t u = team->at; u < units; u += team->threads)
        ll_store_units(a, s, now, ranks, (int64_t)u * 16, load_row(row + u));
}

/* ---- quantised rows ---------------------------------------------------------------------------------------------- */

#define LL_LANE_ELEMENTS 16
#define LL_GROUP_LANES   (CODEC_GROUP / LL_LANE_ELEMENTS)
#define LL_WARP_GROUPS   (32 / LL_GROUP_LANES)

GPU_FUNC void ll_widen(int32_t dtype, uint4 v, float *out)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        if (dtype == CODEC_F32) {
            out[i] = number_of_bits(words[i]);
        } else {
            const uint32_t low = words[i] & 0xffffu, high = words[i] >> 16;
            out[2 * i] = dtype == CODEC_BF16 ? number_of_bf16(low) : number_of_f16(low);
            out[2 * i + 1] = dtype == CODEC_BF16 ? number_of_bf16(high) : number_of_f16(high);
        }
}

/* This lane's elements of a group. */
GPU_FUNC void ll_load_elements(int32_t dtype, const uint8_t *row, int64_t first, float values[LL_LANE_ELEMENTS])
{
    const int64_t bytes = dtype == CODEC_F32 ? 4 : 2;
    const uint4 *from = (const uint4 *)(row + first * bytes);
    if (dtype == CODEC_F32) {
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            ll_widen(dtype, load_row(from + i), values + 4 * i);
    } else {
#pragma unroll
        for (int32_t i = 0; i < 2; i++)
            ll_widen(dtype, load_row(from + i), values + 8 * i);
    }
}

/* The largest magnitude of a group, as bits, in all of its lanes. */
GPU_FUNC uint32_t ll_amax(const float values[LL_LANE_ELEMENTS])
{
    uint32_t amax = 0;
#pragma unroll
    for (int32_t i = 0; i < LL_LANE_ELEMENTS; i++)
        amax = max(amax, number_magnitude(values[i]));
#pragma unroll
    for (int32_t offset = LL_GROUP_LANES / 2; offset; offset /= 2)
        amax = max(amax, __shfl_xor_sync(GPU_ALL, amax, offset));
    return amax;
}

GPU_FUNC uint4 ll_quantise(int32_t codec, const float values[LL_LANE_ELEMENTS], float factor)
{
    uint32_t words[4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        words[i] = codec_quantise_pair(codec, values[4 * i], values[4 * i + 1], factor) |
                   codec_quantise_pair(codec, values[4 * i + 2], values[4 * i + 3], factor) << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Scales stand behind the payload. Four groups of a warp have one word of UE8M0. */
GPU_FUNC void ll_store_scale(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks,
                             int32_t group, float scale)
{
    const int32_t lane = threadIdx.x % 32, groups = a->call.shape.hidden / CODEC_GROUP;
    const bool packed = codec_facts_of(a->codec).scales == CODEC_SCALES_UE8M0;
    const uint32_t byte = group < groups ? codec_scale_exponent(scale) << (group % 4 * 8) : 0;
    uint32_t word = number_bits(scale);
    if (packed) {
        word = byte | __shfl_xor_sync(GPU_ALL, byte, LL_GROUP_LANES);
        word |= __shfl_xor_sync(GPU_ALL, word, 2 * LL_GROUP_LANES);
    }
    if (group >= groups || lane % (packed ? 32 : LL_GROUP_LANES)) return;
    const int64_t bytes = (int64_t)a->call.space.header_bytes + a->row_bytes;
    for (int32_t j = 0; j < ranks; j++)
        if (s->places[j]) ll_put(a, now, s->places[j], bytes / 4 + (packed ? group / 4 : group), word);
}

/* Eight lanes a group, so that a warp has four that begin at a multiple of four. */
GPU_FUNC void ll_send_quantised(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                                const uint8_t *row, int32_t ranks)
{
    const int32_t dtype = a->call.form.dtype, groups = a->call.shape.hidden / CODEC_GROUP;
    const int32_t part = threadIdx.x % LL_GROUP_LANES;
    const int32_t first = team->at / 32 * LL_WARP_GROUPS;
    for (int32_t base = first; base < groups; base += team->threads / 32 * LL_WARP_GROUPS) {
        const int32_t group = base + threadIdx.x % 32 / LL_GROUP_LANES;
        const int64_t element = (int64_t)group * CODEC_GROUP + part * LL_LANE_ELEMENTS;
        float values[LL_LANE_ELEMENTS] = {0};
        if (group < groups) ll_load_elements(dtype, row, element, values);
        const codec_scaling scaling = codec_scaling_of(a->codec, ll_amax(values));
        if (group < groups) ll_store_units(a, s, now, ranks, element, ll_quantise(a->codec, values, scaling.factor));
        ll_store_scale(a, s, now, ranks, group, scaling.scale);
    }
}

#endif
