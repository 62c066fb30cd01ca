/* SPDX-License-Identifier: Apache-2.0 */
/* Names of formats, and rows coded from the definitions: slowly, one element at a time. */
#include "bench/low_latency/format.h"
#include <math.h>
#include <string.h>

#define GROUP      128 /* elements that share a scale */
#define LEAST_AMAX 1e-4f
#define BLOCK      16  /* elements that share a scale of NVFP4 */
#define TILE       128 /* rows whose scales lie together in NVFP4 */

const struct ll_format ll_formats[] = {
    {"bf16", EXPAR_LL_FORMAT_PLAIN, true, EXPAR_BF16, true, true},
    {"f16", EXPAR_LL_FORMAT_PLAIN, true, EXPAR_F16, true, true},
    {"f32", EXPAR_LL_FORMAT_PLAIN, true, EXPAR_F32, true, true},
    {"fp8", EXPAR_LL_FORMAT_FP8, false, 0, true, false},
    {"fp8_round", EXPAR_LL_FORMAT_FP8_ROUND, false, 0, true, false},
    {"fp8_ue8m0", EXPAR_LL_FORMAT_FP8_UE8M0, false, 0, true, false},
    {"int8", EXPAR_LL_FORMAT_INT8, false, 0, true, false},
    {"nvfp4", EXPAR_LL_FORMAT_NVFP4, false, 0, true, false},
    {"logfmt", EXPAR_LL_FORMAT_LOGFMT, false, 0, false, true},
};
const char ll_format_names[] = "bf16|f16|f32|fp8|fp8_round|fp8_ue8m0|int8|nvfp4|logfmt";

const struct ll_format *ll_format_plain(expar_dtype dtype)
{
    const struct ll_format *format = ll_formats;
    while (format->dtype != dtype)
        format++;
    return format;
}

size_t ll_format_row_bytes(const struct ll_format *format, expar_dtype dtype, int hidden)
{
    if (ll_format_is_nvfp4(format)) return (size_t)hidden / 2;
    return (size_t)hidden * (format->plain || format->combined ? expar_dtype_bytes(dtype) : 1);
}

int ll_format_scales(const struct ll_format *format, int hidden)
{
    if (format->plain || format->combined) return 0;
    if (ll_format_is_nvfp4(format)) return hidden / (4 * BLOCK);
    return format->wire == EXPAR_LL_FORMAT_FP8_UE8M0 ? (hidden + 4 * GROUP - 1) / (4 * GROUP) : hidden / GROUP;
}

/* ---- where scales stand ------------------------------------------------------------------------------------------ */

static int64_t tiles_of(int64_t rows)
{
    return (rows + TILE - 1) / TILE;
}

int64_t ll_format_scale_words(const struct ll_format *format, int words, int64_t rows)
{
    return words * (ll_format_is_nvfp4(format) ? tiles_of(rows) * TILE : rows);
}

int64_t ll_format_scale_at(const struct ll_format *format, int words, int64_t row)
{
    if (!ll_format_is_nvfp4(format)) return row;
    return row / TILE * words * TILE + row % 32 * 4 + row % TILE / 32;
}

int64_t ll_format_scale_stride(const struct ll_format *format, int64_t rows)
{
    return ll_format_is_nvfp4(format) ? TILE : rows;
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

/* Returns the number that e4m3_of has made of a value that is not negative. */
static float e4m3_value(uint8_t bits)
{
    const int exponent = bits >> 3, eighths = bits & 7;
    return exponent ? ldexpf((float)(8 + eighths), exponent - 10) : ldexpf((float)eighths, -9);
}

/* Returns the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, ties to the even code, with the sign in bit 3. */
static uint8_t e2m1_of(float value)
{
    const float m = fabsf(value);
    const int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
    return (uint8_t)(code | (signbit(value) ? 8 : 0));
}

static float power_of_two_above(float value)
{
    int exponent;
    return ldexpf(1.0f, frexpf(value, &exponent) == 0.5f ? exponent - 1 : exponent);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static float amax_of(expar_dtype dtype, const void *row, int begin, int end, float least)
{
    float amax = least;
    for (int j = begin; j < end; j++) {
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

/* The rows of a benchmark are finite. */
static void encode_nvfp4(expar_dtype dtype, int hidden, const void *row, uint8_t *codes, uint8_t *scales)
{
    for (int block = 0; block < hidden / BLOCK; block++) {
        const int begin = block * BLOCK;
        scales[block] = e4m3_of(LL_NVFP4_GLOBAL * amax_of(dtype, row, begin, begin + BLOCK, 0.0f) / 6.0f);
        const float scale = e4m3_value(scales[block]);
        for (int j = begin; j < begin + BLOCK; j++) {
            const uint8_t code = scale == 0.0f ? 0 : e2m1_of(ll_element(dtype, row, j) * LL_NVFP4_GLOBAL / scale);
            codes[j / 2] = j % 2 ? (uint8_t)(codes[j / 2] | code << 4) : code;
        }
    }
}

void ll_format_encode(const struct ll_format *format, expar_dtype dtype, int hidden, const void *row, void *coded)
{
    const size_t row_bytes = ll_format_row_bytes(format, dtype, hidden);
    uint8_t *codes = coded, *scales = codes + row_bytes;
    if (format->plain) {
        memcpy(coded, row, row_bytes);
        return;
    }
    if (ll_format_is_nvfp4(format)) {
        encode_nvfp4(dtype, hidden, row, codes, scales);
        return;
    }
    memset(scales, 0, (size_t)ll_format_scales(format, hidden) * sizeof(uint32_t));
    for (int begin = 0; begin < hidden; begin += GROUP) {
        float scale;
        const float factor = group_factor(format->wire, amax_of(dtype, row, begin, begin + GROUP, LEAST_AMAX), &scale);
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
