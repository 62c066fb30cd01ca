/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of LogFMT: the codec's functions, in loops over all elements of a group, which the compiler vectorises. Codes
 * are made first, then packed. */
#include "exec/cpu/core/encode_log.h"
#include "exec/cpu/core/clones.h"
#include "exec/cpu/core/encode_wide.h"

/* ---- there ------------------------------------------------------------------------------------------------------- */

/* Codes of four elements in one word, the first one lowest. */
typedef uint64_t __attribute__((may_alias)) four_codes;

LOOP_PART void pack_codes(const uint16_t codes[CODEC_GROUP], uint8_t *restrict bytes)
{
    for (int32_t i = 0; i < CODEC_GROUP; i++)
        bytes[i] = (uint8_t)codes[i];
    const four_codes *fours = (const four_codes *)codes;
    for (int32_t i = 0; i < CODEC_GROUP / 4; i++) {
        uint64_t above = fours[i] >> 8 & 0x0003000300030003u;
        bytes[LOGFMT_LOW_BYTES + i] = (uint8_t)(above | above >> 14 | above >> 28 | above >> 42);
    }
}

/* Magnitudes of both narrow types are ordered as integers. If no element counts, least is 0, since no number has the
   bits below it. */
LOOP_PART logfmt_range group_range_halves(int32_t dtype, const number_u16 *group)
{
    uint16_t least_below = 0xffffu, most = 0;
    for (int32_t i = 0; i < CODEC_GROUP; i++) {
        uint16_t magnitude = group[i] & 0x7fffu, below = (uint16_t)(magnitude - 1);
        most = magnitude > most ? magnitude : most;
        least_below = below < least_below ? below : least_below;
    }
    uint16_t least = (uint16_t)(least_below + 1);
    return logfmt_range_of(number_bits(codec_load(dtype, &least, 0)) - 1, number_bits(codec_load(dtype, &most, 0)));
}

/* Like codec_log_range. */
LOOP_PART logfmt_range group_range(int32_t dtype, const void *row, int64_t begin)
{
    if (dtype != CODEC_F32) return group_range_halves(dtype, (const number_u16 *)row + begin);
    uint32_t least_below = 0xffffffffu, most = 0;
    for (int32_t i = 0; i < CODEC_GROUP; i++) {
        uint32_t magnitude = number_magnitude(codec_load(dtype, row, begin + i)), below = magnitude - 1;
        most = magnitude > most ? magnitude : most;
        least_below = below < least_below ? below : least_below;
    }
    return logfmt_range_of(least_below, most);
}

LOOP_PART void encode_logs(int32_t dtype, const void *row, int64_t begin, const logfmt_range *range, uint8_t *bytes)
{
    _Alignas(64) uint16_t codes[CODEC_GROUP];
    const logfmt_range known = *range;
    float steps_per_unit = logfmt_steps_per_unit(&known);
    for (int32_t i = 0; i < CODEC_GROUP; i++)
        codes[i] = (uint16_t)logfmt_code_of(&known, steps_per_unit, codec_load(dtype, row, begin + i));
    pack_codes(codes, bytes);
}

/* Uses hand-written code if the processor can run it. */
LOOP_PART void encode_log_group(const encode_wide *wide, int32_t dtype, const void *row, int64_t begin,
                                const logfmt_range *range, uint8_t *bytes)
{
    const void *group = (const uint8_t *)row + begin * (dtype == CODEC_F32 ? 4 : 2);
    if (logfmt_group_bytes(range) == LOGFMT_BF16_BYTES)
        for (int32_t i = 0; i < CODEC_GROUP; i++)
            codec_store(CODEC_BF16, bytes, i, codec_load(dtype, group, i));
    else if (wide)
        wide->log[dtype](group, range, bytes);
    else
        encode_logs(dtype, row, begin, range, bytes);
}

/* So many ranges are found before the first group is coded. One group alone waits long for its logarithms; several wait
   at the same time. */
#define RANGES_AHEAD 8

LOOP_PART int64_t encode_log_groups(int32_t dtype, int64_t hidden, const void *row, uint8_t *payload, number_f32 *heads)
{
    const encode_wide *wide = encode_wide_here();
    const int64_t groups = hidden / CODEC_GROUP;
    int64_t bytes = 0;
    for (int64_t first = 0; first < groups; first += RANGES_AHEAD) {
        const int64_t count = groups - first < RANGES_AHEAD ? groups - first : RANGES_AHEAD;
        logfmt_range ranges[RANGES_AHEAD];
        for (int64_t g = 0; g < count; g++) {
            ranges[g] = group_range(dtype, row, (first + g) * CODEC_GROUP);
            *heads++ = ranges[g].least;
            *heads++ = ranges[g].most;
        }
        for (int64_t g = 0; g < count; g++) {
            encode_log_group(wide, dtype, row, (first + g) * CODEC_GROUP, &ranges[g], payload + bytes);
            bytes += logfmt_group_bytes(&ranges[g]);
        }
    }
    return bytes;
}

#define DEFINE_ENCODE_LOG(name, dtype)                                                                                 \
    LOOP_CLONES static int64_t encode_log_##name(int64_t hidden, const void *row, uint8_t *payload, number_f32 *heads) \
    {                                                                                                                  \
        return encode_log_groups(dtype, hidden, row, payload, heads);                                                  \
    }

DEFINE_ENCODE_LOG(bf16, CODEC_BF16)
DEFINE_ENCODE_LOG(f16, CODEC_F16)
DEFINE_ENCODE_LOG(f32, CODEC_F32)

int64_t cpu_encode_log_row(int32_t dtype, int64_t hidden, const void *row, uint8_t *payload, number_f32 *heads)
{
    if (dtype == CODEC_BF16) return encode_log_bf16(hidden, row, payload, heads);
    if (dtype == CODEC_F16) return encode_log_f16(hidden, row, payload, heads);
    return encode_log_f32(hidden, row, payload, heads);
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

LOOP_PART void unpack_codes(const uint8_t *restrict bytes, uint16_t codes[CODEC_GROUP])
{
    four_codes *fours = (four_codes *)codes;
    for (int32_t i = 0; i < CODEC_GROUP / 4; i++) {
        uint64_t above = bytes[LOGFMT_LOW_BYTES + i];
        fours[i] = ((above | above << 14 | above << 28 | above << 42) & 0x0003000300030003u) << 8;
    }
    for (int32_t i = 0; i < CODEC_GROUP; i++)
        codes[i] = (uint16_t)(codes[i] | bytes[i]);
}

LOOP_PART void decode_logs(const uint8_t *bytes, const logfmt_range *range, float *restrict out)
{
    _Alignas(64) uint16_t codes[CODEC_GROUP];
    const logfmt_range known = *range;
    float units_per_step = logfmt_units_per_step(&known);
    unpack_codes(bytes, codes);
    for (int32_t i = 0; i < CODEC_GROUP; i++)
        out[i] = logfmt_value_of(&known, units_per_step, codes[i]);
}

LOOP_CLONES void cpu_decode_log_row(int64_t hidden, const uint8_t *payload, const number_f32 *heads, float *out)
{
    for (int64_t g = 0; g < hidden / CODEC_GROUP; g++) {
        logfmt_range range = logfmt_range_of_head(heads[2 * g], heads[2 * g + 1]);
        if (logfmt_group_bytes(&range) == LOGFMT_CODED_BYTES)
            decode_logs(payload, &range, out + g * CODEC_GROUP);
        else
            for (int32_t i = 0; i < CODEC_GROUP; i++)
                out[g * CODEC_GROUP + i] = codec_load(CODEC_BF16, payload, i);
        payload += logfmt_group_bytes(&range);
    }
}
