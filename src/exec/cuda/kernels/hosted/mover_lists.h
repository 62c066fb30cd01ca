/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that a command of the mover names one by one (mover_args.h). Warps of all blocks take pieces of rows in turns. A
 * source may be a place that the network fills again and again. The command was acquired after it was filled, so no
 * older line of the first-level cache is read. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_HOSTED_MOVER_LISTS_H
#define EXPAR_EXEC_CUDA_KERNELS_HOSTED_MOVER_LISTS_H

#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/hosted/mover_args.h"

/* A warp takes so many bytes of a listed row at a time. Rows are few, and there is work for many warps. */
#define LISTED_BYTES 2048u
/* Vectors of 16 bytes that a thread has under way. */
#define UNITS 8
/* Rows of which a thread loads 16 bytes at once. */
#define SOURCES 4

/* The pieces of a warp: entry by entry, and piece by piece of an entry. */
typedef struct mover_pieces {
    uint32_t each, all; /* pieces of a row, and of all rows */
    uint32_t next, step;
} mover_pieces;

GPU_FUNC mover_pieces pieces_of(uint64_t rows, uint64_t row_bytes)
{
    mover_pieces p;
    p.each = (uint32_t)((row_bytes + LISTED_BYTES - 1) / LISTED_BYTES);
    p.all = (uint32_t)rows * p.each;
    p.next = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    p.step = blockDim.x / 32 * gridDim.x;
    return p;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

GPU_FUNC void copy_units(uint4 *dest, const uint4 *source, uint32_t units)
{
    for (uint32_t first = threadIdx.x % 32; first < units; first += 32 * UNITS) {
        uint4 held[UNITS];
#pragma unroll
        for (uint32_t i = 0; i < UNITS; i++)
            if (first + 32 * i < units) held[i] = load_row(source + first + 32 * i);
#pragma unroll
        for (uint32_t i = 0; i < UNITS; i++)
            if (first + 32 * i < units) store_row(dest + first + 32 * i, held[i]);
    }
}

GPU_FUNC void copy_piece(uint64_t dest, uint64_t source, uint32_t bytes)
{
    const uint64_t bits = dest | source | bytes;
    if (bits % 16 == 0) {
        copy_units((uint4 *)dest, (const uint4 *)source, bytes / 16);
    } else if (bits % 4 == 0) {
        for (uint32_t i = threadIdx.x % 32; i < bytes / 4; i += 32)
            ((uint32_t *)dest)[i] = ((const uint32_t *)source)[i];
    } else {
        for (uint32_t i = threadIdx.x % 32; i < bytes; i += 32)
            ((uint8_t *)dest)[i] = ((const uint8_t *)source)[i];
    }
}

GPU_FUNC void copy_listed(const mover_command *c)
{
    const mover_row *list = (const mover_row *)c->list;
    for (mover_pieces p = pieces_of(c->rows, c->row_bytes); p.next < p.all; p.next += p.step) {
        const uint32_t row = p.next / p.each, at = (p.next - row * p.each) * LISTED_BYTES;
        const uint32_t left = (uint32_t)c->row_bytes - at;
        copy_piece(list[row].dest + at, list[row].source + at, left < LISTED_BYTES ? left : LISTED_BYTES);
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

GPU_FUNC uint32_t element_bytes(int32_t dtype)
{
    return dtype == GPU_F32 ? 4 : 2;
}

GPU_FUNC void add_floats(float sums[4], uint4 v)
{
    add_word(GPU_F32, sums, v.x, false, 0.0f);
    add_word(GPU_F32, sums + 1, v.y, false, 0.0f);
    add_word(GPU_F32, sums + 2, v.z, false, 0.0f);
    add_word(GPU_F32, sums + 3, v.w, false, 0.0f);
}

GPU_FUNC uint4 floats_of(const float sums[4])
{
    return make_uint4(narrow_f32(sums[0]), narrow_f32(sums[1]), narrow_f32(sums[2]), narrow_f32(sums[3]));
}

/* A row is FP32 instead of the sum's type. Its elements begin `at` bytes into a row of that type. */
GPU_FUNC void add_wide_vector(int32_t dtype, float sums[8], uint64_t row, uint32_t at)
{
    const uint4 *wide = (const uint4 *)(row + at / element_bytes(dtype) * 4);
    add_floats(sums, load_row(wide));
    if (dtype != GPU_F32) add_floats(sums + 4, load_row(wide + 1));
}

/* Returns the weights of the rows; NULL: they have none. */
GPU_FUNC const float *weights_of(const mover_sum *s, const uint64_t *rows)
{
    return s->flags & MOVER_WEIGHTED ? (const float *)(rows + s->rows) : NULL;
}

/* Adds 16 bytes of rows, of which a thread loads SOURCES at once. */
GPU_FUNC void add_vectors(int32_t dtype, float sums[8], const uint64_t *rows, const float *weights, uint32_t count,
                          uint32_t at)
{
    for (uint32_t first = 0; first < count; first += SOURCES) {
        uint4 held[SOURCES];
#pragma unroll
        for (uint32_t i = 0; i < SOURCES; i++)
            if (first + i < count) held[i] = load_row((const uint4 *)(rows[first + i] + at));
#pragma unroll
        for (uint32_t i = 0; i < SOURCES; i++)
            if (first + i < count) add_vector(dtype, sums, held[i], weights, weights ? weights[first + i] : 0.0f);
    }
}

/* Adds 16 bytes of the rows from `first` to before `end`. */
GPU_FUNC void add_some(const mover_sum *s, float sums[8], const uint64_t *rows, uint32_t first, uint32_t end,
                       uint32_t at)
{
    const uint32_t narrow = s->wide_from < end ? s->wide_from : end;
    const float *weights = weights_of(s, rows);
    if (first < narrow) add_vectors(s->dtype, sums, rows + first, weights ? weights + first : NULL, narrow - first, at);
    for (uint32_t i = first < narrow ? narrow : first; i < end; i++)
        add_wide_vector(s->dtype, sums, rows[i], at);
}

GPU_FUNC void clear_sums(float sums[8])
{
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        sums[i] = 0.0f;
}

GPU_FUNC void add_group_vector(const mover_sum *s, const uint64_t *group, float sums[8], uint32_t at)
{
    const int32_t dtype = s->dtype;
    float own[8];
    clear_sums(own);
    add_vectors(dtype, own, group, NULL, s->group_rows, at);
    if (!(s->flags & MOVER_WIDE_GROUP)) {
        const uint4 rounded = narrow_vector(dtype, own);
        add_vector(dtype, sums, rounded, false, 0.0f);
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        sums[i] = __fadd_rn(sums[i], own[i]);
}

GPU_FUNC void store_sums(const mover_sum *s, const float sums[8], uint32_t at)
{
    const int32_t dtype = s->dtype;
    if (!(s->flags & MOVER_WIDE_SUM)) {
        store_row((uint4 *)(s->sum + at), narrow_vector(dtype, sums));
        return;
    }
    uint4 *wide = (uint4 *)(s->sum + at / element_bytes(dtype) * 4);
    store_row(wide, floats_of(sums));
    if (dtype != GPU_F32) store_row(wide + 1, floats_of(sums + 4));
}

/* Adds up 16 bytes of the rows. */
GPU_FUNC void sum_vector(const mover_sum *s, const uint64_t *rows, uint32_t at)
{
    float sums[8];
    clear_sums(sums);
    add_some(s, sums, rows, 0, s->group_at, at);
    if (s->group_rows) add_group_vector(s, rows + s->rows, sums, at);
    add_some(s, sums, rows, s->group_at, s->rows, at);
    store_sums(s, sums, at);
}

/* Returns one element of a row: the last two bytes of the word are not set if it has two. */
GPU_FUNC uint32_t element_at(int32_t dtype, uint64_t row, uint32_t index)
{
    return dtype == GPU_F32 ? ((const uint32_t *)row)[index] : ((const uint16_t *)row)[index];
}

/* weight: NULL for none */
GPU_FUNC void add_element(int32_t dtype, float sums[2], uint64_t row, uint32_t index, const float *weight)
{
    add_word(dtype, sums, element_at(dtype, row, index), weight, weight ? *weight : 0.0f);
}

GPU_FUNC void add_group_element(const mover_sum *s, const uint64_t *group, float sums[2], uint32_t index)
{
    const int32_t dtype = s->dtype;
    float own[2] = {0.0f, 0.0f};
    for (uint32_t i = 0; i < s->group_rows; i++)
        add_element(dtype, own, group[i], index, NULL);
    if (s->flags & MOVER_WIDE_GROUP)
        sums[0] = __fadd_rn(sums[0], own[0]);
    else
        add_word(dtype, sums, dtype == GPU_F32 ? narrow_f32(own[0]) : narrow_pair(dtype, own[0], 0.0f), false, 0.0f);
}

/* Adds up one element of the rows, which need not be aligned for vectors. */
GPU_FUNC void sum_element(const mover_sum *s, const uint64_t *rows, uint32_t index)
{
    const int32_t dtype = s->flags & MOVER_WIDE_SUM ? GPU_F32 : s->dtype;
    const float *weights = weights_of(s, rows);
    float sums[2] = {0.0f, 0.0f};
    for (uint32_t i = 0; i <= s->rows; i++) {
        if (s->group_rows && i == s->group_at) add_group_element(s, rows + s->rows, sums, index);
        if (i < s->rows)
            add_element(i >= s->wide_from ? GPU_F32 : s->dtype, sums, rows[i], index, weights ? weights + i : NULL);
    }
    if (dtype == GPU_F32)
        ((uint32_t *)s->sum)[index] = narrow_f32(sums[0]);
    else
        ((uint16_t *)s->sum)[index] = (uint16_t)narrow_pair(dtype, sums[0], 0.0f);
}

GPU_FUNC bool sum_is_aligned(const mover_sum *s, const uint64_t *rows, uint64_t row_bytes)
{
    uint64_t bits = s->sum | row_bytes;
    for (uint32_t i = 0; i < s->rows + s->group_rows; i++)
        bits |= rows[i];
    return bits % 16 == 0;
}

GPU_FUNC void sum_piece(const mover_sum *s, const uint64_t *rows, uint32_t at, uint32_t end, bool aligned)
{
    const uint32_t bytes = element_bytes(s->dtype), lane = threadIdx.x % 32;
    if (aligned)
        for (uint32_t i = at + 16 * lane; i < end; i += 16 * 32)
            sum_vector(s, rows, i);
    else
        for (uint32_t i = at / bytes + lane; i < end / bytes; i += 32)
            sum_element(s, rows, i);
}

GPU_FUNC void sum_listed(const mover_command *c)
{
    const uint64_t *list = (const uint64_t *)c->list;
    const uint32_t row_bytes = (uint32_t)c->row_bytes;
    for (mover_pieces p = pieces_of(c->rows, row_bytes); p.next < p.all; p.next += p.step) {
        const uint32_t entry = p.next / p.each, at = (p.next - entry * p.each) * LISTED_BYTES;
        const mover_sum *s = (const mover_sum *)(list + entry * c->entry_words);
        const uint64_t *rows = (const uint64_t *)s + MOVER_SUM_WORDS;
        const uint32_t end = row_bytes - at < LISTED_BYTES ? row_bytes : at + LISTED_BYTES;
        sum_piece(s, rows, at, end, sum_is_aligned(s, rows, row_bytes));
    }
}

#endif
