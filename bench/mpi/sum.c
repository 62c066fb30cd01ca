/* SPDX-License-Identifier: Apache-2.0 */
/* FP32 sums of rows of each type, which a user's compiler makes of plain loops. */
#include "bench/frame/clones.h"
#include "bench/mpi/baseline.h"
#include <string.h>

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

FOR_EACH_CPU static void add_bf16(const half *row, int hidden, float *sum)
{
    for (int j = 0; j < hidden; j++)
        sum[j] += bf16_value(row[j]);
}

FOR_EACH_CPU static void round_bf16(const float *sum, int hidden, half *row)
{
    for (int j = 0; j < hidden; j++)
        row[j] = bf16_round(sum[j]);
}

FOR_EACH_CPU static void add_f16(const void *row, int hidden, float *sum)
{
    const binary16 *values = row;
    for (int j = 0; j < hidden; j++)
        sum[j] += (float)values[j];
}

FOR_EACH_CPU static void round_f16(const float *sum, int hidden, void *row)
{
    binary16 *values = row;
    for (int j = 0; j < hidden; j++)
        values[j] = (binary16)sum[j];
}

FOR_EACH_CPU static void add_f32(const float *row, int hidden, float *sum)
{
    for (int j = 0; j < hidden; j++)
        sum[j] += row[j];
}

void mpi_sum_add(expar_dtype dtype, const void *row, int hidden, float *sum)
{
    if (dtype == EXPAR_BF16) add_bf16(row, hidden, sum);
    if (dtype == EXPAR_F16) add_f16(row, hidden, sum);
    if (dtype == EXPAR_F32) add_f32(row, hidden, sum);
}

void mpi_sum_round(expar_dtype dtype, const float *sum, int hidden, void *row)
{
    if (dtype == EXPAR_BF16) round_bf16(sum, hidden, row);
    if (dtype == EXPAR_F16) round_f16(sum, hidden, row);
    if (dtype == EXPAR_F32) memcpy(row, sum, (size_t)hidden * sizeof *sum);
}
