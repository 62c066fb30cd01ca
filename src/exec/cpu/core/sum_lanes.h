/* SPDX-License-Identifier: Apache-2.0 */
/* Sums in the compiler's vectors. The including file says what a vector is: LANES words, VECTORS of them in a strip,
 * and LANES_FUNC, whose instruction set has vectors of that width. For a width that it lacks, GCC does comparisons
 * element by element, and keeps sums in memory: a tenth of the speed (docs/internals/measurements/cpu.md).
 *
 * A strip of each row is added to sums that stay in registers, then the sums are rounded and stored. Accumulation is
 * FP32 in the order given, with one rounding at the end. NaN is one value in each type: positive, quiet, all mantissa
 * bits set. The conversions of NVIDIA GPUs give the same. */
#ifndef EXPAR_EXEC_CPU_CORE_SUM_LANES_H
#define EXPAR_EXEC_CPU_CORE_SUM_LANES_H

#include "exec/cpu/core/sum_wide.h"
#include "proto/normal.h"

#include <stddef.h>
#include <string.h>

#define LANES_PART LANES_FUNC static inline __attribute__((always_inline))

typedef uint32_t word_lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t mask_lanes __attribute__((vector_size(4 * LANES))); /* -1 where a comparison holds, else 0 */
typedef float float_lanes __attribute__((vector_size(4 * LANES)));

/* Rows are read as vectors of 32-bit words. A word holds one FP32 element, or two 16-bit ones: the even element in its
   low half, the odd one in its high half. So there is nothing to shuffle: even and odd elements are summed side by
   side. */
#define STRIP_BYTES (VECTORS * sizeof(word_lanes))

/* Several rows are read in turn, a strip each. Such a run is too short for the hardware to read ahead, so we prefetch.
   After the end of a row comes the next row, which is often the next to be read; past the end of memory a prefetch does
   nothing. (Measured: docs/internals/measurements/cpu.md.) */
#define AHEAD_BYTES 2048

LANES_PART void prefetch_ahead(const void *strip)
{
    uintptr_t from = (uintptr_t)strip + AHEAD_BYTES;
    for (size_t i = 0; i < STRIP_BYTES; i += EP_LINE_BYTES)
        __builtin_prefetch((const void *)(from + i), 0, 3); /* NOLINT(performance-no-int-to-ptr): may leave the row */
}

/* These are macros, not functions, since the way in which vectors are passed to functions depends on the instruction
   set. All work on word_lanes and float_lanes. */
#define CHOOSE(mask, a, b) (((word_lanes)(mask) & (a)) | (~(word_lanes)(mask) & (b)))
#define IS_NAN(sum)        ((mask_lanes)((sum) != (sum)))
#define ALL(value)         ((word_lanes){0} + (value))

/* FP32: the words are the elements. */
#define EVEN_F32(floats, words)     ((floats) = (float_lanes)(words))
#define ROUND_F32(words, even, odd) ((words) = CHOOSE(IS_NAN(even), ALL(0x7fffffffu), (word_lanes)(even)))

/* bfloat16: the upper 16 bits of an FP32 value. Rounds to nearest even: adds half of the last kept bit, less one if the
   kept part is even. The low 16 bits are left over. */
#define EVEN_BF16(floats, words) ((floats) = (float_lanes)((words) << 16))
#define ODD_BF16(floats, words)  ((floats) = (float_lanes)((words)&0xffff0000u))
#define ROUNDED_BF16(sum)                                                                                              \
    CHOOSE(IS_NAN(sum), ALL(0x7fff0000u), (word_lanes)(sum) + 0x7fffu + (((word_lanes)(sum) >> 16) & 1u))
#define ROUND_BF16(words, even, odd) ((words) = (ROUNDED_BF16(even) >> 16) | (ROUNDED_BF16(odd) & 0xffff0000u))

/* binary16 → binary32: moves the fields and corrects the exponent; subnormals are made normal by a subtraction. */
#define WIDEN_F16(floats, half)                                                                                        \
    do {                                                                                                               \
        word_lanes sign_ = ((half)&0x8000u) << 16, magnitude_ = (half)&0x7fffu;                                        \
        word_lanes moved_ = (magnitude_ << 13) + (112u << 23);                                                         \
        word_lanes special_ = moved_ + (112u << 23);                                                                   \
        float_lanes tiny_ = (float_lanes)((magnitude_ << 13) + (113u << 23)) - (float_lanes)ALL(113u << 23);           \
        word_lanes finite_ = CHOOSE(magnitude_ < 0x0400u, (word_lanes)tiny_, moved_);                                  \
        (floats) = (float_lanes)(sign_ | CHOOSE(magnitude_ >= 0x7c00u, special_, finite_));                            \
    } while (0)
#define EVEN_F16(floats, words) WIDEN_F16(floats, (words)&0xffffu)
#define ODD_F16(floats, words)  WIDEN_F16(floats, (words) >> 16)

/* binary32 → binary16, to nearest even. Results below the normal range are rounded by adding 0.5, whose last mantissa
   bit has the weight of the smallest subnormal. 65520 and more become infinite. */
#define ROUNDED_F16(half, sum)                                                                                         \
    do {                                                                                                               \
        word_lanes wide_ = (word_lanes)(sum), sign_ = (wide_ >> 16) & 0x8000u, magnitude_ = wide_ & 0x7fffffffu;       \
        word_lanes normal_ = (magnitude_ - (112u << 23) + 0x0fffu + ((magnitude_ >> 13) & 1u)) >> 13;                  \
        word_lanes tiny_ = (word_lanes)((float_lanes)magnitude_ + 0.5f) - 0x3f000000u;                                 \
        word_lanes finite_ = CHOOSE(magnitude_ < (113u << 23), tiny_, normal_);                                        \
        word_lanes number_ = sign_ | CHOOSE(magnitude_ >= 0x477ff000u, ALL(0x7c00u), finite_);                         \
        (half) = CHOOSE(IS_NAN(sum), ALL(0x7fffu), number_);                                                           \
    } while (0)
#define ROUND_F16(words, even, odd)                                                                                    \
    do {                                                                                                               \
        word_lanes even_half_, odd_half_;                                                                              \
        ROUNDED_F16(even_half_, even);                                                                                 \
        ROUNDED_F16(odd_half_, odd);                                                                                   \
        (words) = even_half_ | odd_half_ << 16;                                                                        \
    } while (0)

/* FP32 words have no odd elements. */
#define ODD_F32(floats, words) ((floats) = (float_lanes){0})

/* Returns the bytes of a strip's v-th vector, in a strip of `bytes` bytes. */
LANES_PART size_t vector_bytes(size_t bytes, size_t v)
{
    size_t begin = v * sizeof(word_lanes);
    return bytes <= begin ? 0 : bytes - begin < sizeof(word_lanes) ? bytes - begin : sizeof(word_lanes);
}

/* strip_NAME: adds one strip of y from the same strip of all rows. `bytes` is STRIP_BYTES, or less at the end of the
   rows. weights NULL: the rows are added as they are. */
#define DEFINE_STRIP(NAME, name)                                                                                       \
    LANES_PART void strip_##name(uint8_t *y, const void *const *rows, const float *weights, int32_t num_rows,          \
                                 int64_t begin, size_t bytes)                                                          \
    {                                                                                                                  \
        float_lanes even[VECTORS] = {{0}}, odd[VECTORS] = {{0}};                                                       \
        for (int32_t r = 0; r < num_rows; r++) {                                                                       \
            const uint8_t *strip = (const uint8_t *)rows[r] + begin;                                                   \
            prefetch_ahead(strip);                                                                                     \
            for (size_t v = 0; v < VECTORS; v++) {                                                                     \
                word_lanes words = {0};                                                                                \
                float_lanes even_floats, odd_floats;                                                                   \
                memcpy(&words, strip + v * sizeof words, vector_bytes(bytes, v));                                      \
                EVEN_##NAME(even_floats, words);                                                                       \
                ODD_##NAME(odd_floats, words);                                                                         \
                even[v] += weights ? even_floats * weights[r] : even_floats;                                           \
                odd[v] += weights ? odd_floats * weights[r] : odd_floats;                                              \
            }                                                                                                          \
        }                                                                                                              \
        for (size_t v = 0; v < VECTORS; v++) {                                                                         \
            word_lanes words;                                                                                          \
            ROUND_##NAME(words, even[v], odd[v]);                                                                      \
            memcpy(y + begin + v * sizeof words, &words, vector_bytes(bytes, v));                                      \
        }                                                                                                              \
    }

DEFINE_STRIP(F32, f32)
DEFINE_STRIP(BF16, bf16)
DEFINE_STRIP(F16, f16)

/* sum_NAME: whole rows, strip by strip. */
#define DEFINE_SUM(name)                                                                                               \
    LANES_FUNC static void sum_##name(uint8_t *y, const void *const *rows, const float *weights, int32_t num_rows,     \
                                      int64_t bytes)                                                                   \
    {                                                                                                                  \
        int64_t begin = 0, strip = (int64_t)STRIP_BYTES;                                                               \
        if (weights)                                                                                                   \
            for (; begin + strip <= bytes; begin += strip)                                                             \
                strip_##name(y, rows, weights, num_rows, begin, STRIP_BYTES);                                          \
        else                                                                                                           \
            for (; begin + strip <= bytes; begin += strip)                                                             \
                strip_##name(y, rows, NULL, num_rows, begin, STRIP_BYTES);                                             \
        if (begin < bytes) strip_##name(y, rows, weights, num_rows, begin, (size_t)(bytes - begin));                   \
    }

DEFINE_SUM(f32)
DEFINE_SUM(bf16)
DEFINE_SUM(f16)

#define LANES_TABLE(table) const sum_wide table = {.f32 = sum_f32, .bf16 = sum_bf16, .f16 = sum_f16};

#endif
