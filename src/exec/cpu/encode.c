/* SPDX-License-Identifier: Apache-2.0 */
/* Whole rows by the codec (exec/codec/codec.h): its own functions, with format and type known to the compiler, which
 * makes vectors of the loops; cloned for the instruction sets named below. So the bytes are the same. */
#include "exec/codec/codec.h"
#include "exec/cpu/cpu.h"

#include <string.h>

/* Sanitizers instrument code that runs before they are ready to resolve clones. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTOR_CLONES
#endif

#define INLINE static inline __attribute__((always_inline))

/* The largest magnitude of a group, as bits of its type: of all three they are ordered as integers. */
INLINE uint32_t group_amax_halves(const uint16_t *group)
{
    uint16_t amax = 0;
    for (int32_t i = 0; i < CODEC_GROUP; i++) {
        uint16_t magnitude = group[i] & 0x7fffu;
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax;
}

INLINE uint32_t group_amax(int32_t dtype, const void *row, int64_t begin)
{
    if (dtype == CODEC_F32) return codec_amax(dtype, row, begin, begin + CODEC_GROUP);
    uint32_t half = group_amax_halves((const uint16_t *)row + begin);
    return number_bits(dtype == CODEC_BF16 ? number_of_bf16(half) : number_of_f16(half));
}

/* code_format: CODEC_FP8 or CODEC_INT8, whichever codes the format has. */
INLINE void encode_groups(int32_t format, int32_t code_format, int32_t dtype, int64_t hidden, const void *row,
                          uint8_t *restrict payload, void *scales)
{
    for (int64_t begin = 0; begin < hidden; begin += CODEC_GROUP) {
        codec_scaling scaling = codec_scaling_of(format, group_amax(dtype, row, begin));
        for (int64_t i = begin; i < begin + CODEC_GROUP; i++)
            payload[i] = (uint8_t)codec_quantise(code_format, codec_load(dtype, row, i), scaling.factor);
        codec_store_scale(format, scales, begin / CODEC_GROUP, scaling.scale);
    }
}

#define DEFINE_ENCODE(name, code_format, dtype)                                                                        \
    VECTOR_CLONES static void encode_##name(int32_t format, int64_t hidden, const void *row, uint8_t *payload,         \
                                            void *scales)                                                              \
    {                                                                                                                  \
        encode_groups(format, code_format, dtype, hidden, row, payload, scales);                                       \
    }

DEFINE_ENCODE(fp8_bf16, CODEC_FP8, CODEC_BF16)
DEFINE_ENCODE(fp8_f16, CODEC_FP8, CODEC_F16)
DEFINE_ENCODE(fp8_f32, CODEC_FP8, CODEC_F32)
DEFINE_ENCODE(int8_bf16, CODEC_INT8, CODEC_BF16)
DEFINE_ENCODE(int8_f16, CODEC_INT8, CODEC_F16)
DEFINE_ENCODE(int8_f32, CODEC_INT8, CODEC_F32)

typedef void encode_function(int32_t format, int64_t hidden, const void *row, uint8_t *payload, void *scales);

int64_t cpu_encode_row(int32_t format, int32_t dtype, int64_t hidden, const void *row, void *payload, void *scales)
{
    /* By codes, and by values of expar_dtype. */
    static encode_function *const functions[2][4] = {{NULL, encode_fp8_bf16, encode_fp8_f16, encode_fp8_f32},
                                                     {NULL, encode_int8_bf16, encode_int8_f16, encode_int8_f32}};
    int64_t bytes = codec_row_bytes(format, hidden);
    if (format == dtype) {
        memcpy(payload, row, (size_t)bytes);
        return bytes;
    }
    if (codec_facts_of(format).scales == CODEC_NO_SCALES)
        return codec_encode_row(format, dtype, hidden, row, payload, scales);
    if (codec_facts_of(format).scales == CODEC_SCALES_UE8M0)
        memset(scales, 0, (size_t)codec_scale_bytes(format, hidden));
    functions[format == CODEC_INT8][dtype](format, hidden, row, payload, scales);
    return bytes;
}

/* ---- the way back ------------------------------------------------------------------------------------------------ */

INLINE void decode_groups(int32_t format, int32_t code_format, int64_t hidden, const uint8_t *payload,
                          const void *scales, float *restrict out)
{
    for (int64_t begin = 0; begin < hidden; begin += CODEC_GROUP) {
        float scale = codec_load_scale(format, scales, begin / CODEC_GROUP);
        for (int64_t i = begin; i < begin + CODEC_GROUP; i++)
            out[i] = codec_dequantise(code_format, payload[i], scale);
    }
}

VECTOR_CLONES static void decode_fp8(int32_t format, int64_t hidden, const uint8_t *payload, const void *scales,
                                     float *out)
{
    decode_groups(format, CODEC_FP8, hidden, payload, scales, out);
}
VECTOR_CLONES static void decode_int8(int64_t hidden, const uint8_t *payload, const void *scales, float *out)
{
    decode_groups(CODEC_INT8, CODEC_INT8, hidden, payload, scales, out);
}
VECTOR_CLONES static void decode_bf16(int64_t hidden, const void *payload, float *restrict out)
{
    for (int64_t i = 0; i < hidden; i++)
        out[i] = codec_load(CODEC_BF16, payload, i);
}
VECTOR_CLONES static void decode_f16(int64_t hidden, const void *payload, float *restrict out)
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
    else if (format == CODEC_INT8)
        decode_int8(hidden, payload, scales, out);
    else
        decode_fp8(format, hidden, payload, scales, out);
}
