/* SPDX-License-Identifier: Apache-2.0 */
/* encode_wide of AVX-512 (F and BW): vectors of 16 elements. */
#include "exec/cpu/core/encode_wide.h"

#ifdef __x86_64__
#include <immintrin.h>

#define LANES      16
#define LANES_FUNC __attribute__((target("avx512f,avx512bw")))
#define LANES_PART LANES_FUNC static inline __attribute__((always_inline))

typedef float lanes_f32 __attribute__((vector_size(64)));
typedef uint32_t lanes_u32 __attribute__((vector_size(64)));
typedef int32_t lanes_i32 __attribute__((vector_size(64)));

LANES_PART lanes_f32 lanes_load_f32(const float *group)
{
    return (lanes_f32)_mm512_loadu_ps(group);
}
LANES_PART lanes_f32 lanes_load_f16(const uint16_t *group)
{
    return (lanes_f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)group));
}
LANES_PART lanes_u32 lanes_load_u16(const uint16_t *group)
{
    return (lanes_u32)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)group));
}
LANES_PART lanes_u32 lanes_all(uint32_t word)
{
    return (lanes_u32)_mm512_set1_epi32((int)word);
}
LANES_PART lanes_u32 lanes_larger(lanes_u32 a, lanes_u32 b)
{
    return (lanes_u32)_mm512_max_epu32((__m512i)a, (__m512i)b);
}
LANES_PART lanes_f32 lanes_multiply_add(lanes_f32 a, lanes_f32 b, lanes_f32 c)
{
    return (lanes_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
/* Takes bits of a where those of the mask are set, else of b. */
LANES_PART lanes_u32 lanes_choose(lanes_u32 mask, lanes_u32 a, lanes_u32 b)
{
    return (lanes_u32)_mm512_ternarylogic_epi32((__m512i)mask, (__m512i)a, (__m512i)b, 0xca);
}
LANES_PART lanes_u32 lanes_unless_zero(lanes_u32 zero, lanes_u32 a)
{
    return (lanes_u32)_mm512_maskz_mov_epi32(_mm512_test_epi32_mask((__m512i)zero, (__m512i)zero), (__m512i)a);
}
LANES_PART lanes_f32 lanes_of_integers(lanes_i32 a)
{
    return (lanes_f32)_mm512_cvtepi32_ps((__m512i)a);
}
LANES_PART lanes_u32 lanes_nearest(lanes_f32 a)
{
    return (lanes_u32)_mm512_cvtps_epi32((__m512)a);
}
/* Packs numbers below 256, in order: first within each 128 bits, which are then put in order. */
LANES_PART __m512i lanes_bytes(const lanes_u32 numbers[4])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i first = _mm512_packus_epi32((__m512i)numbers[0], (__m512i)numbers[1]);
    const __m512i second = _mm512_packus_epi32((__m512i)numbers[2], (__m512i)numbers[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(first, second));
}
LANES_PART void lanes_store_bytes(uint8_t *out, const lanes_u32 numbers[4])
{
    _mm512_storeu_si512(out, lanes_bytes(numbers));
}
/* Packs numbers below 4: four in a byte, the first one lowest. */
LANES_PART void lanes_store_quads(uint8_t *out, const lanes_u32 numbers[4])
{
    const __m512i pairs = _mm512_maddubs_epi16(lanes_bytes(numbers), _mm512_set1_epi16(1 | 4 << 8));
    const __m512i quads = _mm512_madd_epi16(pairs, _mm512_set1_epi32(1 | 16 << 16));
    _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8(quads));
}

#include "exec/cpu/core/encode_lanes.h"

LANES_TABLE(encode_wide_avx512)
#endif
