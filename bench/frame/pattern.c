/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of rows: computed from (salt, rank, token, element), so that any row can be checked anywhere without having
 * been sent. Values have few exponents, so that sums neither overflow nor lose all of a term. */
#include "bench/frame/problem.h"
#include "bench/frame/splitmix.h"
#include <string.h>

uint64_t pattern_key(uint64_t salt, int rank, int64_t token)
{
    return splitmix_of(splitmix_of(salt) ^ (((uint64_t)rank << 40) + (uint64_t)token));
}

/* 32 random bits of element j. */
static inline uint32_t element_bits(uint64_t key, uint32_t j)
{
    uint32_t bits = (uint32_t)key ^ (j * 0x9e3779b1u);
    bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
    bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
    return bits ^ (bits >> 16) ^ (uint32_t)(key >> 32);
}

static inline uint16_t bf16_element(uint64_t key, uint32_t j)
{
    uint32_t bits = element_bits(key, j); /* sign, exponent 120 to 127, 7 bits of mantissa */
    return (uint16_t)((bits & 0x8000u) | ((120u + ((bits >> 8) & 7u)) << 7) | (bits & 0x7fu));
}

static inline uint16_t f16_element(uint64_t key, uint32_t j)
{
    uint32_t bits = element_bits(key, j); /* sign, exponent 8 to 15, 10 bits of mantissa */
    return (uint16_t)((bits & 0x8000u) | ((8u + ((bits >> 16) & 7u)) << 10) | (bits & 0x3ffu));
}

static inline uint32_t f32_element(uint64_t key, uint32_t j)
{
    uint32_t bits = element_bits(key, j); /* sign, exponent 120 to 127, 23 bits of mantissa */
    return (bits & 0x80000000u) | ((120u + ((bits >> 24) & 7u)) << 23) | (bits & 0x7fffffu);
}

static inline uint8_t f8_element(uint64_t key, uint32_t j)
{
    uint32_t bits = element_bits(key, j); /* sign, exponent 1 to 8, 3 bits of mantissa */
    return (uint8_t)((bits & 0x80u) | (1u + ((bits >> 8) & 7u)) << 3 | (bits & 7u));
}

void pattern_row(expar_dtype dtype, uint64_t key, int hidden, void *row)
{
    uint8_t *bytes = row;
    uint16_t *halves = row;
    uint32_t *words = row;
    for (int j = 0; dtype == EXPAR_F8E4M3 && j < hidden; j++)
        bytes[j] = f8_element(key, (uint32_t)j);
    for (int j = 0; dtype == EXPAR_BF16 && j < hidden; j++)
        halves[j] = bf16_element(key, (uint32_t)j);
    for (int j = 0; dtype == EXPAR_F16 && j < hidden; j++)
        halves[j] = f16_element(key, (uint32_t)j);
    for (int j = 0; dtype == EXPAR_F32 && j < hidden; j++)
        words[j] = f32_element(key, (uint32_t)j);
}

void pattern_rows(const struct problem *problem, uint64_t salt, int rank, int64_t count, void *rows)
{
    for (int64_t i = 0; i < count; i++)
        pattern_row(problem->dtype, pattern_key(salt, rank, i), problem->hidden,
                    (unsigned char *)rows + (size_t)i * problem->row_bytes);
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A binary16 of the pattern is normal: only the exponent's bias changes. */
static inline float f16_value(uint16_t half)
{
    uint32_t exponent = ((half >> 10) & 31u) + 127u - 15u;
    return float_of((uint32_t)(half & 0x8000u) << 16 | exponent << 23 | (uint32_t)(half & 0x3ffu) << 13);
}

void pattern_add(expar_dtype dtype, uint64_t key, int hidden, float *sum)
{
    for (int j = 0; dtype == EXPAR_BF16 && j < hidden; j++)
        sum[j] += float_of((uint32_t)bf16_element(key, (uint32_t)j) << 16);
    for (int j = 0; dtype == EXPAR_F16 && j < hidden; j++)
        sum[j] += f16_value(f16_element(key, (uint32_t)j));
    for (int j = 0; dtype == EXPAR_F32 && j < hidden; j++)
        sum[j] += float_of(f32_element(key, (uint32_t)j));
}

/* Widens any finite binary16. */
static float f16_any_value(uint16_t half)
{
    const float sign = half & 0x8000u ? -1.0f : 1.0f;
    return half & 0x7c00u ? f16_value(half) : sign * (float)(half & 0x3ffu) * 0x1p-24f;
}

void pattern_add_row(expar_dtype dtype, const void *row, int hidden, float *sum)
{
    const uint16_t *halves = row;
    const float *words = row;
    for (int j = 0; dtype == EXPAR_BF16 && j < hidden; j++)
        sum[j] += float_of((uint32_t)halves[j] << 16);
    for (int j = 0; dtype == EXPAR_F16 && j < hidden; j++)
        sum[j] += f16_any_value(halves[j]);
    for (int j = 0; dtype == EXPAR_F32 && j < hidden; j++)
        sum[j] += words[j];
}

/* Drops `count` low bits, to nearest, ties to even. */
static inline uint32_t drop_bits(uint32_t value, unsigned count)
{
    uint32_t half = UINT32_C(1) << (count - 1), rest = value & (2 * half - 1), kept = value >> count;
    return kept + (rest > half || (rest == half && (kept & 1)));
}

static uint16_t f16_round(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, exponent = bits >> 23 & 255u;
    if (exponent < 127 - 15 - 11) return (uint16_t)sign; /* below half of the least subnormal */
    if (exponent > 127 - 15) return (uint16_t)(sign | drop_bits((bits & 0x7fffffffu) - (UINT32_C(112) << 23), 13));
    uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u; /* subnormal: counts of 2^-24 */
    return (uint16_t)(sign | drop_bits(mantissa, 126u - exponent));
}

void pattern_round(expar_dtype dtype, const float *sum, int hidden, void *row)
{
    uint16_t *halves = row;
    if (dtype == EXPAR_F32) memcpy(row, sum, (size_t)hidden * sizeof *sum);
    for (int j = 0; dtype == EXPAR_BF16 && j < hidden; j++)
        halves[j] = (uint16_t)drop_bits(bits_of(sum[j]), 16);
    for (int j = 0; dtype == EXPAR_F16 && j < hidden; j++)
        halves[j] = f16_round(sum[j]);
}
