/* SPDX-License-Identifier: Apache-2.0 */
/* The codec's functions with format and type known to the compiler. It vectorises the loops for each of the instruction
 * sets named below. Groups are scanned first, so that only finite ones are quantised. */
#include "exec/cpu/core/encode.h"
#include "exec/cpu/core/clones.h"
#include "exec/cpu/core/encode_log.h"
#include "exec/cpu/core/encode_wide.h"

#include <stdbool.h>
#include <string.h>

/* Returns the largest magnitude of a group, as bits of its type: in all three types they are ordered as integers. */
LOOP_PART uint32_t group_amax_halves(const number_u16 *group)
{
    uint16_t amax = 0;
    for (int32_t i = 0; i < CODEC_GROUP; i++) {
        uint16_t magnitude = group[i] & 0x7fffu;
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax;
}

LOOP_PART uint32_t group_amax(int32_t dtype, const void *row, int64_t begin)
{
    if (dtype == CODEC_F32) return codec_amax(dtype, row, begin, begin + CODEC_GROUP);
    uint32_t half = group_amax_halves((const number_u16 *)row + begin);
    return number_bits(dtype == CODEC_BF16 ? number_of_bf16(half) : number_of_f16(half));
}

/* Rows in memory: two 16-bit elements, or two codes, at once. */
typedef uint32_t __attribute__((may_alias, aligned(2))) halves;
typedef uint16_t __attribute__((may_alias, aligned(1))) codes;

/* Makes two codes from two finite 16-bit elements, the first one low. Nothing is wider than the word that both came in,
   except the two numbers in between. So vectors of words need no shuffles. */
LOOP_PART uint16_t quantise_halves_i8(int32_t dtype, uint32_t word, float factor)
{
    float low = dtype == CODEC_BF16 ? number_of_bits(word << 16) : number_of_f16(word & 0xffffu);
    float high = dtype == CODEC_BF16 ? number_of_bits(word & 0xffff0000u) : number_of_f16(word >> 16);
    return (uint16_t)(number_to_i8_within(number_multiply(low, factor)) |
                      number_to_i8_within(number_multiply(high, factor)) << 8);
}
LOOP_PART uint16_t quantise_halves_e4m3(int32_t dtype, uint32_t word, float factor)
{
    uint32_t both = word & 0x7fff7fffu;
    float low = dtype == CODEC_BF16 ? number_of_bits(both << 16) : number_of_f16_magnitude(both & 0xffffu);
    float high = dtype == CODEC_BF16 ? number_of_bits(both & 0xffff0000u) : number_of_f16_magnitude(both >> 16);
    uint32_t low_code = number_to_e4m3_low(number_bits(number_multiply(low, factor))) << 16;
    uint32_t high_code = number_to_e4m3_low(number_bits(number_multiply(high, factor))) << 24;
    uint32_t pair = low_code + high_code; /* in the upper half, where the signs are, too */
    return (uint16_t)((pair | (word & 0x80000000u) | ((word << 8) & 0x00800000u)) >> 16);
}

/* Uses hand-written code if the processor can run it, and if the compiler does not do as well. */
LOOP_PART bool quantise_wide(const encode_wide *wide, int32_t format, int32_t dtype, const void *row, int64_t begin,
                             float factor, uint8_t *payload)
{
    if (!wide || dtype == CODEC_BF16) return false;
    const void *group = (const uint8_t *)row + begin * (dtype == CODEC_F32 ? 4 : 2);
    (format == CODEC_INT8 ? wide->i8 : wide->e4m3)[dtype](group, factor, payload + begin);
    return true;
}

/* Quantises the finite elements of a group. */
LOOP_PART void quantise_group(int32_t format, int32_t dtype, const void *row, int64_t begin, float factor,
                              uint8_t *restrict payload)
{
    if (dtype == CODEC_F32) {
        for (int64_t i = begin; i < begin + CODEC_GROUP; i++)
            payload[i] = (uint8_t)codec_quantise(format, codec_load(dtype, row, i), factor);
        return;
    }
    const halves *words = (const halves *)((const number_u16 *)row + begin);
    codes *restrict pairs = (codes *)(payload + begin);
    for (int32_t i = 0; i < CODEC_GROUP / 2; i++)
        pairs[i] = format == CODEC_INT8 ? quantise_halves_i8(dtype, words[i], factor)
                                        : quantise_halves_e4m3(dtype, words[i], factor);
}

/* Scales of so many groups are found before the first one is quantised. One group alone waits long for its quotients;
   several wait at the same time. */
#define SCALES_AHEAD 8

typedef struct scaled_group {
    uint32_t amax;
    float factor;
} scaled_group;

LOOP_PART scaled_group scale_group(int32_t format, int32_t dtype, const void *row, int64_t g, void *scales)
{
    const uint32_t amax = group_amax(dtype, row, g * CODEC_GROUP);
    const codec_scaling scaling = codec_scaling_of(format, amax);
    codec_store_scale(format, scales, g, scaling.scale);
    return (scaled_group){.amax = amax, .factor = scaling.factor};
}

LOOP_PART void encode_group(const encode_wide *wide, int32_t format, int32_t dtype, const void *row, int64_t g,
                            const scaled_group *scaled, uint8_t *payload)
{
    const int64_t begin = g * CODEC_GROUP;
    if (scaled->amax >= NUMBER_INFINITY)
        memset(payload + begin, format == CODEC_INT8 ? 0 : NUMBER_NAN_E4M3, CODEC_GROUP);
    else if (!quantise_wide(wide, format, dtype, row, begin, scaled->factor, payload))
        quantise_group(format, dtype, row, begin, scaled->factor, payload);
}

LOOP_PART void encode_groups(int32_t format, int32_t dtype, int64_t hidden, const void *row, uint8_t *payload,
                             void *scales)
{
    const encode_wide *wide = encode_wide_here();
    const int64_t groups = hidden / CODEC_GROUP;
    for (int64_t first = 0; first < groups; first += SCALES_AHEAD) {
        const int64_t count = groups - first < SCALES_AHEAD ? groups - first : SCALES_AHEAD;
        scaled_group ahead[SCALES_AHEAD] = {{0}};
        for (int64_t i = 0; i < count; i++)
            ahead[i] = scale_group(format, dtype, row, first + i, scales);
        for (int64_t i = 0; i < count; i++)
            encode_group(wide, format, dtype, row, first + i, &ahead[i], payload);
    }
}

#define DEFINE_ENCODE(name, format, dtype)                                                                             \
    LOOP_CLONES static void encode_##name(int64_t hidden, const void *row, uint8_t *payload, void *scales)             \
    {                                                                                                                  \
        encode_groups(format, dtype, hidden, row, payload, scales);                                                    \
    }
#define DEFINE_ENCODE_TYPES(name, format)                                                                              \
    DEFINE_ENCODE(name##_bf16, format, CODEC_BF16)                                                                     \
    DEFINE_ENCODE(name##_f16, format, CODEC_F16)                                                                       \
    DEFINE_ENCODE(name##_f32, format, CODEC_F32)                                                                       \
    static encode_function *const encode_##name[] = {                                                                  \
        [CODEC_BF16] = encode_##name##_bf16, [CODEC_F16] = encode_##name##_f16, [CODEC_F32] = encode_##name##_f32};

typedef void encode_function(int64_t hidden, const void *row, uint8_t *payload, void *scales);
DEFINE_ENCODE_TYPES(fp8, CODEC_FP8)
DEFINE_ENCODE_TYPES(fp8_round, CODEC_FP8_ROUND)
DEFINE_ENCODE_TYPES(fp8_ue8m0, CODEC_FP8_UE8M0)
DEFINE_ENCODE_TYPES(int8, CODEC_INT8)

static encode_function *const *const encode_functions[] = {[CODEC_FP8] = encode_fp8,
                                                           [CODEC_FP8_ROUND] = encode_fp8_round,
                                                           [CODEC_FP8_UE8M0] = encode_fp8_ue8m0,
                                                           [CODEC_INT8] = encode_int8};

/* Converts one type to another one, both known to the compiler. */
LOOP_PART void convert_row(int32_t from, int32_t to, int64_t hidden, const void *row, void *restrict payload)
{
    for (int64_t i = 0; i < hidden; i++)
        codec_store(to, payload, i, codec_load(from, row, i));
}

#define DEFINE_CONVERT(name, from, to)                                                                                 \
    LOOP_CLONES static void convert_##name(int64_t hidden, const void *row, void *payload)                             \
    {                                                                                                                  \
        convert_row(from, to, hidden, row, payload);                                                                   \
    }

DEFINE_CONVERT(bf16_f16, CODEC_BF16, CODEC_F16)
DEFINE_CONVERT(bf16_f32, CODEC_BF16, CODEC_F32)
DEFINE_CONVERT(f16_bf16, CODEC_F16, CODEC_BF16)
DEFINE_CONVERT(f16_f32, CODEC_F16, CODEC_F32)
DEFINE_CONVERT(f32_bf16, CODEC_F32, CODEC_BF16)
DEFINE_CONVERT(f32_f16, CODEC_F32, CODEC_F16)

typedef void convert_function(int64_t hidden, const void *row, void *payload);
static convert_function *const convert_functions[4][4] = {
    [CODEC_BF16] = {[CODEC_F16] = convert_bf16_f16, [CODEC_F32] = convert_bf16_f32},
    [CODEC_F16] = {[CODEC_BF16] = convert_f16_bf16, [CODEC_F32] = convert_f16_f32},
    [CODEC_F32] = {[CODEC_BF16] = convert_f32_bf16, [CODEC_F16] = convert_f32_f16}};

int64_t cpu_encode_row(int32_t format, int32_t dtype, int64_t hidden, const void *row, void *payload, void *scales)
{
    int64_t bytes = codec_row_bytes(format, hidden);
    if (format == CODEC_LOGFMT) return cpu_encode_log_row(dtype, hidden, row, payload, scales);
    if (format == dtype) {
        memcpy(payload, row, (size_t)bytes);
    } else if (codec_facts_of(format).scales == CODEC_NO_SCALES) {
        convert_functions[dtype][format](hidden, row, payload);
    } else {
        if (format == CODEC_FP8_UE8M0) memset(scales, 0, (size_t)codec_scale_bytes(format, hidden));
        encode_functions[format][dtype](hidden, row, payload, scales);
    }
    return bytes;
}

/* ---- the way back ------------------------------------------------------------------------------------------------ */

LOOP_PART void decode_groups(int32_t format, int32_t code_format, int64_t hidden, const uint8_t *payload,
                             const void *scales, float *restrict out)
{
    for (int64_t begin = 0; begin < hidden; begin += CODEC_GROUP) {
        float scale = codec_load_scale(format, scales, begin / CODEC_GROUP);
        for (int64_t i = begin; i < begin + CODEC_GROUP; i++)
            out[i] = codec_dequantise(code_format, payload[i], scale);
    }
}

LOOP_CLONES static void decode_fp8(int32_t format, int64_t hidden, const uint8_t *payload, const void *scales,
                                   float *out)
{
    decode_groups(format, CODEC_FP8, hidden, payload, scales, out);
}
LOOP_CLONES static void decode_int8(int64_t hidden, const uint8_t *payload, const void *scales, float *out)
{
    decode_groups(CODEC_INT8, CODEC_INT8, hidden, payload, scales, out);
}
/* Bits of NaN stay, as in codec_decode_row. */
LOOP_CLONES static void decode_bf16(int64_t hidden, const void *payload, float *restrict out)
{
    for (int64_t i = 0; i < hidden; i++)
        out[i] = codec_load(CODEC_BF16, payload, i);
}
LOOP_CLONES static void decode_f16(int64_t hidden, const void *payload, float *restrict out)
{
    for (int64_t i = 0; i < hidden; i++)
        out[i] = codec_load(CODEC_F16, payload, i);
}

void cpu_decode_row(int32_t format, int64_t hidden, const void *payload, const void *scales, float *out)
{
    if (format == CODEC_F32)
        memcpy(out, payload, (size_t)hidden * sizeof *out);
    else if (format == CODEC_BF16)
        decode_bf16(hidden, payload, out);
    else if (format == CODEC_F16)
        decode_f16(hidden, payload, out);
    else if (format == CODEC_LOGFMT)
        cpu_decode_log_row(hidden, payload, scales, out);
    else if (format == CODEC_INT8)
        decode_int8(hidden, payload, scales, out);
    else
        decode_fp8(format, hidden, payload, scales, out);
}
