/* SPDX-License-Identifier: Apache-2.0 */
/* Names of formats, and rows coded from the definitions: slowly, one element at a time. */
#include "bench/low_latency/format.h"
#include <math.h>
#include <string.h>

#define GROUP      128 /* elements that share a scale */
#define LEAST_AMAX 1e-4f

const struct ll_format ll_formats[] = {
    {"bf16", EXPAR_LL_FORMAT_PLAIN, true, EXPAR_BF16, true, true},
    {"f16", EXPAR_LL_FORMAT_PLAIN, true, EXPAR_F16, true, true},
    {"f32", EXPAR_LL_FORMAT_PLAIN, true, EXPAR_F32, true, true},
    {"fp8", EXPAR_LL_FORMAT_FP8, false, 0, true, false},
    {"fp8_round", EXPAR_LL_FORMAT_FP8_ROUND, false, 0, true, false},
    {"fp8_ue8m0", EXPAR_LL_FORMAT_FP8_UE8M0, false, 0, true, false},
    {"int8", EXPAR_LL_FORMAT_INT8, false, 0, true, false},
    {"logfmt", EXPAR_LL_FORMAT_LOGFMT, false, 0, false, true},
};
const char ll_format_names[] = "bf16|f16|f32|fp8|fp8_round|fp8_ue8m0|int8|logfmt";

const struct ll_format *ll_format_plain(expar_dtype dtype)
{
    const struct ll_format *format = ll_formats;
    while (format->dtype != dtype)
        format++;
    return format;
}

size_t ll_format_row_bytes(const struct ll_format *format, expar_dtype dtype, int hidden)
{
    return (size_t)hidden * (format->plain || format->combined ? expar_dtype_bytes(dtype) : 1);
}

int ll_format_scales(const struct ll_format *format, int hidden)
{
    if (format->plain || format->combined) return 0;
    return format->wire == EXPAR_LL_FORMAT_FP8_UE8M0 ? (hidden + 4 * GROUP - 1) / (4 * GROUP) : hidden / GROUP;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float f16_of(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float magnitude = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

float ll_element(expar_dtype dtype, const void *row, int j)
{
    if (dtype == EXPAR_F32) return ((const float *)row)[j];
    const uint16_t half = ((const uint16_t *)row)[j];
    return dtype == EXPAR_BF16 ? float_of((uint32_t)half << 16) : f16_of(half);
}

/* Returns the nearest E4M3 number, ties to even, saturating at 448. Below 2^-6 the numbers are 2^-9 apart; above, there
   are 8 in each binade. */
static uint8_t e4m3_of(float value)
{
    const uint8_t sign = value < 0 ? 0x80 : 0;
    const float magnitude = fabsf(value);
    int exponent;
    if (magnitude >= 448.0f) return sign | 0x7e;
    if (magnitude < 0x1p-6f) return sign | (uint8_t)rintf(magnitude * 512.0f);
    const int eighths = (int)rintf(frexpf(magnitude, &exponent) * 16.0f); /* 8 to 16; 16 carries */
    return sign | (uint8_t)(((exponent + 6) << 3) + eighths - 8);
}

static int8_t int8_of(float value)
{
    const float whole = rintf(value);
    return (int8_t)(whole > 127.0f ? 127.0f : whole < -127.0f ? -127.0f : whole);
}

static float power_of_two_above(float value)
{
    int exponent;
    return ldexpf(1.0f, frexpf(value, &exponent) == 0.5f ? exponent - 1 : exponent);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static float group_amax(expar_dtype dtype, const void *row, int begin)
{
    float amax = LEAST_AMAX;
    for (int j = begin; j < begin + GROUP; j++) {
        const float size = fabsf(ll_element(dtype, row, j));
        amax = size > amax ? size : amax; /* GCC 12 does not compile this with fmaxf for AArch64 */
    }
    return amax;
}

/* Returns the factor for the elements, and their scale. */
static float group_factor(expar_ll_format wire, float amax, float *scale)
{
    const float most = wire == EXPAR_LL_FORMAT_INT8 ? 127.0f : 448.0f;
    *scale = amax / most;
    if (wire == EXPAR_LL_FORMAT_INT8 || wire == EXPAR_LL_FORMAT_FP8) return most / amax;
    *scale = power_of_two_above(*scale);
    return 1.0f / *scale; /* exact */
}

void ll_format_encode(const struct ll_format *format, expar_dtype dtype, int hidden, const void *row, void *coded)
{
    const size_t row_bytes = ll_format_row_bytes(format, dtype, hidden);
    uint8_t *codes = coded, *scales = codes + row_bytes;
    if (format->plain) {
        memcpy(coded, row, row_bytes);
        return;
    }
    memset(scales, 0, (size_t)ll_format_scales(format, hidden) * sizeof(uint32_t));
    for (int begin = 0; begin < hidden; begin += GROUP) {
        float scale;
        const float factor = group_factor(format->wire, group_amax(dtype, row, begin), &scale);
        for (int j = begin; j < begin + GROUP; j++) {
            const float value = ll_element(dtype, row, j) * factor;
            codes[j] = format->wire == EXPAR_LL_FORMAT_INT8 ? (uint8_t)int8_of(value) : e4m3_of(value);
        }
        if (format->wire == EXPAR_LL_FORMAT_FP8_UE8M0)
            scales[begin / GROUP] = (uint8_t)(ilogbf(scale) + 127);
        else
            memcpy(scales + (size_t)(begin / GROUP) * sizeof scale, &scale, sizeof scale);
    }
}
