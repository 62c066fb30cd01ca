/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's own conversions between FP32 and the 16-bit formats, by their bit fields. */
#include "oracle.h"
#include <math.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

size_t oracle_element_bytes(oracle_type type)
{
    return type == ORACLE_F32 ? 4 : type == ORACLE_F8E4M3 || type == ORACLE_I8 ? 1 : 2;
}

/* value = (-1)^sign · 2^(exponent - 15) · 1.fraction; exponent 0: 2^-14 · 0.fraction; 31: infinity or NaN. */
static float widen_f16(uint32_t bits)
{
    uint32_t sign = (bits >> 15) << 31;
    uint32_t exponent = (bits >> 10) & 0x1f;
    uint32_t fraction = bits & 0x3ff;
    if (exponent == 0x1f) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = ldexpf((float)fraction, -24);
    return sign ? -magnitude : magnitude;
}

float oracle_widen(oracle_type type, uint32_t bits)
{
    switch (type) {
    case ORACLE_BF16:
        return float_of(bits << 16);
    case ORACLE_F16:
        return widen_f16(bits);
    default:
        return float_of(bits);
    }
}

/* value / 2^shift to the nearest whole number, ties to even. */
static uint32_t shift_to_even(uint32_t value, uint32_t shift)
{
    uint32_t kept = value >> shift;
    uint32_t rest = value - (kept << shift);
    uint32_t half = 1u << (shift - 1);
    return kept + (rest > half || (rest == half && (kept & 1)));
}

/* The exponent stands right above the fraction, so that a carry out of the fraction is the next binade, and out of the
   last binade infinity. */
static uint32_t round_bf16(uint32_t bits)
{
    return (bits >> 31) << 15 | shift_to_even(bits & 0x7fffffffu, 16);
}

static uint32_t round_f16(uint32_t bits)
{
    uint32_t sign = (bits >> 31) << 15;
    int32_t exponent = (int32_t)(bits >> 23 & 0xff) - 127;
    uint32_t fraction = bits & 0x7fffff;
    if (exponent > 15) return sign | 0x7c00;
    if (exponent >= -14) return sign | shift_to_even((uint32_t)(exponent + 15) << 23 | fraction, 13);
    if (exponent < -25) return sign; /* below half of the smallest denormal */
    /* A denormal counts in steps of 2^-24; the significand counts in steps of 2^(exponent - 23). */
    return sign | shift_to_even(0x800000u | fraction, (uint32_t)(-1 - exponent));
}

uint32_t oracle_round(oracle_type type, float value)
{
    bool nan = value != value;
    switch (type) {
    case ORACLE_BF16:
        return nan ? 0x7fff : round_bf16(bits_of(value));
    case ORACLE_F16:
        return nan ? 0x7fff : round_f16(bits_of(value));
    default:
        return nan ? 0x7fffffffu : bits_of(value);
    }
}

uint32_t oracle_load(oracle_type type, const void *array, int64_t index)
{
    uint32_t wide;
    uint16_t narrow;
    if (type == ORACLE_F32) {
        memcpy(&wide, (const char *)array + index * 4, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)array + index * 2, sizeof narrow);
    return narrow;
}

void oracle_store(oracle_type type, void *array, int64_t index, uint32_t bits)
{
    uint16_t narrow = (uint16_t)bits;
    if (type == ORACLE_F32)
        memcpy((char *)array + index * 4, &bits, sizeof bits);
    else
        memcpy((char *)array + index * 2, &narrow, sizeof narrow);
}
