/* SPDX-License-Identifier: Apache-2.0 */
/* codec: payload formats of low-latency mode. A row of H elements becomes a payload, and scales if it is quantised.
 *
 * The executors call it, on the host and in kernels; ep calls it for sizes. It compiles as C17, under nvcc and under
 * NVRTC, so that CPU and GPU make the same bytes. It calls only number.h, logfmt.h and nvfp4.h.
 *
 *     number.h    conversions between FP32 and the narrow types
 *     logfmt.h    groups of 10 bits an element, by logarithms
 *     nvfp4.h     blocks of 4 bits an element, by a global scale
 *     codec.h     the table of formats, sizes, groups, whole rows: the definition, one element after the other
 *
 * The CPU executor encodes whole rows with vectors (cpu_encode_row, cpu_decode_row). In a kernel, each lane of a warp
 * takes a few elements of a group (codec_scaling_of, codec_quantise_pair). Both give the bytes of codec_encode_row.
 *
 * A group is CODEC_GROUP elements with one scale. Its amax, the largest magnitude, is passed as bits
 * (number_magnitude), so that lanes find the largest as integers. A group that holds infinity or NaN decodes to NaN as
 * a whole. Its scale is NaN, and its codes are NaN in FP8 and 0 in INT8. docs/reference/low-latency-formats.md has this
 * for users. */
#ifndef EXPAR_PROTO_CODEC_CODEC_H
#define EXPAR_PROTO_CODEC_CODEC_H

#include "proto/codec/logfmt.h"
#include "proto/codec/number.h"
#include "proto/codec/nvfp4.h"

#define CODEC_GROUP 128 /* elements that share a scale */

/* ---- the table of formats ---------------------------------------------------------------------------------------- */

/* Columns: number, element bits (the most, if groups differ), elements of which the row is a multiple (1 or a group),
   how its scales are kept, largest code. */
#define CODEC_FORMATS(ROW)                                                                                             \
    ROW(CODEC_BF16, 1, 16, 1, CODEC_NO_SCALES, 0.0f)                                                                   \
    ROW(CODEC_F16, 2, 16, 1, CODEC_NO_SCALES, 0.0f)                                                                    \
    ROW(CODEC_F32, 3, 32, 1, CODEC_NO_SCALES, 0.0f)                                                                    \
    ROW(CODEC_FP8, 4, 8, CODEC_GROUP, CODEC_SCALES_F32, 448.0f)                                                        \
    ROW(CODEC_FP8_ROUND, 5, 8, CODEC_GROUP, CODEC_SCALES_POWERS, 448.0f)                                               \
    ROW(CODEC_FP8_UE8M0, 6, 8, CODEC_GROUP, CODEC_SCALES_UE8M0, 448.0f)                                                \
    ROW(CODEC_INT8, 7, 8, CODEC_GROUP, CODEC_SCALES_F32, 127.0f)                                                       \
    ROW(CODEC_LOGFMT, 8, 16, CODEC_GROUP, CODEC_SCALES_HEADS, 0.0f)                                                    \
    ROW(CODEC_NVFP4, 9, 4, CODEC_GROUP, CODEC_SCALES_BLOCKS, NVFP4_MOST)

typedef enum codec_scales_kind {
    CODEC_NO_SCALES = 0,
    CODEC_SCALES_F32 = 1,    /* FP32, amax / largest code */
    CODEC_SCALES_POWERS = 2, /* the same, rounded up to a power of two */
    /* the exponents of such scales, biased by 127; four groups in a word, the first one lowest */
    CODEC_SCALES_UE8M0 = 3,
    CODEC_SCALES_HEADS = 4, /* two FP32 for each group: its least and its largest magnitude (logfmt.h) */
    CODEC_SCALES_BLOCKS = 5 /* E4M3 for each block of 16 elements; four blocks in a word, the first one lowest */
} codec_scales_kind;

#define CODEC_FORMAT_NUMBER(name, number, bits, unit, scales, largest) name = number,
/* The first three have the values of expar_dtype. */
typedef enum codec_format { CODEC_FORMATS(CODEC_FORMAT_NUMBER) CODEC_NO_FORMAT = 0 } codec_format;
#undef CODEC_FORMAT_NUMBER

typedef struct codec_facts {
    int32_t element_bits; /* 0: no such format */
    int32_t unit;         /* H is a multiple of it */
    int32_t scales;       /* codec_scales_kind */
    float largest;        /* code of amax */
} codec_facts;

PORTABLE_FUNC codec_facts codec_facts_of(int32_t format)
{
    codec_facts facts = {0, 1, CODEC_NO_SCALES, 0.0f};
    switch (format) {
#define CODEC_FORMAT_CASE(name, number, bits, multiple, kind, most)                                                    \
    case name:                                                                                                         \
        facts.element_bits = bits;                                                                                     \
        facts.unit = multiple;                                                                                         \
        facts.scales = kind;                                                                                           \
        facts.largest = most;                                                                                          \
        break;
        CODEC_FORMATS(CODEC_FORMAT_CASE)
#undef CODEC_FORMAT_CASE
    default:
        break;
    }
    return facts;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Says whether rows of so many elements exist in this format. They must be whole pieces of 16 bytes, and whole groups
   if the format is quantised. */
PORTABLE_FUNC int32_t codec_takes(int32_t format, int64_t hidden)
{
    codec_facts facts = codec_facts_of(format);
    return facts.element_bits > 0 && hidden > 0 && hidden <= 0x7fffffff && hidden % facts.unit == 0 &&
           hidden * facts.element_bits % 128 == 0;
}
/* Returns the bytes of a row's payload, for LogFMT the most. It is a multiple of 16, or 0 if there are no such rows. */
PORTABLE_FUNC int64_t codec_row_bytes(int32_t format, int64_t hidden)
{
    return codec_takes(format, hidden) ? hidden * codec_facts_of(format).element_bits / 8 : 0;
}
/* Returns the number of words, each of 4 bytes, in a row's scales; 0 without scales, or if there are no such rows. */
PORTABLE_FUNC int64_t codec_scales(int32_t format, int64_t hidden)
{
    int32_t kind = codec_facts_of(format).scales;
    if (kind == CODEC_NO_SCALES || !codec_takes(format, hidden)) return 0;
    int64_t groups = hidden / CODEC_GROUP;
    if (kind == CODEC_SCALES_HEADS || kind == CODEC_SCALES_BLOCKS) return 2 * groups;
    return kind == CODEC_SCALES_UE8M0 ? (groups + 3) / 4 : groups;
}
PORTABLE_FUNC int64_t codec_scale_bytes(int32_t format, int64_t hidden)
{
    return 4 * codec_scales(format, hidden);
}

/* Returns where a word of the received rows' scales stands, in words of 4 bytes. The array is [experts][words of a
   row][rows], so the next word of the same row is `rows` further. NVFP4 has tiles instead (nvfp4.h). words: of a row,
   as codec_scales says. */
PORTABLE_FUNC int64_t codec_scale_at(int32_t format, int64_t words, int64_t rows, int64_t expert, int64_t word,
                                     int64_t row)
{
    if (format == CODEC_NVFP4) return nvfp4_scale_at(words, rows, expert, word, row);
    return (expert * words + word) * rows + row;
}
/* Returns the bytes of payload or scales of rows, each of `bytes`, for all experts; -1 if that exceeds an int64. */
PORTABLE_FUNC int64_t codec_total_bytes(int64_t bytes, int64_t experts, int64_t rows)
{
    const int64_t most = 0x7fffffffffffffff;
    if (bytes < 0 || experts < 0 || rows < 0) return -1;
    if (bytes == 0 || experts == 0 || rows == 0) return 0;
    if (experts > most / rows || bytes > most / (experts * rows)) return -1;
    return bytes * experts * rows;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* A group with a smaller amax is quantised as if it had this one. */
#define CODEC_LEAST_AMAX 1e-4f

/* A group is quantised by `factor` and decoded by `scale`. */
typedef struct codec_scaling {
    float factor, scale;
} codec_scaling;

/* Returns amax / 448 rounded up to a power of two, by the bits of amax. 448 is 1.75 · 2^8, and the next number above it
   has a quotient above 1 in FP32, too. */
PORTABLE_FUNC float codec_power_of_amax(float amax)
{
    return number_of_bits(((number_bits(amax) + 0x1fffffu) & NUMBER_INFINITY) - (8u << 23));
}
/* amax: the bits of the amax of a group, in an FP8 or INT8 format */
PORTABLE_FUNC codec_scaling codec_scaling_of(int32_t format, uint32_t amax)
{
    codec_facts facts = codec_facts_of(format);
    codec_scaling scaling;
    scaling.factor = scaling.scale = number_of_bits(NUMBER_NAN);
    if (amax >= NUMBER_INFINITY) return scaling;
    float most = number_of_bits(amax);
    if (most < CODEC_LEAST_AMAX) most = CODEC_LEAST_AMAX;
    if (facts.scales == CODEC_SCALES_F32) {
        scaling.factor = number_divide(facts.largest, most);
        scaling.scale = number_divide(most, facts.largest);
    } else {
        scaling.scale = codec_power_of_amax(most);
        scaling.factor = number_of_bits((254u << 23) - number_bits(scaling.scale)); /* 1 / scale */
    }
    return scaling;
}
/* Returns the scale as UE8M0 keeps it: 255 is NaN. */
PORTABLE_FUNC uint32_t codec_scale_exponent(float scale)
{
    return number_bits(scale) >> 23 & 0xffu;
}
PORTABLE_FUNC float codec_scale_of_exponent(uint32_t exponent)
{
    if (exponent == 255) return number_of_bits(NUMBER_NAN);
    return number_of_bits(exponent ? exponent << 23 : 1u << 22);
}

PORTABLE_FUNC uint32_t codec_quantise(int32_t format, float value, float factor)
{
    float scaled = number_multiply(value, factor);
    return format == CODEC_INT8 ? number_to_i8(scaled) : number_to_e4m3(scaled);
}
/* Returns two codes, that of the first element in the lower byte. */
PORTABLE_FUNC uint32_t codec_quantise_pair(int32_t format, float first, float second, float factor)
{
    float low = number_multiply(first, factor), high = number_multiply(second, factor);
    return format == CODEC_INT8 ? number_to_i8(low) | number_to_i8(high) << 8 : number_to_e4m3_pair(low, high);
}
PORTABLE_FUNC float codec_dequantise(int32_t format, uint32_t code, float scale)
{
    float value = number_multiply(format == CODEC_INT8 ? number_of_i8(code) : number_of_e4m3(code), scale);
    return value != value ? number_of_bits(NUMBER_NAN) : value;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* dtype: CODEC_BF16, CODEC_F16 or CODEC_F32. */
PORTABLE_FUNC float codec_load(int32_t dtype, const void *row, int64_t i)
{
    if (dtype == CODEC_F32) return ((const number_f32 *)row)[i];
    uint32_t half = ((const number_u16 *)row)[i];
    return dtype == CODEC_BF16 ? number_of_bf16(half) : number_of_f16(half);
}
/* Rounds; a NaN of any bits becomes the one of the type. */
PORTABLE_FUNC void codec_store(int32_t dtype, void *row, int64_t i, float value)
{
    if (dtype == CODEC_F32)
        ((number_f32 *)row)[i] = value != value ? number_of_bits(NUMBER_NAN) : value;
    else
        ((number_u16 *)row)[i] = (uint16_t)(dtype == CODEC_BF16 ? number_to_bf16(value) : number_to_f16(value));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Copies a row of its own type, bit by bit. */
PORTABLE_FUNC void codec_copy_row(int32_t dtype, int64_t hidden, const void *row, void *payload)
{
    if (dtype == CODEC_F32)
        for (int64_t i = 0; i < hidden; i++)
            ((number_f32 *)payload)[i] = ((const number_f32 *)row)[i];
    else
        for (int64_t i = 0; i < hidden; i++)
            ((number_u16 *)payload)[i] = ((const number_u16 *)row)[i];
}
PORTABLE_FUNC uint32_t codec_amax(int32_t dtype, const void *row, int64_t begin, int64_t end)
{
    uint32_t amax = 0;
    for (int64_t i = begin; i < end; i++) {
        uint32_t magnitude = number_magnitude(codec_load(dtype, row, i));
        if (magnitude > amax) amax = magnitude;
    }
    return amax;
}
/* Stores the scale of group g among the row's scales. UE8M0 needs words that are 0 before group 0. */
PORTABLE_FUNC void codec_store_scale(int32_t format, void *scales, int64_t g, float scale)
{
    if (codec_facts_of(format).scales == CODEC_SCALES_UE8M0)
        ((number_u32 *)scales)[g / 4] |= codec_scale_exponent(scale) << (g % 4 * 8);
    else
        ((number_f32 *)scales)[g] = scale;
}
PORTABLE_FUNC float codec_load_scale(int32_t format, const void *scales, int64_t g)
{
    if (codec_facts_of(format).scales != CODEC_SCALES_UE8M0) return ((const number_f32 *)scales)[g];
    return codec_scale_of_exponent(((const number_u32 *)scales)[g / 4] >> (g % 4 * 8) & 0xffu);
}
PORTABLE_FUNC void codec_encode_group(int32_t format, int32_t dtype, const void *row, int64_t g, uint8_t *payload,
                                      void *scales)
{
    int64_t begin = g * CODEC_GROUP, end = begin + CODEC_GROUP;
    codec_scaling scaling = codec_scaling_of(format, codec_amax(dtype, row, begin, end));
    for (int64_t i = begin; i < end; i++)
        payload[i] = (uint8_t)codec_quantise(format, codec_load(dtype, row, i), scaling.factor);
    codec_store_scale(format, scales, g, scaling.scale);
}

/* ---- rows of LogFMT ---------------------------------------------------------------------------------------------- */

/* Returns the range of group g of a row. */
PORTABLE_FUNC logfmt_range codec_log_range(int32_t dtype, const void *row, int64_t g)
{
    uint32_t least_below = 0xffffffffu, most = codec_amax(dtype, row, g * CODEC_GROUP, (g + 1) * CODEC_GROUP);
    for (int64_t i = g * CODEC_GROUP; i < (g + 1) * CODEC_GROUP; i++) {
        uint32_t below = number_magnitude(codec_load(dtype, row, i)) - 1;
        if (below < least_below) least_below = below;
    }
    return logfmt_range_of(least_below, most);
}
/* Encodes four elements of a coded group; the first of them has number `first` in it. */
PORTABLE_FUNC void codec_encode_four(const logfmt_range *range, float steps_per_unit, const float values[4],
                                     int32_t first, uint8_t *bytes)
{
    uint32_t codes[4];
    for (int32_t i = 0; i < 4; i++) {
        codes[i] = logfmt_code_of(range, steps_per_unit, values[i]);
        bytes[first + i] = (uint8_t)codes[i];
    }
    bytes[LOGFMT_LOW_BYTES + first / 4] = logfmt_bits_above(codes[0], codes[1], codes[2], codes[3]);
}
/* Returns the bytes of the group. */
PORTABLE_FUNC int32_t codec_encode_log_group(int32_t dtype, const void *row, int64_t g, uint8_t *bytes,
                                             number_f32 *head)
{
    logfmt_range range = codec_log_range(dtype, row, g);
    head[0] = range.least;
    head[1] = range.most;
    if (logfmt_group_bytes(&range) == LOGFMT_BF16_BYTES) {
        for (int32_t i = 0; i < CODEC_GROUP; i++)
            codec_store(CODEC_BF16, bytes, i, codec_load(dtype, row, g * CODEC_GROUP + i));
        return LOGFMT_BF16_BYTES;
    }
    float steps_per_unit = logfmt_steps_per_unit(&range);
    for (int32_t first = 0; first < CODEC_GROUP; first += 4) {
        float values[4];
        for (int32_t i = 0; i < 4; i++)
            values[i] = codec_load(dtype, row, g * CODEC_GROUP + first + i);
        codec_encode_four(&range, steps_per_unit, values, first, bytes);
    }
    return LOGFMT_CODED_BYTES;
}
PORTABLE_FUNC int32_t codec_decode_log_group(const uint8_t *bytes, const number_f32 *head, float *out)
{
    logfmt_range range = logfmt_range_of_head(head[0], head[1]);
    if (logfmt_group_bytes(&range) == LOGFMT_BF16_BYTES) {
        for (int32_t i = 0; i < CODEC_GROUP; i++)
            out[i] = codec_load(CODEC_BF16, bytes, i);
        return LOGFMT_BF16_BYTES;
    }
    float units_per_step = logfmt_units_per_step(&range);
    for (int32_t i = 0; i < CODEC_GROUP; i++)
        out[i] = logfmt_value_of(&range, units_per_step, logfmt_load_code(bytes, i));
    return LOGFMT_CODED_BYTES;
}

/* ---- rows of NVFP4 ----------------------------------------------------------------------------------------------- */

/* Encodes block b of a row. Element 2 · i of it is in the lower half of byte i. Returns the bits of its scale. */
PORTABLE_FUNC uint32_t codec_encode_block(int32_t dtype, float global, const void *row, int64_t b, uint8_t *payload)
{
    const int64_t begin = b * NVFP4_BLOCK, end = begin + NVFP4_BLOCK;
    const uint32_t bits = nvfp4_scale_of(codec_amax(dtype, row, begin, end), global);
    const float scale = number_of_e4m3(bits);
    for (int64_t i = begin; i < end; i += 2) {
        const uint32_t low = nvfp4_code_of(codec_load(dtype, row, i), global, scale);
        payload[i / 2] = (uint8_t)(low | nvfp4_code_of(codec_load(dtype, row, i + 1), global, scale) << 4);
    }
    return bits;
}
/* Encodes a row of `dtype`. global: the caller's global scale. Returns the bytes of the payload. */
PORTABLE_FUNC int64_t codec_encode_nvfp4_row(int32_t dtype, int64_t hidden, float global, const void *row,
                                             void *payload, void *scales)
{
    const int64_t words = codec_scales(CODEC_NVFP4, hidden);
    for (int64_t w = 0; w < words; w++) {
        uint32_t word = 0;
        for (int64_t i = 0; i < 4; i++)
            word |= codec_encode_block(dtype, global, row, 4 * w + i, (uint8_t *)payload) << (8 * i);
        ((number_u32 *)scales)[w] = word;
    }
    return codec_row_bytes(CODEC_NVFP4, hidden);
}
/* Decodes a row to FP32. */
PORTABLE_FUNC void codec_decode_nvfp4_row(int64_t hidden, float global, const void *payload, const void *scales,
                                          float *out)
{
    for (int64_t i = 0; i < hidden; i++) {
        const int64_t b = i / NVFP4_BLOCK;
        const uint32_t bits = ((const number_u32 *)scales)[b / 4] >> (b % 4 * 8) & 0xffu;
        const uint32_t code = (uint32_t)((const uint8_t *)payload)[i / 2] >> (i % 2 * 4) & 15u;
        out[i] = nvfp4_value_of(code, global, number_of_e4m3(bits));
    }
}

/* ---- rows of all formats ----------------------------------------------------------------------------------------- */

/* Returns the bytes of an encoded row's payload. They are fewer than codec_row_bytes if groups of LogFMT are coded. */
PORTABLE_FUNC int64_t codec_payload_bytes(int32_t format, int64_t hidden, const void *scales)
{
    if (format != CODEC_LOGFMT) return codec_row_bytes(format, hidden);
    int64_t bytes = 0;
    for (int64_t g = 0; g < hidden / CODEC_GROUP; g++) {
        const number_f32 *head = (const number_f32 *)scales + 2 * g;
        logfmt_range range = logfmt_range_of_head(head[0], head[1]);
        bytes += logfmt_group_bytes(&range);
    }
    return bytes;
}

/* Encodes a row of `dtype` (CODEC_BF16, CODEC_F16 or CODEC_F32) to its payload and its scales, which are contiguous.
   scales may be NULL for formats without. The caller has checked codec_takes; row, payload and scales are aligned to
   their elements. Returns the bytes of the payload. A row of the format's own type is copied, another one is rounded
   once. NVFP4 has a function of its own. */
PORTABLE_FUNC int64_t codec_encode_row(int32_t format, int32_t dtype, int64_t hidden, const void *row, void *payload,
                                       void *scales)
{
    int32_t kind = codec_facts_of(format).scales;
    int64_t groups = hidden / CODEC_GROUP, bytes = 0;
    if (format == dtype) {
        codec_copy_row(dtype, hidden, row, payload);
    } else if (kind == CODEC_NO_SCALES) {
        for (int64_t i = 0; i < hidden; i++)
            codec_store(format, payload, i, codec_load(dtype, row, i));
    } else if (kind == CODEC_SCALES_HEADS) {
        for (int64_t g = 0; g < groups; g++)
            bytes += codec_encode_log_group(dtype, row, g, (uint8_t *)payload + bytes, (number_f32 *)scales + 2 * g);
        return bytes;
    } else {
        for (int64_t w = 0; kind == CODEC_SCALES_UE8M0 && w < codec_scales(format, hidden); w++)
            ((number_u32 *)scales)[w] = 0;
        for (int64_t g = 0; g < groups; g++)
            codec_encode_group(format, dtype, row, g, (uint8_t *)payload, scales);
    }
    return codec_row_bytes(format, hidden);
}
/* Decodes a row to FP32. */
PORTABLE_FUNC void codec_decode_row(int32_t format, int64_t hidden, const void *payload, const void *scales, float *out)
{
    int32_t kind = codec_facts_of(format).scales;
    const uint8_t *bytes = (const uint8_t *)payload;
    if (kind == CODEC_NO_SCALES)
        for (int64_t i = 0; i < hidden; i++)
            out[i] = codec_load(format, payload, i);
    else if (kind == CODEC_SCALES_HEADS)
        for (int64_t g = 0; g < hidden / CODEC_GROUP; g++)
            bytes += codec_decode_log_group(bytes, (const number_f32 *)scales + 2 * g, out + g * CODEC_GROUP);
    else
        for (int64_t i = 0; i < hidden; i++)
            out[i] = codec_dequantise(format, bytes[i], codec_load_scale(format, scales, i / CODEC_GROUP));
}

#endif
