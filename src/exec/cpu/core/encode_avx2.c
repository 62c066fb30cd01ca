/* SPDX-License-Identifier: Apache-2.0 */
/* encode_wide of AVX2 with FMA and F16C: vectors of 8 elements. */
#include "exec/cpu/core/encode_wide.h"

#ifdef __x86_64__
#include <immintrin.h>

#define LANES      8
#define LANES_FUNC __attribute__((target("avx2,fma,f16c")))
#define LANES_PART LANES_FUNC static inline __attribute__((always_inline))

typedef float lanes_f32 __attribute__((vector_size(32)));
typedef uint32_t lanes_u32 __attribute__((vector_size(32)));
typedef int32_t lanes_i32 __attribute__((vector_size(32)));

LANES_PART lanes_f32 lanes_load_f32(const float *group)
{
    return (lanes_f32)_mm256_loadu_ps(group);
}
LANES_PART lanes_f32 lanes_load_f16(const uint16_t *group)
{
    return (lanes_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)group));
}
LANES_PART lanes_u32 lanes_load_u16(const uint16_t *group)
{
    return (lanes_u32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)group));
}
LANES_PART lanes_u32 lanes_all(uint32_t word)
{
    return (lanes_u32)_mm256_set1_epi32((int)word);
}
LANES_PART lanes_u32 lanes_larger(lanes_u32 a, lanes_u32 b)
{
    return (lanes_u32)_mm256_max_epu32((__m256i)a, (__m256i)b);
}
LANES_PART lanes_f32 lanes_multiply_add(lanes_f32 a, lanes_f32 b, lanes_f32 c)
{
    return (lanes_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
/* Takes bits of a where those of the mask are set, else of b. */
LANES_PART lanes_u32 lanes_choose(lanes_u32 mask, lanes_u32 a, lanes_u32 b)
{
    return ((a ^ b) & mask) ^ b;
}
LANES_PART lanes_u32 lanes_unless_zero(lanes_u32 zero, lanes_u32 a)
{
    return (lanes_u32)(zero != 0u) & a;
}
LANES_PART lanes_f32 lanes_of_integers(lanes_i32 a)
{
    return (lanes_f32)_mm256_cvtepi32_ps((__m256i)a);
}
LANES_PART lanes_u32 lanes_nearest(lanes_f32 a)
{
    return (lanes_u32)_mm256_cvtps_epi32((__m256)a);
}
/* Packs numbers below 256, in order: first within each 128 bits, which are then put in order. */
LANES_PART __m256i lanes_bytes(const lanes_u32 numbers[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i first = _mm256_packus_epi32((__m256i)numbers[0], (__m256i)numbers[1]);
    const __m256i second = _mm256_packus_epi32((__m256i)numbers[2], (__m256i)numbers[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
}
LANES_PART void lanes_store_bytes(uint8_t *out, const lanes_u32 numbers[4])
{
    _mm256_storeu_si256((__m256i *)out, lanes_bytes(numbers));
}
/* Packs numbers below 4: four in a byte, the first one lowest. */
LANES_PART void lanes_store_quads(uint8_t *out, const lanes_u32 numbers[4])
{
    const __m256i pairs = _mm256_maddubs_epi16(lanes_bytes(numbers), _mm256_set1_epi16(1 | 4 << 8));
    const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 | 16 << 16));
    const __m256i four = _mm256_packus_epi16(_mm256_packus_epi32(quads, quads), quads);
    const __m256i eight = _mm256_permutevar8x32_epi32(four, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    _mm_storel_epi64((__m128i *)out, _mm256_castsi256_si128(eight));
}

#include "exec/cpu/core/encode_lanes.h"

LANES_TABLE(encode_wide_avx2)
#endif
