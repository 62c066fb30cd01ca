/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of a coded group of LogFMT, four in each lane. The results equal those of logfmt_code_of and logfmt_value_of,
 * with fewer integer instructions, of which a multiprocessor executes only half as many per clock as of others. The sum
 * with LOGFMT_ROUND puts whole numbers into the lowest bits of a float. They stay there, and bytes of four of them are
 * combined at once. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_CODES_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_CODES_H

#include "exec/cuda/kernels/low_latency/log.h"

/* ---- the table ------------------------------------------------------------------------------------------------------
 *
 * The fraction of a BF16 value's logarithm follows from the seven bits after the first. The table has [128] entries in
 * shared memory. Each block fills it before its first meeting, and its warps read it. */

GPU_FUNC float *ll_log_table(const ll_shared *s)
{
    return (float *)(s->rest + LL_BLOCK_WARPS + LL_GPU_LISTED);
}
GPU_FUNC void ll_log_fill_table(float *table)
{
    if (threadIdx.x < LL_GPU_LOG_TABLE) table[threadIdx.x] = logfmt_log_of(127u << 23 | threadIdx.x << 16).fraction;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

/* Returns a float whose lowest nine bits are the value's code. table: for BF16 values; NULL: for any numbers. */
GPU_FUNC uint32_t ll_log_code_in(const logfmt_range *range, float steps_per_unit, float value, const float *table)
{
    const uint32_t magnitude = __float_as_uint(larger_magnitude(value, range->least));
    logfmt_log log = logfmt_log_of(magnitude);
    if (table) log.fraction = table[magnitude >> 16 & (LL_GPU_LOG_TABLE - 1)];
    const float steps = number_multiply(logfmt_above_log(range, log), steps_per_unit);
    return __float_as_uint(number_add(number_add(steps, LOGFMT_ROUND), one_unless_zero(value)));
}

/* Takes four such floats, and bytes whose highest bits are the values' signs. Returns the low bytes of the codes, and
   the byte of the bits above as the highest one of *above. */
GPU_FUNC void ll_log_pack(const uint32_t codes[LL_LOG_LANE], uint32_t signs, uint32_t *low, uint32_t *above)
{
    const uint32_t first = __byte_perm(codes[0], codes[1], 0x5140), second = __byte_perm(codes[2], codes[3], 0x5140);
    *low = __byte_perm(first, second, 0x5410);
    /* There are two bits in the lowest ones of each byte. The product moves them together without a carry. */
    const uint32_t bits = __byte_perm(first, second, 0x7632) | (signs >> 6 & 0x02020202u);
    *above = bits * 0x01041040u;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Turns the low bytes of four codes, and their byte of bits above, into values. */
GPU_FUNC void ll_log_unpack(const logfmt_range *range, float units_per_step, uint32_t low, uint32_t above,
                            float values[LL_LOG_LANE])
{
    /* Moves two bits of each into the lowest ones of a byte. */
    const uint32_t nibbles = above * 0x1001u & 0x000f000fu, pairs = nibbles * 0x41u & 0x03030303u;
    const uint32_t high = pairs & 0x01010101u, signs = pairs & 0x02020202u;
    const uint32_t first = __byte_perm(high, 0x4b00u, 0x5410), second = __byte_perm(high, 0x4b00u, 0x5432);
#pragma unroll
    for (int32_t i = 0; i < LL_LOG_LANE; i++) {
        /* 2^23 + the code. */
        const uint32_t in =
            __byte_perm(low, i < 2 ? first : second, 0x7600u | (uint32_t)(4 + i % 2) << 4 | (uint32_t)i);
        const float steps = number_add(__uint_as_float(in), -8388609.0f);
        const float fraction = number_add(number_multiply(steps, units_per_step), range->start.fraction);
        const uint32_t magnitude = __float_as_uint(logfmt_power(range->start.exponent, fraction));
        const uint32_t sign = signs << (30 - 8 * i) & 0x80000000u;
        values[i] = __uint_as_float((steps < 0.0f ? 0 : magnitude) | sign);
    }
}

#endif
