/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted FP32 sums of rows, as a user's compiler makes them of plain loops: a block at a time that stays in the
 * nearest cache, four rows in each pass over it. Compiled without contraction. */
#include "bench/common/clones.h"
#include "bench/ll/session.h"
#include <string.h>

#define BLOCK 512 /* elements */
#define PASS  4   /* rows */

typedef uint16_t half;
__extension__ typedef _Float16 binary16;

static inline float bf16_value(half bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline half bf16_round(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (half)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float f16_value(binary16 value)
{
    return (float)value;
}

static inline binary16 f16_round(float value)
{
    return (binary16)value;
}

static inline float f32_same(float value)
{
    return value;
}

/* The elements [begin, begin + length) of a sum. */
#define DEFINE_SUM(name, type, value_of, round_of)                                                                     \
    FOR_EACH_CPU static void name(const void *const *rows, const float *weights, int count, int begin, int length,     \
                                  void *out)                                                                           \
    {                                                                                                                  \
        float sum[BLOCK] = {0};                                                                                        \
        type *result = (type *)out + begin;                                                                            \
        int i = 0;                                                                                                     \
        for (; i + PASS <= count; i += PASS) {                                                                         \
            const type *a = (const type *)rows[i] + begin, *b = (const type *)rows[i + 1] + begin;                     \
            const type *c = (const type *)rows[i + 2] + begin, *d = (const type *)rows[i + 3] + begin;                 \
            const float *w = weights + i;                                                                              \
            for (int j = 0; j < length; j++)                                                                           \
                sum[j] = (((sum[j] + w[0] * value_of(a[j])) + w[1] * value_of(b[j])) + w[2] * value_of(c[j])) +        \
                         w[3] * value_of(d[j]);                                                                        \
        }                                                                                                              \
        for (; i < count; i++) {                                                                                       \
            const type *a = (const type *)rows[i] + begin;                                                             \
            for (int j = 0; j < length; j++)                                                                           \
                sum[j] += weights[i] * value_of(a[j]);                                                                 \
        }                                                                                                              \
        for (int j = 0; j < length; j++)                                                                               \
            result[j] = round_of(sum[j]);                                                                              \
    }

DEFINE_SUM(sum_bf16, half, bf16_value, bf16_round)
DEFINE_SUM(sum_f16, binary16, f16_value, f16_round)
DEFINE_SUM(sum_f32, float, f32_same, f32_same)

void ll_sum_rows(expar_dtype dtype, const void *const *rows, const float *weights, int count, int hidden, void *out)
{
    static const float ones[LL_MOST_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                             1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (!weights) weights = ones;
    for (int begin = 0; begin < hidden; begin += BLOCK) {
        const int length = hidden - begin < BLOCK ? hidden - begin : BLOCK;
        if (dtype == EXPAR_BF16) sum_bf16(rows, weights, count, begin, length, out);
        if (dtype == EXPAR_F16) sum_f16(rows, weights, count, begin, length, out);
        if (dtype == EXPAR_F32) sum_f32(rows, weights, count, begin, length, out);
    }
}
