/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the codec: bits of floats, and conversions between FP32 and the narrow types. Each rounds once, to nearest
 * even. NaN is one value in each type: all bits set but the sign.
 *
 * This header compiles as C17, under nvcc and under NVRTC, and gives the same bits everywhere. All arithmetic goes
 * through number_add, number_multiply and number_divide, which no compiler contracts. No number that matters is so
 * small that a processor would flush it to zero. */
#ifndef EXPAR_PROTO_CODEC_NUMBER_H
#define EXPAR_PROTO_CODEC_NUMBER_H

#include "base/portable.h"

#define NUMBER_INFINITY 0x7f800000u /* of FP32; a magnitude from this on is no finite number */
#define NUMBER_NAN      0x7fffffffu /* the only NaN that is made */
#define NUMBER_NAN_BF16 0x7fffu
#define NUMBER_NAN_F16  0x7fffu
#define NUMBER_NAN_E4M3 0x7fu

/* Types for numbers in memory that its owner may have given another type. */
#ifdef __CUDACC__
typedef float number_f32;
typedef uint32_t number_u32;
typedef uint16_t number_u16;
#else
typedef float __attribute__((may_alias)) number_f32;
typedef uint32_t __attribute__((may_alias)) number_u32;
typedef uint16_t __attribute__((may_alias)) number_u16;
#endif

/* ---- FP32 -------------------------------------------------------------------------------------------------------- */

#ifdef __CUDACC__
PORTABLE_FUNC uint32_t number_bits(float value)
{
    return __float_as_uint(value);
}
PORTABLE_FUNC float number_of_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}
PORTABLE_FUNC float number_add(float a, float b)
{
    return __fadd_rn(a, b);
}
PORTABLE_FUNC float number_multiply(float a, float b)
{
    return __fmul_rn(a, b);
}
PORTABLE_FUNC float number_divide(float a, float b)
{
    return __fdiv_rn(a, b);
}
#else
typedef union number_word {
    float value;
    uint32_t bits;
} number_word;
PORTABLE_FUNC uint32_t number_bits(float value)
{
    number_word word = {.value = value};
    return word.bits;
}
PORTABLE_FUNC float number_of_bits(uint32_t bits)
{
    number_word word = {.bits = bits};
    return word.value;
}
PORTABLE_FUNC float number_add(float a, float b)
{
    return a + b;
}
PORTABLE_FUNC float number_multiply(float a, float b)
{
    return a * b;
}
PORTABLE_FUNC float number_divide(float a, float b)
{
    return a / b;
}
#endif

/* Returns the bits of |value|. Magnitudes are compared as integers: NaN is above infinity, and infinity above all
   numbers. */
PORTABLE_FUNC uint32_t number_magnitude(float value)
{
    return number_bits(value) & 0x7fffffffu;
}

/* ---- BF16: the upper half of an FP32 number ---------------------------------------------------------------------- */

/* Here and below all cases are computed and one is chosen, so that compilers vectorise loops over elements. */
PORTABLE_FUNC float number_of_bf16(uint32_t half)
{
    return number_of_bits(half << 16);
}
PORTABLE_FUNC uint32_t number_to_bf16(float value)
{
    uint32_t bits = number_bits(value), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return number_magnitude(value) > NUMBER_INFINITY ? NUMBER_NAN_BF16 : rounded;
}

/* ---- FP16 -------------------------------------------------------------------------------------------------------- */

/* Converts the bits of a finite number without its sign: moves the fields and corrects the exponent. A subtraction
   makes subnormals normal. */
PORTABLE_FUNC float number_of_f16_magnitude(uint32_t magnitude)
{
    uint32_t moved = magnitude << 13;
    float tiny = number_add(number_of_bits(moved + (113u << 23)), -number_of_bits(113u << 23));
    return magnitude < 0x0400u ? tiny : number_of_bits(moved + (112u << 23));
}
PORTABLE_FUNC float number_of_f16(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu, special = (magnitude << 13) + (224u << 23);
    uint32_t finite = number_bits(number_of_f16_magnitude(magnitude));
    return number_of_bits(sign | (magnitude >= 0x7c00u ? special : finite));
}
/* 65520 and more become infinite. Results below the normal range are rounded by adding 0.5, whose last mantissa bit has
   the weight of the smallest subnormal. */
PORTABLE_FUNC uint32_t number_to_f16(float value)
{
    uint32_t sign = (number_bits(value) >> 16) & 0x8000u, magnitude = number_magnitude(value);
    uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t tiny = number_bits(number_add(number_of_bits(magnitude), 0.5f)) - number_bits(0.5f);
    uint32_t finite = magnitude < 113u << 23 ? tiny : normal;
    uint32_t number = sign | (magnitude >= 0x477ff000u ? 0x7c00u : finite);
    return magnitude > NUMBER_INFINITY ? NUMBER_NAN_F16 : number;
}

/* ---- FP8 E4M3: no infinities, largest 448 ------------------------------------------------------------------------ */

/* Returns the code of a magnitude that does not round beyond 448, in the lower 16 bits; the upper bits hold anything. E
   is the exponent, at least -6, which is that of subnormals. A sum with 2^(E + 20) rounds to three bits after the first
   one, and has these four in its lowest bits. The exponent adds 8 to them for each binade, less 8 · (127 - 6). `step`
   includes that subtraction, where it is even and so changes no tie. */
PORTABLE_FUNC uint32_t number_to_e4m3_low(uint32_t magnitude)
{
    const uint32_t least = 121u << 23, less = 0x10000u - (least >> 20);
    uint32_t exponent = magnitude & NUMBER_INFINITY;
    if (exponent < least) exponent = least;
    float step = number_of_bits(exponent + (20u << 23) + less);
    return number_bits(number_add(number_of_bits(magnitude), step)) + (exponent >> 20);
}
/* Saturates: a value that would round beyond 448, infinity included, becomes 448. */
PORTABLE_FUNC uint32_t number_to_e4m3(float value)
{
    const uint32_t largest = 0x43e00000u;
    uint32_t sign = (number_bits(value) >> 24) & 0x80u, magnitude = number_magnitude(value);
    uint32_t code = number_to_e4m3_low(magnitude < largest ? magnitude : largest) & 0x7fu;
    return magnitude > NUMBER_INFINITY ? NUMBER_NAN_E4M3 : sign | code;
}
/* Returns two codes, the first one in the lower byte. */
PORTABLE_FUNC uint32_t number_to_e4m3_pair(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return number_to_e4m3(low) | number_to_e4m3(high) << 8;
#endif
}
PORTABLE_FUNC float number_of_e4m3(uint32_t code)
{
    uint32_t sign = (code & 0x80u) << 24, moved = (code & 0x7fu) << 20;
    float tiny = number_add(number_of_bits(moved + (121u << 23)), -number_of_bits(121u << 23));
    uint32_t finite = sign | (moved < 0x08u << 20 ? number_bits(tiny) : moved + (120u << 23));
    return number_of_bits(moved == 0x7fu << 20 ? NUMBER_NAN : finite);
}

/* ---- FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and a sign ------------------------------------------------------------ */

/* Saturates: a value that would round beyond 6, infinity included, becomes 6. NaN gives 0. E is the exponent, at least
   0, since 0.5 is subnormal. A sum with 2^(E + 22) rounds to one bit after the first one, and has both in its lowest
   bits. The exponent adds 2 to them for each binade above the first. */
PORTABLE_FUNC uint32_t number_to_e2m1(float value)
{
    const uint32_t least = 127u << 23, largest = 0x40c00000u;
    const uint32_t sign = number_bits(value) >> 28 & 8u, magnitude = number_magnitude(value);
    const uint32_t within = magnitude < largest ? magnitude : largest, power = within & NUMBER_INFINITY;
    const uint32_t exponent = power < least ? least : power;
    const uint32_t sum = number_bits(number_add(number_of_bits(within), number_of_bits(exponent + (22u << 23))));
    const uint32_t code = (sum & 7u) + (exponent >> 22) - (least >> 22);
    return magnitude > NUMBER_INFINITY ? 0 : sign | code;
}
PORTABLE_FUNC float number_of_e2m1(uint32_t code)
{
    const uint32_t magnitude = code & 7u, sign = (code & 8u) << 28;
    const uint32_t normal = (magnitude << 22) + (126u << 23);
    return number_of_bits(sign | (magnitude == 0 ? 0 : magnitude == 1 ? 126u << 23 : normal));
}

/* ---- INT8 -------------------------------------------------------------------------------------------------------- */

/* Converts a number in ±127. A sum with 1.5 · 2^23 has the integer in its lowest bits. */
PORTABLE_FUNC uint32_t number_to_i8_within(float value)
{
    return number_bits(number_add(value, 12582912.0f)) & 0xffu;
}
/* Saturates to ±127; NaN gives 0. */
PORTABLE_FUNC uint32_t number_to_i8(float value)
{
    float below = value < 127.0f ? value : 127.0f, within = below > -127.0f ? below : -127.0f;
    uint32_t code = number_to_i8_within(within);
    return number_magnitude(value) > NUMBER_INFINITY ? 0 : code;
}
PORTABLE_FUNC float number_of_i8(uint32_t code)
{
    return (float)((int32_t)((code & 0xffu) ^ 0x80u) - 128);
}

#endif
