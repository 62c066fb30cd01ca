/* SPDX-License-Identifier: Apache-2.0 */
/* Sends a row of a dispatch, as it is or quantised, to the messages at s->places. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_ROWS_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_DISPATCH_ROWS_H

#include "exec/cuda/kernels/low_latency/dispatch_open.h"
#include "exec/cuda/kernels/low_latency/split.h"
#include "exec/cuda/kernels/low_latency/words.h"

/* Stores number i of the words of a message, from its header on. */
GPU_FUNC void ll_put(const ll_dispatch_args *a, const ll_now *now, uint64_t message, int64_t i, uint32_t value)
{
    if (ll_sends_words(a))
        store_relaxed_64((uint64_t *)message + i, ll_flag_of(now, value));
    else
        ((uint32_t *)message)[i] = value;
}

/* The part of a row that a thread holds. It is loaded, and coded if the format says so, before its targets are
   known. */
#ifdef EXPAR_LL_TOKENS
#define LL_HELD_UNITS 2
#else
#define LL_HELD_UNITS 1
#endif
typedef struct ll_held {
    uint4 units[LL_HELD_UNITS]; /* a coded row uses only the first */
    uint32_t scale;             /* bits of the group's scale, or for NVFP4 a word of scales */
} ll_held;

/* ---- rows as they are -------------------------------------------------------------------------------------------- */

/* Stores a piece at that byte of the payload. */
GPU_FUNC void ll_store_units(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks,
                             int64_t at, uint4 value)
{
    const int64_t from = (int64_t)ll_header_bytes(&a->call) + at;
    for (int32_t j = 0; j < ranks; j++) {
        if (!s->places[j]) continue;
        if (ll_sends_words(a))
            ll_store_in_words((uint64_t *)(s->places[j] + 2 * from), now->stamp, value);
        else
            store_row((uint4 *)(s->places[j] + from), value);
    }
}

/* Loads piece u, and those one team's length further on. */
GPU_FUNC void ll_load_units(const ll_dispatch_args *a, const ll_team *team, const uint4 *row, int32_t u, ll_held *hand)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
#pragma unroll
    for (int32_t i = 0; i < LL_HELD_UNITS; i++)
        if (u + i * team->threads < units) hand->units[i] = load_row(row + u + i * team->threads);
}
GPU_FUNC void ll_send_units(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                            int32_t u, int32_t ranks, const ll_held *hand)
{
    const int32_t units = (int32_t)(GPU_ROW_BYTES(a) / 16);
#pragma unroll
    for (int32_t i = 0; i < LL_HELD_UNITS; i++)
        if (u + i * team->threads < units)
            ll_store_units(a, s, now, ranks, (int64_t)(u + i * team->threads) * 16, hand->units[i]);
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

/* Loads this lane's elements of a group. */
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

/* Returns the largest magnitude of a group, as bits, in all of its lanes. */
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

/* Each group has eight lanes, so that a warp has four groups, the first with a number that is a multiple of four.
   Returns the group of the thread with number `at`; ll_element_at returns its first element. */
GPU_FUNC int32_t ll_group_at(int32_t at)
{
    return at / 32 * LL_WARP_GROUPS + at % 32 / LL_GROUP_LANES;
}
GPU_FUNC int64_t ll_element_at(int32_t at)
{
    return (int64_t)ll_group_at(at) * CODEC_GROUP + at % LL_GROUP_LANES * LL_LANE_ELEMENTS;
}

/* A word of a row's scales. This lane has number `at`; -1: it has none. */
typedef struct ll_scale_word {
    int32_t at;
    uint32_t word;
} ll_scale_word;

/* Four groups of a warp have one word of UE8M0. */
GPU_FUNC ll_scale_word ll_scale_word_of(const ll_dispatch_args *a, int32_t group, uint32_t scale)
{
    const int32_t lane = threadIdx.x % 32, groups = LL_HIDDEN(&a->call) / CODEC_GROUP;
    const bool packed = codec_facts_of(a->codec).scales == CODEC_SCALES_UE8M0;
    const uint32_t byte = group < groups ? codec_scale_exponent(number_of_bits(scale)) << (group % 4 * 8) : 0;
    ll_scale_word word = {packed ? group / 4 : group, scale};
    if (packed) {
        word.word = byte | __shfl_xor_sync(GPU_ALL, byte, LL_GROUP_LANES);
        word.word |= __shfl_xor_sync(GPU_ALL, word.word, 2 * LL_GROUP_LANES);
    }
    if (group >= groups || lane % (packed ? 32 : LL_GROUP_LANES)) word.at = -1;
    return word;
}

/* Scales come after the payload. */
GPU_FUNC void ll_store_scale(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t ranks,
                             const ll_scale_word *word)
{
    const int64_t bytes = (int64_t)ll_header_bytes(&a->call) + a->row_bytes;
    for (int32_t j = 0; j < ranks && word->at >= 0; j++)
        if (s->places[j]) ll_put(a, now, s->places[j], bytes / 4 + word->at, word->word);
}

/* ---- rows of NVFP4: each lane has a block ------------------------------------------------------------------------ */

/* Returns the codes of eight elements. */
GPU_FUNC uint32_t ll_code_eight(const float *values, float global, float scale)
{
    uint32_t word = 0;
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        word |= nvfp4_code_of(values[i], global, scale) << (4 * i);
    return word;
}

/* Two lanes have a piece of 16 bytes, which the first one stores. Four lanes have a word of scales. */
GPU_FUNC void ll_code_block(const ll_dispatch_args *a, const float values[LL_LANE_ELEMENTS], ll_held *hand)
{
    const float global = *a->global_scale;
    uint32_t amax = 0;
#pragma unroll
    for (int32_t i = 0; i < LL_LANE_ELEMENTS; i++)
        amax = max(amax, number_magnitude(values[i]));
    const uint32_t bits = nvfp4_scale_of(amax, global);
    const float scale = number_of_e4m3(bits);
    const uint32_t low = ll_code_eight(values, global, scale), high = ll_code_eight(values + 8, global, scale);
    hand->units[0] = make_uint4(low, high, __shfl_xor_sync(GPU_ALL, low, 1), __shfl_xor_sync(GPU_ALL, high, 1));
    const uint32_t byte = bits << (threadIdx.x % 4 * 8), half = byte | __shfl_xor_sync(GPU_ALL, byte, 1);
    hand->scale = half | __shfl_xor_sync(GPU_ALL, half, 2);
}
GPU_FUNC void ll_send_block(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t at, int32_t ranks,
                            const ll_held *hand)
{
    const int32_t first = (int32_t)ll_element_at(at);
    if (first >= LL_HIDDEN(&a->call)) return;
    if (at % 2 == 0) ll_store_units(a, s, now, ranks, first / 2, hand->units[0]);
    const ll_scale_word word = {at % 4 ? -1 : first / (4 * NVFP4_BLOCK), hand->scale};
    ll_store_scale(a, s, now, ranks, &word);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

GPU_FUNC void ll_code_group(const ll_dispatch_args *a, const uint8_t *row, int32_t at, ll_held *hand)
{
    float values[LL_LANE_ELEMENTS] = {0};
    if (ll_group_at(at) < LL_HIDDEN(&a->call) / CODEC_GROUP)
        ll_load_elements(a->call.form.dtype, row, ll_element_at(at), values);
    if (a->codec == CODEC_NVFP4) {
        ll_code_block(a, values, hand);
        return;
    }
    const codec_scaling scaling = codec_scaling_of(a->codec, ll_amax(values));
    hand->units[0] = ll_quantise(a->codec, values, scaling.factor);
    hand->scale = number_bits(scaling.scale);
}
GPU_FUNC void ll_send_group(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, int32_t at, int32_t ranks,
                            const ll_held *hand)
{
    const int32_t group = ll_group_at(at);
    if (a->codec == CODEC_NVFP4) {
        ll_send_block(a, s, now, at, ranks, hand);
        return;
    }
    if (group < LL_HIDDEN(&a->call) / CODEC_GROUP) ll_store_units(a, s, now, ranks, ll_element_at(at), hand->units[0]);
    const ll_scale_word word = ll_scale_word_of(a, group, hand->scale);
    ll_store_scale(a, s, now, ranks, &word);
}

/* ---- a row, part by part ----------------------------------------------------------------------------------------- */

/* `at` goes from the thread's number in the team on, in steps of ll_held_step. */
GPU_FUNC int32_t ll_held_step(const ll_dispatch_args *a, const ll_team *team)
{
    return ll_is_scaled(a) ? team->threads : LL_HELD_UNITS * team->threads;
}
GPU_FUNC void ll_take_in_hand(const ll_dispatch_args *a, const ll_team *team, const uint8_t *row, int32_t at,
                              ll_held *hand)
{
    if (ll_is_scaled(a))
        ll_code_group(a, row, at, hand);
    else
        ll_load_units(a, team, (const uint4 *)row, at, hand);
}

/* Returns the number of threads that a row's parts take, in whole warps. */
GPU_FUNC int32_t ll_held_end(const ll_dispatch_args *a)
{
    const int32_t lanes = ll_is_scaled(a) ? LL_HIDDEN(&a->call) / LL_LANE_ELEMENTS : (int32_t)(GPU_ROW_BYTES(a) / 16);
    return (lanes + 31) / 32 * 32;
}

/* Sends the row to all of the token's ranks; `hand` has the first part. */
GPU_FUNC void ll_send_row(const ll_dispatch_args *a, const ll_shared *s, const ll_now *now, const ll_team *team,
                          const uint8_t *row, int32_t ranks, ll_held *hand)
{
    const int32_t step = ll_held_step(a, team), end = ll_held_end(a);
    for (int32_t at = team->at; at < end;) {
        if (ll_is_scaled(a))
            ll_send_group(a, s, now, at, ranks, hand);
        else
            ll_send_units(a, s, now, team, at, ranks, hand);
        at += step;
        if (at < end) ll_take_in_hand(a, team, row, at, hand);
    }
}

#endif
