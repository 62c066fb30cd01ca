/* SPDX-License-Identifier: Apache-2.0 */
/* The codec in kernels, for tests: rows of any type to any format and back.
 *
 * Grid: any. A warp takes a group of 128 elements, a lane four of them. A reduction of the warp finds the largest
 * magnitude. In LogFMT the warp takes a row, group after group. Formats without scales, and the way back, go element by
 * element. No shared memory. */
#include "proto/codec/codec.h"

#define ALL_LANES 0xffffffffu

static __device__ void store_scale(int32_t format, uint8_t *scales, int64_t g, int64_t groups, float scale)
{
    if (codec_facts_of(format).scales != CODEC_SCALES_UE8M0) {
        ((float *)scales)[g] = scale;
        return;
    }
    scales[g] = (uint8_t)codec_scale_exponent(scale);
    for (int64_t after = groups; g == groups - 1 && after % 4 != 0; after++)
        scales[after] = 0;
}

static __device__ void encode_group(int32_t format, int32_t dtype, int64_t hidden, int64_t g, const void *row,
                                    uint8_t *payload, uint8_t *scales)
{
    int64_t lane = threadIdx.x % 32, first = g * CODEC_GROUP + 4 * lane;
    uint32_t amax = __reduce_max_sync(ALL_LANES, codec_amax(dtype, row, first, first + 4));
    codec_scaling scaling = codec_scaling_of(format, amax);
    for (int64_t i = first; i < first + 4; i += 2) {
        uint32_t pair =
            codec_quantise_pair(format, codec_load(dtype, row, i), codec_load(dtype, row, i + 1), scaling.factor);
        payload[i] = (uint8_t)pair;
        payload[i + 1] = (uint8_t)(pair >> 8);
    }
    if (lane == 0) store_scale(format, scales, g, hidden / CODEC_GROUP, scaling.scale);
}

/* Returns the bytes of the group. */
static __device__ int64_t encode_log_group(int32_t dtype, int64_t g, const void *row, uint8_t *bytes, float *head)
{
    int32_t first = (int32_t)(threadIdx.x % 32) * 4;
    int64_t begin = g * CODEC_GROUP + first;
    uint32_t least_below = 0xffffffffu, most = codec_amax(dtype, row, begin, begin + 4);
    float values[4];
    for (int32_t i = 0; i < 4; i++) {
        values[i] = codec_load(dtype, row, begin + i);
        least_below = min(least_below, number_magnitude(values[i]) - 1);
    }
    logfmt_range range = logfmt_range_of(__reduce_min_sync(ALL_LANES, least_below), __reduce_max_sync(ALL_LANES, most));
    if (first == 0) {
        head[0] = range.least;
        head[1] = range.most;
    }
    if (logfmt_group_bytes(&range) == LOGFMT_CODED_BYTES)
        codec_encode_four(&range, logfmt_steps_per_unit(&range), values, first, bytes);
    else
        for (int32_t i = 0; i < 4; i++)
            codec_store(CODEC_BF16, bytes, first + i, values[i]);
    return logfmt_group_bytes(&range);
}

/* x: [rows][hidden] of dtype; payload and scales of the rows one after the other. */
extern "C" __global__ void codec_encode(int32_t format, int32_t dtype, int64_t hidden, int64_t rows, const uint8_t *x,
                                        uint8_t *payload, uint8_t *scales)
{
    int64_t row_bytes = codec_row_bytes(format, hidden), scale_bytes = codec_scale_bytes(format, hidden);
    int64_t x_bytes = hidden * (dtype == CODEC_F32 ? 4 : 2), groups = hidden / CODEC_GROUP;
    int64_t warp = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    if (scale_bytes == 0) {
        for (int64_t r = warp; r < rows; r += warps)
            if (threadIdx.x % 32 == 0)
                codec_encode_row(format, dtype, hidden, x + r * x_bytes, payload + r * row_bytes, (void *)0);
        return;
    }
    for (int64_t r = warp; format == CODEC_LOGFMT && r < rows; r += warps) {
        uint8_t *bytes = payload + r * row_bytes;
        float *heads = (float *)(scales + r * scale_bytes);
        for (int64_t g = 0; g < groups; g++)
            bytes += encode_log_group(dtype, g, x + r * x_bytes, bytes, heads + 2 * g);
    }
    for (int64_t i = warp; format != CODEC_LOGFMT && i < rows * groups; i += warps) {
        int64_t r = i / groups;
        encode_group(format, dtype, hidden, i % groups, x + r * x_bytes, payload + r * row_bytes,
                     scales + r * scale_bytes);
    }
}

/* A thread a row. */
extern "C" __global__ void codec_decode(int32_t format, int64_t hidden, int64_t rows, const uint8_t *payload,
                                        const uint8_t *scales, float *out)
{
    int64_t row_bytes = codec_row_bytes(format, hidden), scale_bytes = codec_scale_bytes(format, hidden);
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t r = first; r < rows; r += (int64_t)gridDim.x * blockDim.x)
        codec_decode_row(format, hidden, payload + r * row_bytes, scales + r * scale_bytes, out + r * hidden);
}
