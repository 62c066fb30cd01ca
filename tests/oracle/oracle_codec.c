/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, scales and codes, from their definitions. */
#include "oracle_codec.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7fffffffu : bits;
}
static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double oracle_e4m3_value(uint32_t code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7f) == 0x7f) return NAN;
    double magnitude = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction / 8.0, -6);
    return code & 0x80 ? -magnitude : magnitude;
}

uint32_t oracle_e4m3_nearest(double value)
{
    if (isnan(value)) return 0x7f;
    double magnitude = fabs(value);
    uint32_t best = 0;
    for (uint32_t code = 1; code < 0x7f; code++) {
        double gain = fabs(oracle_e4m3_value(best) - magnitude) - fabs(oracle_e4m3_value(code) - magnitude);
        if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
    }
    if (isinf(value)) best = 0x7e;
    return best | (signbit(value) ? 0x80 : 0);
}

static uint32_t int8_nearest(double value)
{
    if (isnan(value)) return 0;
    double whole = floor(value), rest = value - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0)) whole += 1;
    if (whole > 127) whole = 127;
    if (whole < -127) whole = -127;
    return (uint32_t)(int32_t)whole & 0xff;
}

static double element(oracle_type type, const void *row, int64_t i)
{
    return oracle_widen(type, oracle_load(type, row, i));
}

/* At least 1e-4; NaN where a number of the group is not finite. */
static double group_amax(oracle_type type, const void *row, int64_t begin)
{
    double amax = 1e-4f;
    for (int64_t i = begin; i < begin + ORACLE_GROUP; i++) {
        double magnitude = fabs(element(type, row, i));
        if (!isfinite(magnitude)) return NAN;
        if (magnitude > amax) amax = magnitude;
    }
    return amax;
}

static double power_above(double value)
{
    int exponent;
    double fraction = frexp(value, &exponent);
    return ldexp(1, fraction == 0.5 ? exponent - 1 : exponent);
}

static void scaling(oracle_payload payload, double amax, float *factor, float *scale)
{
    double most = payload == ORACLE_INT8 ? 127 : 448;
    *factor = (float)(most / amax);
    *scale = (float)(amax / most);
    if (payload != ORACLE_FP8_ROUND && payload != ORACLE_FP8_UE8M0) return;
    if (isnan(amax)) return;
    *scale = (float)power_above(*scale);
    *factor = (float)(1 / (double)*scale);
}

int64_t oracle_scale_words(oracle_payload payload, int64_t hidden)
{
    return payload == ORACLE_FP8_UE8M0 ? (hidden + 511) / 512 : hidden / ORACLE_GROUP;
}

static void keep_scale(oracle_payload payload, int64_t group, float scale, uint32_t *scales)
{
    int exponent;
    if (payload != ORACLE_FP8_UE8M0) {
        scales[group] = bits_of(scale);
        return;
    }
    if (isnan(scale))
        exponent = 128;
    else
        exponent = ilogb(scale);
    scales[group / 4] |= (uint32_t)(exponent + 127) << (8 * (group % 4));
}

void oracle_encode_row(oracle_payload payload, oracle_type type, int64_t hidden, const void *row, uint8_t *codes,
                       uint32_t *scales)
{
    memset(scales, 0, (size_t)oracle_scale_words(payload, hidden) * sizeof *scales);
    for (int64_t group = 0; group < hidden / ORACLE_GROUP; group++) {
        float factor, scale;
        scaling(payload, group_amax(type, row, group * ORACLE_GROUP), &factor, &scale);
        keep_scale(payload, group, scale, scales);
        for (int64_t i = group * ORACLE_GROUP; i < (group + 1) * ORACLE_GROUP; i++) {
            float scaled = (float)(element(type, row, i) * (double)factor);
            codes[i] = (uint8_t)(payload == ORACLE_INT8 ? int8_nearest(scaled) : oracle_e4m3_nearest(scaled));
        }
    }
}

uint32_t oracle_decode(oracle_payload payload, const uint8_t *codes, const uint32_t *scales, int64_t i)
{
    int64_t group = i / ORACLE_GROUP;
    double scale, value = payload == ORACLE_INT8 ? (double)(int8_t)codes[i] : oracle_e4m3_value(codes[i]);
    if (payload == ORACLE_FP8_UE8M0) {
        int exponent = (int)(scales[group / 4] >> (8 * (group % 4)) & 255);
        scale = exponent == 255 ? NAN : ldexp(1, exponent - 127);
    } else {
        scale = of_bits(scales[group]);
    }
    return bits_of((float)(value * scale));
}

/* ---- NVFP4 ------------------------------------------------------------------------------------------------------- */

double oracle_e2m1_value(uint32_t code)
{
    int exponent = code >> 1 & 3, fraction = code & 1;
    double magnitude = exponent ? ldexp(1 + fraction / 2.0, exponent - 1) : fraction / 2.0;
    return code & 8 ? -magnitude : magnitude;
}

uint32_t oracle_e2m1_nearest(double value)
{
    if (isnan(value)) return 0;
    double magnitude = fabs(value) > 6 ? 6 : fabs(value);
    uint32_t best = 0;
    for (uint32_t code = 1; code < 8; code++) {
        double gain = fabs(oracle_e2m1_value(best) - magnitude) - fabs(oracle_e2m1_value(code) - magnitude);
        if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
    }
    return best | (signbit(value) ? 8 : 0);
}

/* Infinity where a number of the block is not finite. */
static double block_amax(oracle_type type, const void *row, int64_t begin)
{
    double amax = 0;
    for (int64_t i = begin; i < begin + ORACLE_BLOCK; i++) {
        double magnitude = fabs(element(type, row, i));
        if (!isfinite(magnitude)) return INFINITY;
        if (magnitude > amax) amax = magnitude;
    }
    return amax;
}

void oracle_encode_nvfp4_row(oracle_type type, int64_t hidden, float global, const void *row, uint8_t *codes,
                             uint8_t *scales)
{
    memset(codes, 0, (size_t)hidden / 2);
    for (int64_t block = 0; block < hidden / ORACLE_BLOCK; block++) {
        const double amax = block_amax(type, row, block * ORACLE_BLOCK);
        const float product = (float)(global * amax), wanted = (float)(product / 6.0);
        scales[block] = (uint8_t)(isinf(amax) ? 0x7f : oracle_e4m3_nearest(wanted));
        const double scale = oracle_e4m3_value(scales[block]);
        for (int64_t i = block * ORACLE_BLOCK; i < (block + 1) * ORACLE_BLOCK && scale != 0; i++) {
            const float scaled = (float)(element(type, row, i) * (double)global);
            codes[i / 2] |= (uint8_t)(oracle_e2m1_nearest((float)(scaled / scale)) << i % 2 * 4);
        }
    }
}
