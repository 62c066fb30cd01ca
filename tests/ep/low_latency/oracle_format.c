/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's formats: a group's largest magnitude decides its scale, and each element goes to the nearest value.
   Products and quotients are FP32, each rounded to nearest even; contraction is off for this file. */
#include "ep/low_latency/oracle.h"
#include <math.h>
#include <string.h>

#define E4M3_LARGEST 0x7e
#define E4M3_NAN     0x7f
/* From a group's largest magnitude. */
#define LEAST_AMAX 1e-4f

/* S.EEEE.FFF: (-1)^S · 2^(E - 7) · 1.FFF; exponent 0: 2^-6 · 0.FFF; all ones: NaN. */
float llo_e4m3_widen(uint8_t bits)
{
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    if ((bits & 0x7f) == E4M3_NAN) return NAN;
    float magnitude = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return bits & 0x80 ? -magnitude : magnitude;
}

/* Codes ascend with magnitudes, so the nearest is one of two neighbours; doubles hold their distances exactly where the
   outcome is near. */
uint8_t llo_e4m3_round(float value)
{
    if (isnan(value)) return E4M3_NAN;
    uint8_t sign = signbit(value) ? 0x80 : 0, low = 0, high = E4M3_LARGEST;
    double magnitude = fabs((double)value);
    if (magnitude >= (double)llo_e4m3_widen(E4M3_LARGEST)) return sign | E4M3_LARGEST;
    while (high - low > 1) {
        uint8_t middle = (uint8_t)((low + high) / 2);
        if ((double)llo_e4m3_widen(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - (double)llo_e4m3_widen(low), above = (double)llo_e4m3_widen(high) - magnitude;
    bool up = above < below || (above == below && (low & 1));
    return sign | (up ? high : low);
}

/* To the nearest whole number, ties to even, and into ±127; NaN: 0. */
static int8_t round_int8(float value)
{
    if (isnan(value)) return 0;
    float whole = floorf(value), rest = value - whole;
    if (rest > 0.5f || (rest == 0.5f && fmodf(whole, 2.0f) != 0.0f)) whole += 1.0f;
    return (int8_t)(whole > 127.0f ? 127.0f : whole < -127.0f ? -127.0f : whole);
}

/* The values of the codes 0 to 7. */
static const float e2m1_values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

float llo_e2m1_widen(uint8_t bits)
{
    return bits & 8 ? -e2m1_values[bits & 7] : e2m1_values[bits & 7];
}

uint8_t llo_e2m1_round(float value)
{
    uint8_t nearest = 0;
    if (isnan(value)) return 0;
    const double magnitude = fmin(fabs((double)value), 6.0);
    for (uint8_t code = 1; code < 8; code++) {
        const double gain = fabs(e2m1_values[nearest] - magnitude) - fabs(e2m1_values[code] - magnitude);
        if (gain > 0 || (gain == 0 && code % 2 == 0)) nearest = code;
    }
    return signbit(value) ? nearest | 8 : nearest;
}

size_t llo_row_bytes(const llo_job *job)
{
    const size_t elements = (size_t)job->hidden;
    if (job->format == LLO_PLAIN) return elements * oracle_element_bytes(job->type);
    return job->format == LLO_NVFP4 ? elements / 2 : elements;
}

int32_t llo_num_scales(const llo_job *job)
{
    int32_t groups = job->hidden / LLO_GROUP;
    if (job->format == LLO_NVFP4) return job->hidden / (4 * LLO_BLOCK);
    return job->format == LLO_PLAIN ? 0 : job->format == LLO_FP8_UE8M0 ? (groups + 3) / 4 : groups;
}

static float element_of(const llo_job *job, const void *x, int64_t index)
{
    return oracle_widen(job->type, oracle_load(job->type, x, index));
}

/* NaN for a group that holds infinity or NaN. */
static float largest_magnitude(const llo_job *job, const void *x, int32_t group)
{
    float most = LEAST_AMAX;
    for (int32_t i = group * LLO_GROUP; i < (group + 1) * LLO_GROUP; i++) {
        float value = element_of(job, x, i);
        if (!isfinite(value)) return NAN;
        most = fmaxf(most, fabsf(value));
    }
    return most;
}

/* The least power of two that is not below the value. */
static float power_of_two_above(float value)
{
    int exponent;
    if (isnan(value)) return value;
    float fraction = frexpf(value, &exponent); /* in [1/2, 1) */
    return ldexpf(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

static void store_scale(const llo_job *job, uint32_t *scales, int32_t group, float scale)
{
    uint32_t bits = oracle_round(ORACLE_F32, scale);
    if (job->format == LLO_FP8_UE8M0)
        scales[group / 4] |= (bits >> 23) << group % 4 * 8;
    else
        scales[group] = bits;
}

static void quantise_group(const llo_job *job, const void *x, int32_t group, uint8_t *q, uint32_t *scales)
{
    const float top = job->format == LLO_INT8 ? 127.0f : 448.0f, amax = largest_magnitude(job, x, group);
    float scale = amax / top, factor = top / amax;
    if (job->format == LLO_FP8_ROUND || job->format == LLO_FP8_UE8M0) {
        scale = power_of_two_above(scale);
        factor = 1.0f / scale;
    }
    store_scale(job, scales, group, scale);
    for (int32_t i = group * LLO_GROUP; i < (group + 1) * LLO_GROUP; i++) {
        float value = element_of(job, x, i) * factor;
        q[i] = job->format == LLO_INT8 ? (uint8_t)round_int8(value) : llo_e4m3_round(value);
    }
}

/* A scale is that of the largest magnitude as 6, times the global scale, in E4M3. */
static void quantise_block(const llo_job *job, const void *x, int32_t block, uint8_t *q, uint32_t *scales)
{
    float amax = 0.0f;
    bool finite = true;
    for (int32_t i = block * LLO_BLOCK; i < (block + 1) * LLO_BLOCK; i++) {
        amax = fmaxf(amax, fabsf(element_of(job, x, i)));
        finite = finite && isfinite(element_of(job, x, i));
    }
    const float product = job->global_scale * amax;
    const uint8_t scale = finite ? llo_e4m3_round(product / 6.0f) : E4M3_NAN;
    scales[block / 4] |= (uint32_t)scale << block % 4 * 8;
    for (int32_t i = block * LLO_BLOCK; i < (block + 1) * LLO_BLOCK; i++) {
        const float scaled = element_of(job, x, i) * job->global_scale;
        const uint8_t code = finite && scale ? llo_e2m1_round(scaled / llo_e4m3_widen(scale)) : 0;
        q[i / 2] = (uint8_t)(i % 2 ? q[i / 2] | code << 4 : code);
    }
}

void llo_quantise(const llo_job *job, const void *x, void *q, uint32_t *scales)
{
    if (job->format == LLO_PLAIN) {
        memcpy(q, x, (size_t)job->hidden * oracle_element_bytes(job->type));
        return;
    }
    for (int32_t s = 0; s < llo_num_scales(job); s++)
        scales[s] = 0;
    for (int32_t block = 0; job->format == LLO_NVFP4 && block < job->hidden / LLO_BLOCK; block++)
        quantise_block(job, x, block, q, scales);
    for (int32_t group = 0; job->format != LLO_NVFP4 && group < job->hidden / LLO_GROUP; group++)
        quantise_group(job, x, group, q, scales);
}
