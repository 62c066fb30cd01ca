/* SPDX-License-Identifier: Apache-2.0 */
/* The codec's functions on vectors. The including file says what a vector is: LANES elements in `lanes_f32` and
 * `lanes_u32`, LANES_PART functions of their instruction set, and the operations that are no operators. Results are
 * rounded as in proto/codec; the one sum that is fused here has an exact product. */
#ifndef EXPAR_EXEC_CPU_CORE_ENCODE_LANES_H
#define EXPAR_EXEC_CPU_CORE_ENCODE_LANES_H

LANES_PART lanes_f32 lanes_load(int32_t dtype, const void *group, int32_t i)
{
    if (dtype == CODEC_F32) return lanes_load_f32((const float *)group + i);
    if (dtype == CODEC_F16) return lanes_load_f16((const uint16_t *)group + i);
    return (lanes_f32)(lanes_load_u16((const uint16_t *)group + i) << 16);
}

/* Like number_to_e4m3 for values that do not round beyond 448. The step that is added there, 2^20 · 2^E and some of its
   lowest bits, is a multiple of 2^E. So it can be added in the same rounding as the sum. */
LANES_PART lanes_u32 lanes_to_e4m3(lanes_f32 value)
{
    const uint32_t least = 121u << 23, less = 0x10000u - (least >> 20);
    const lanes_u32 bits = (lanes_u32)value, magnitude = bits & 0x7fffffffu;
    const lanes_u32 exponent = lanes_larger(bits & NUMBER_INFINITY, lanes_all(least));
    const lanes_f32 steps = (lanes_f32)lanes_all((147u << 23) + less);
    const lanes_u32 code = (lanes_u32)lanes_multiply_add((lanes_f32)exponent, steps, (lanes_f32)magnitude);
    return lanes_choose(lanes_all(0x7fu), code + (exponent >> 20), bits >> 24);
}

LANES_PART void lanes_e4m3(int32_t dtype, const void *group, float factor, uint8_t *payload)
{
    const lanes_f32 factors = (lanes_f32)lanes_all(number_bits(factor));
    for (int32_t i = 0; i < CODEC_GROUP; i += 4 * LANES) {
        lanes_u32 codes[4];
        for (int32_t j = 0; j < 4; j++)
            codes[j] = lanes_to_e4m3(lanes_load(dtype, group, i + j * LANES) * factors);
        lanes_store_bytes(payload + i, codes);
    }
}

/* Like number_to_i8_within. */
LANES_PART void lanes_i8(int32_t dtype, const void *group, float factor, uint8_t *payload)
{
    const lanes_f32 factors = (lanes_f32)lanes_all(number_bits(factor));
    const lanes_f32 round = (lanes_f32)lanes_all(number_bits(12582912.0f));
    for (int32_t i = 0; i < CODEC_GROUP; i += 4 * LANES) {
        lanes_u32 codes[4];
        for (int32_t j = 0; j < 4; j++)
            codes[j] = (lanes_u32)(lanes_load(dtype, group, i + j * LANES) * factors + round) & 0xffu;
        lanes_store_bytes(payload + i, codes);
    }
}

#define LANES_ADD_TERM(coefficient) sum = sum * z + (coefficient);

/* Like logfmt_above, but the whole part of the least logarithm is taken off the exponent at once. */
LANES_PART lanes_f32 lanes_log_above(const logfmt_range *range, lanes_u32 magnitude)
{
    const uint32_t root_half = 0x3f3504f3u;
    const lanes_u32 beyond = magnitude - (root_half + ((uint32_t)range->start.exponent << 23));
    const lanes_f32 z = (lanes_f32)((beyond & 0x7fffffu) + root_half) - 1.0f;
    lanes_f32 sum = (lanes_f32)lanes_all(number_bits(LOGFMT_LOG_FIRST));
    LOGFMT_LOG_TERMS(LANES_ADD_TERM)
    return lanes_of_integers((lanes_i32)beyond >> 23) + (sum * z - range->start.fraction);
}

/* Like logfmt_code_of. */
LANES_PART lanes_u32 lanes_log_code(const logfmt_range *range, float steps_per_unit, lanes_f32 value)
{
    const lanes_u32 bits = (lanes_u32)value, magnitude = bits & 0x7fffffffu;
    const lanes_u32 raised = lanes_larger(magnitude, lanes_all(number_bits(range->least)));
    const lanes_u32 code = lanes_nearest(lanes_log_above(range, raised) * steps_per_unit) + 1u;
    return lanes_unless_zero(magnitude, code) | (bits >> 22 & 0x200u);
}

/* Stores codes of 4 · LANES elements: their low bytes, and the upper bits of four elements in each byte. */
LANES_PART void lanes_store_codes(uint8_t *low, uint8_t *above, const lanes_u32 codes[4])
{
    lanes_u32 lows[4], aboves[4];
    for (int32_t j = 0; j < 4; j++) {
        lows[j] = codes[j] & 0xffu;
        aboves[j] = codes[j] >> 8;
    }
    lanes_store_bytes(low, lows);
    lanes_store_quads(above, aboves);
}

LANES_PART void lanes_log(int32_t dtype, const void *group, const logfmt_range *range, uint8_t *bytes)
{
    const logfmt_range known = *range;
    const float steps_per_unit = logfmt_steps_per_unit(&known);
    for (int32_t i = 0; i < CODEC_GROUP; i += 4 * LANES) {
        lanes_u32 codes[4];
        for (int32_t j = 0; j < 4; j++)
            codes[j] = lanes_log_code(&known, steps_per_unit, lanes_load(dtype, group, i + j * LANES));
        lanes_store_codes(bytes + i, bytes + LOGFMT_LOW_BYTES + i / 4, codes);
    }
}

/* ---- a table of them --------------------------------------------------------------------------------------------- */

#define LANES_DEFINE_CODES(name, dtype)                                                                                \
    LANES_FUNC static void lanes_e4m3_##name(const void *group, float factor, uint8_t *payload)                        \
    {                                                                                                                  \
        lanes_e4m3(dtype, group, factor, payload);                                                                     \
    }                                                                                                                  \
    LANES_FUNC static void lanes_i8_##name(const void *group, float factor, uint8_t *payload)                          \
    {                                                                                                                  \
        lanes_i8(dtype, group, factor, payload);                                                                       \
    }
#define LANES_DEFINE_LOG(name, dtype)                                                                                  \
    LANES_FUNC static void lanes_log_##name(const void *group, const logfmt_range *range, uint8_t *bytes)              \
    {                                                                                                                  \
        lanes_log(dtype, group, range, bytes);                                                                         \
    }

#define LANES_TABLE(table)                                                                                             \
    LANES_DEFINE_CODES(f16, CODEC_F16)                                                                                 \
    LANES_DEFINE_CODES(f32, CODEC_F32)                                                                                 \
    LANES_DEFINE_LOG(bf16, CODEC_BF16)                                                                                 \
    LANES_DEFINE_LOG(f16, CODEC_F16)                                                                                   \
    LANES_DEFINE_LOG(f32, CODEC_F32)                                                                                   \
    const encode_wide table = {                                                                                        \
        .e4m3 = {[CODEC_F16] = lanes_e4m3_f16, [CODEC_F32] = lanes_e4m3_f32},                                          \
        .i8 = {[CODEC_F16] = lanes_i8_f16, [CODEC_F32] = lanes_i8_f32},                                                \
        .log = {[CODEC_BF16] = lanes_log_bf16, [CODEC_F16] = lanes_log_f16, [CODEC_F32] = lanes_log_f32}};

#endif
