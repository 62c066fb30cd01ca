/* SPDX-License-Identifier: Apache-2.0 */
/* NVFP4: blocks of 16 elements. Each has a scale s in E4M3, and four bits an element in E2M1.
 *
 * The caller's global scale g fits the scales into the range of E4M3. s is g · amax / 6, and the code of x is that of
 * x · g / s. Products and quotients are FP32. The value of code q is q · s / g. Where s is 0, all codes are 0. A block
 * that holds infinity or NaN decodes to NaN as a whole: its scale is NaN, and its codes are 0.
 *
 * This header compiles as C17, under nvcc and under NVRTC. */
#ifndef EXPAR_PROTO_CODEC_NVFP4_H
#define EXPAR_PROTO_CODEC_NVFP4_H

#include "proto/codec/number.h"

#define NVFP4_BLOCK 16   /* elements that share a scale */
#define NVFP4_MOST  6.0f /* the largest value of E2M1 */

/* Returns the bits of the scale. amax: the largest magnitude of a block, as bits. */
PORTABLE_FUNC uint32_t nvfp4_scale_of(uint32_t amax, float global)
{
    if (amax >= NUMBER_INFINITY) return NUMBER_NAN_E4M3;
    return number_to_e4m3(number_divide(number_multiply(global, number_of_bits(amax)), NVFP4_MOST));
}
/* scale: as a number, from the bits of a block's scale. Also where that is NaN the code is 0. */
PORTABLE_FUNC uint32_t nvfp4_code_of(float value, float global, float scale)
{
    return scale == 0.0f ? 0 : number_to_e2m1(number_divide(number_multiply(value, global), scale));
}
PORTABLE_FUNC float nvfp4_value_of(uint32_t code, float global, float scale)
{
    const float value = number_divide(number_multiply(number_of_e2m1(code), scale), global);
    return value != value ? number_of_bits(NUMBER_NAN) : value;
}

/* Returns where the word with the scales of blocks 4 · w to 4 · w + 3 of a row stands among those of all received rows.
   The array is [experts][tiles of 128 rows][words of a row][128]. In a tile a row's word has the number
   row % 32 · 4 + row % 128 / 32: the layout that tensor cores read (PTX ISA, tcgen05, scale vectors). */
#define NVFP4_TILE 128
PORTABLE_FUNC int64_t nvfp4_tiles(int64_t rows)
{
    return (rows + NVFP4_TILE - 1) / NVFP4_TILE;
}
PORTABLE_FUNC int64_t nvfp4_scale_at(int64_t words, int64_t rows, int64_t expert, int64_t word, int64_t row)
{
    const int64_t tile = expert * nvfp4_tiles(rows) + row / NVFP4_TILE;
    return (tile * words + word) * NVFP4_TILE + row % 32 * 4 + row % NVFP4_TILE / 32;
}

#endif
