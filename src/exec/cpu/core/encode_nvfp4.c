/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of NVFP4 in vectors: the bytes of codec_encode_nvfp4_row, with the type known to the compiler. */
#include "exec/cpu/core/clones.h"
#include "exec/cpu/core/encode.h"

/* Encodes eight elements, the first one in the lowest four bits. */
LOOP_PART uint32_t pack_codes_of_eight(const uint32_t codes[8])
{
    uint32_t word = 0;
    for (int32_t i = 0; i < 8; i++)
        word |= codes[i] << 4 * i;
    return word;
}

/* Returns the bits of the block's scale. */
LOOP_PART uint32_t encode_block(int32_t dtype, float global, const void *row, int64_t b, number_u32 *payload)
{
    const int64_t begin = b * NVFP4_BLOCK;
    const uint32_t bits = nvfp4_scale_of(codec_amax(dtype, row, begin, begin + NVFP4_BLOCK), global);
    const float scale = number_of_e4m3(bits);
    uint32_t codes[NVFP4_BLOCK];
    for (int32_t i = 0; i < NVFP4_BLOCK; i++)
        codes[i] = nvfp4_code_of(codec_load(dtype, row, begin + i), global, scale);
    payload[2 * b] = pack_codes_of_eight(codes);
    payload[2 * b + 1] = pack_codes_of_eight(codes + 8);
    return bits;
}

LOOP_PART void encode_blocks(int32_t dtype, int64_t hidden, float global, const void *row, number_u32 *payload,
                             number_u32 *scales)
{
    for (int64_t w = 0; w < hidden / (4 * NVFP4_BLOCK); w++) {
        uint32_t word = 0;
        for (int32_t i = 0; i < 4; i++)
            word |= encode_block(dtype, global, row, 4 * w + i, payload) << 8 * i;
        scales[w] = word;
    }
}

#define DEFINE_ENCODE_BLOCKS(name, dtype)                                                                              \
    LOOP_CLONES static void encode_blocks_##name(int64_t hidden, float global, const void *row, number_u32 *payload,   \
                                                 number_u32 *scales)                                                   \
    {                                                                                                                  \
        encode_blocks(dtype, hidden, global, row, payload, scales);                                                    \
    }

DEFINE_ENCODE_BLOCKS(bf16, CODEC_BF16)
DEFINE_ENCODE_BLOCKS(f16, CODEC_F16)
DEFINE_ENCODE_BLOCKS(f32, CODEC_F32)

int64_t cpu_encode_nvfp4_row(int32_t dtype, int64_t hidden, float global, const void *row, void *payload, void *scales)
{
    if (dtype == CODEC_BF16)
        encode_blocks_bf16(hidden, global, row, payload, scales);
    else if (dtype == CODEC_F16)
        encode_blocks_f16(hidden, global, row, payload, scales);
    else
        encode_blocks_f32(hidden, global, row, payload, scales);
    return codec_row_bytes(CODEC_NVFP4, hidden);
}
