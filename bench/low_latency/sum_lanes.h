/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted FP32 sums of rows, as fast as this machine does them. The including file says what a vector is: LANES words,
 * VECTORS of them in a strip, and LANES_FUNC, whose instruction set has vectors of that width. A strip of each row is
 * added to sums that stay in registers. A word of 32 bits has one FP32 element, or an even 16-bit element in its low 16
 * bits and an odd one in its high 16 bits. These two are summed side by side. Finite numbers only. Compiled without
 * contraction. */
#ifndef EXPAR_BENCH_LOW_LATENCY_SUM_LANES_H
#define EXPAR_BENCH_LOW_LATENCY_SUM_LANES_H

#include "bench/low_latency/sum_wide.h"
#include <string.h>

#define LANES_PART LANES_FUNC static inline __attribute__((always_inline))

#define STRIP_BYTES (VECTORS * 4 * LANES)
#define AHEAD_BYTES 2048 /* rows are read in turn: too short a run for the hardware to read ahead */

typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef float floats __attribute__((vector_size(4 * LANES)));

/* Macros, and not functions: how vectors are passed to functions depends on the instruction set. */
#define CHOOSE(mask, a, b) (((words)(mask) & (a)) | (~(words)(mask) & (b)))

#define EVEN_F32(w)          ((floats)(w))
#define ODD_F32(w)           ((floats){0})
#define ROUND_F32(even, odd) ((words)(even))

#define EVEN_BF16(w)          ((floats)((w) << 16))
#define ODD_BF16(w)           ((floats)((w)&0xffff0000u))
#define NEAREST_BF16(sum)     ((words)(sum) + 0x7fffu + ((words)(sum) >> 16 & 1u))
#define ROUND_BF16(even, odd) ((NEAREST_BF16(even) >> 16) | (NEAREST_BF16(odd) & 0xffff0000u))

/* The fields moved to where FP32 has them, and the exponent's bias corrected, subnormals included, by a product. To
   nearest: by adding half an ulp; results below 2^-14 by adding 0.5, whose last bit has the weight of theirs. */
#define WIDE_F16(half)  ((floats)((words)((floats)(((half)&0x7fffu) << 13) * 0x1p112f) | ((half)&0x8000u) << 16))
#define EVEN_F16(w)     WIDE_F16((w)&0xffffu)
#define ODD_F16(w)      WIDE_F16((w) >> 16)
#define MAGNITUDE(sum)  ((words)(sum)&0x7fffffffu)
#define TINY_F16(sum)   ((words)((floats)MAGNITUDE(sum) + 0.5f) - 0x3f000000u)
#define NORMAL_F16(sum) ((MAGNITUDE(sum) - (112u << 23) + 0xfffu + (MAGNITUDE(sum) >> 13 & 1u)) >> 13)
#define NEAREST_F16(sum)                                                                                               \
    (((words)(sum) >> 16 & 0x8000u) | CHOOSE(MAGNITUDE(sum) < (113u << 23), TINY_F16(sum), NORMAL_F16(sum)))
#define ROUND_F16(even, odd) (NEAREST_F16(even) | NEAREST_F16(odd) << 16)

LANES_PART void prefetch_ahead(const uint8_t *strip)
{
    for (size_t i = 0; i < STRIP_BYTES; i += 64)
        __builtin_prefetch(strip + AHEAD_BYTES + i, 0, 3); /* past the end of memory it does nothing */
}

/* Returns the bytes of `bytes` that lie in a strip's v-th vector. */
LANES_PART size_t vector_bytes(size_t bytes, size_t v)
{
    const size_t begin = v * sizeof(words);
    return bytes <= begin ? 0 : bytes - begin < sizeof(words) ? bytes - begin : sizeof(words);
}

#define DEFINE_STRIP(NAME, name)                                                                                       \
    LANES_PART void strip_##name(const void *const *rows, const float *weights, int count, size_t begin, size_t bytes, \
                                 uint8_t *out)                                                                         \
    {                                                                                                                  \
        floats even[VECTORS] = {{0}}, odd[VECTORS] = {{0}};                                                            \
        for (int i = 0; i < count; i++) {                                                                              \
            const uint8_t *strip = (const uint8_t *)rows[i] + begin;                                                   \
            prefetch_ahead(strip);                                                                                     \
            for (size_t v = 0; v < VECTORS; v++) {                                                                     \
                words w = {0};                                                                                         \
                memcpy(&w, strip + v * sizeof w, vector_bytes(bytes, v));                                              \
                even[v] += weights ? EVEN_##NAME(w) * weights[i] : EVEN_##NAME(w);                                     \
                odd[v] += weights ? ODD_##NAME(w) * weights[i] : ODD_##NAME(w);                                        \
            }                                                                                                          \
        }                                                                                                              \
        for (size_t v = 0; v < VECTORS; v++) {                                                                         \
            const words w = ROUND_##NAME(even[v], odd[v]);                                                             \
            memcpy(out + begin + v * sizeof w, &w, vector_bytes(bytes, v));                                            \
        }                                                                                                              \
    }

DEFINE_STRIP(F32, f32)
DEFINE_STRIP(BF16, bf16)
DEFINE_STRIP(F16, f16)

#define DEFINE_SUM(name)                                                                                               \
    LANES_FUNC static void sum_##name(const void *const *rows, const float *weights, int count, size_t bytes,          \
                                      uint8_t *out)                                                                    \
    {                                                                                                                  \
        size_t begin = 0;                                                                                              \
        if (weights)                                                                                                   \
            for (; begin + STRIP_BYTES <= bytes; begin += STRIP_BYTES)                                                 \
                strip_##name(rows, weights, count, begin, STRIP_BYTES, out);                                           \
        else                                                                                                           \
            for (; begin + STRIP_BYTES <= bytes; begin += STRIP_BYTES)                                                 \
                strip_##name(rows, NULL, count, begin, STRIP_BYTES, out);                                              \
        if (begin < bytes) strip_##name(rows, weights, count, begin, bytes - begin, out);                              \
    }

DEFINE_SUM(f32)
DEFINE_SUM(bf16)
DEFINE_SUM(f16)

#define LANES_TABLE(table) const struct sum_table table = {.f32 = sum_f32, .bf16 = sum_bf16, .f16 = sum_f16};

#endif
