/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that are rounded only at the end. Either a node's sum stays FP32, on its way and where it is added, or there are
 * no sums of nodes, and rows are added one by one. */
#include "exec/cpu/nodes/rails.h"
#include "proto/codec/number.h"

#include <string.h>

/* The number of elements that are added in one pass: they stay in the first cache. */
#define SPAN 256

void rail_add_row(expar_dtype dtype, float *sums, const void *row, int64_t count)
{
    if (dtype == EXPAR_BF16)
        for (int64_t i = 0; i < count; i++)
            sums[i] += number_of_bf16(((const number_u16 *)row)[i]);
    else if (dtype == EXPAR_F16)
        for (int64_t i = 0; i < count; i++)
            sums[i] += number_of_f16(((const number_u16 *)row)[i]);
    else
        for (int64_t i = 0; i < count; i++)
            sums[i] += ((const number_f32 *)row)[i];
}

void rail_round_sums(expar_dtype dtype, void *y, const float *sums, int64_t count)
{
    if (dtype == EXPAR_BF16)
        for (int64_t i = 0; i < count; i++)
            ((number_u16 *)y)[i] = (uint16_t)number_to_bf16(sums[i]);
    else if (dtype == EXPAR_F16)
        for (int64_t i = 0; i < count; i++)
            ((number_u16 *)y)[i] = (uint16_t)number_to_f16(sums[i]);
    else
        for (int64_t i = 0; i < count; i++)
            ((number_u32 *)y)[i] = number_magnitude(sums[i]) > NUMBER_INFINITY ? NUMBER_NAN : number_bits(sums[i]);
}

/* Returns where the elements from `begin` on lie. */
static const void *span_begin(const void *row, expar_dtype dtype, int64_t begin)
{
    return (const uint8_t *)row + begin * (int64_t)expar_dtype_bytes(dtype);
}

static int64_t span_length(int64_t elements, int64_t begin)
{
    return elements - begin < SPAN ? elements - begin : SPAN;
}

void rail_sum_wide(expar_dtype dtype, float *out, const void *const *rows, int32_t num_rows, int64_t elements)
{
    for (int64_t begin = 0; begin < elements; begin += SPAN) {
        const int64_t count = span_length(elements, begin);
        memset(out + begin, 0, (size_t)count * sizeof *out);
        for (int32_t r = 0; r < num_rows; r++)
            rail_add_row(dtype, out + begin, span_begin(rows[r], dtype, begin), count);
    }
}

void rail_sum_exact(expar_dtype dtype, void *y, const void *const *rows, int32_t num_biases, int32_t num_rows,
                    int64_t elements)
{
    const int64_t unit = (int64_t)expar_dtype_bytes(dtype);
    for (int64_t begin = 0; begin < elements; begin += SPAN) {
        const int64_t count = span_length(elements, begin);
        float sums[SPAN] = {0};
        for (int32_t r = 0; r < num_rows; r++) {
            const expar_dtype of_row = r < num_biases ? dtype : EXPAR_F32;
            rail_add_row(of_row, sums, span_begin(rows[r], of_row, begin), count);
        }
        rail_round_sums(dtype, (uint8_t *)y + begin * unit, sums, count);
    }
}
